"""What travels on the topics: models, their ids and their headers. No I/O, and nothing of ours is imported."""

from afterword.schemas.decoding import InvalidRecord, decode_episode, decode_input
from afterword.schemas.episodes import CloseReason, EpisodeClosed, EpisodeMessage, EpisodeMetrics, Source, fingerprint
from afterword.schemas.messages import ConversationFlush, MessageCreated
from afterword.schemas.summaries import Compression, Quality, SummaryCreated, Usage

__all__ = [
    "CloseReason",
    "Compression",
    "ConversationFlush",
    "EpisodeClosed",
    "EpisodeMessage",
    "EpisodeMetrics",
    "InvalidRecord",
    "MessageCreated",
    "Quality",
    "Source",
    "SummaryCreated",
    "Usage",
    "decode_episode",
    "decode_input",
    "fingerprint",
]
