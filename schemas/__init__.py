"""The events on the topics: models, ids, headers and dead letters. No I/O, and no imports from our other packages."""

from afterword.schemas.decoding import InvalidRecord, decode_closed, decode_episode, decode_input
from afterword.schemas.episodes import (
    CloseReason,
    EpisodeAmended,
    EpisodeClosed,
    EpisodeMessage,
    EpisodeMetrics,
    EpisodeRedo,
    Source,
    fingerprint,
)
from afterword.schemas.messages import (
    ConversationDeleted,
    ConversationFlush,
    InputEvent,
    MessageCreated,
    MessageDeleted,
    MessageEdited,
)
from afterword.schemas.summaries import (
    Compression,
    ConversationUpdated,
    Fact,
    FactKind,
    FactStatus,
    Quality,
    RollingSummary,
    SummaryCreated,
    SummaryDeleted,
    Usage,
)

__all__ = [
    "CloseReason",
    "Compression",
    "ConversationDeleted",
    "ConversationFlush",
    "ConversationUpdated",
    "EpisodeAmended",
    "EpisodeClosed",
    "EpisodeMessage",
    "EpisodeMetrics",
    "EpisodeRedo",
    "Fact",
    "FactKind",
    "FactStatus",
    "InputEvent",
    "InvalidRecord",
    "MessageCreated",
    "MessageDeleted",
    "MessageEdited",
    "Quality",
    "RollingSummary",
    "Source",
    "SummaryCreated",
    "SummaryDeleted",
    "Usage",
    "decode_closed",
    "decode_episode",
    "decode_input",
    "fingerprint",
]
