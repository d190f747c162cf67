"""Events of the topics: models, ids, headers and dead letters. No I/O, no imports of other packages of ours."""

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
