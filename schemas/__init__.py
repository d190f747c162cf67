"""The events on the topics: models, ids, headers and dead letters. No I/O; they only import the text library."""

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
    ConversationAssigned,
    ConversationDeleted,
    ConversationFlush,
    InputEvent,
    MessageCreated,
    MessageDeleted,
    MessageEdited,
)
from afterword.schemas.records import InvalidRecord, decode_closed, decode_input
from afterword.schemas.summaries import (
    Compression,
    ConversationUpdated,
    Fact,
    Quality,
    RollingSummary,
    SummaryCreated,
    SummaryDeleted,
    Usage,
)
from afterword_text.messages import FactKind, FactStatus

__all__ = [
    "CloseReason",
    "Compression",
    "ConversationAssigned",
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
    "decode_input",
    "fingerprint",
]
