"""Long-term memory for chat assistants, built from the Kafka topic that carries their messages.

This module names what a service needs. Each name is imported when it is first used, so that a subscriber does not load
the stores' clients. `Memory` and `hits_as_text` need the extra `memory`, `Eraser` the extra `worker`, and everything
else only the base install.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from afterword.consumers.subscriber import RevisionSubscriber, SummarySubscriber
    from afterword.installed import ExtraMissing
    from afterword.operating.eraser import Eraser
    from afterword.reading.memory import Memory, hits_as_text
    from afterword.schemas import (
        ConversationDeleted,
        ConversationFlush,
        EpisodeClosed,
        InvalidRecord,
        MessageCreated,
        MessageDeleted,
        MessageEdited,
        SummaryCreated,
        SummaryDeleted,
    )
    from afterword.streams.errors import (
        AfterwordError,
        BrokerRefuses,
        BrokerUnavailable,
        ConfigurationError,
        OwnerMissing,
        RequestRefused,
        StoreUnavailable,
        TopicMissing,
        TopicReplaced,
    )
    from afterword.streams.settings import Settings, load_settings
    from afterword.writing.producer import Producer

__all__ = [
    "AfterwordError",
    "BrokerRefuses",
    "BrokerUnavailable",
    "ConfigurationError",
    "ConversationDeleted",
    "ConversationFlush",
    "EpisodeClosed",
    "Eraser",
    "ExtraMissing",
    "InvalidRecord",
    "Memory",
    "MessageCreated",
    "MessageDeleted",
    "MessageEdited",
    "OwnerMissing",
    "Producer",
    "RequestRefused",
    "RevisionSubscriber",
    "Settings",
    "StoreUnavailable",
    "SummaryCreated",
    "SummaryDeleted",
    "SummarySubscriber",
    "TopicMissing",
    "TopicReplaced",
    "hits_as_text",
    "load_settings",
]

_MODULES = {
    "Eraser": "afterword.operating.eraser",
    "ExtraMissing": "afterword.installed",
    "Memory": "afterword.reading.memory",
    "Producer": "afterword.writing.producer",
    "hits_as_text": "afterword.reading.memory",
    **dict.fromkeys(("RevisionSubscriber", "SummarySubscriber"), "afterword.consumers.subscriber"),
    **dict.fromkeys(
        (
            *("ConversationDeleted", "ConversationFlush", "EpisodeClosed", "InvalidRecord", "MessageCreated"),
            *("MessageDeleted", "MessageEdited", "SummaryCreated", "SummaryDeleted"),
        ),
        "afterword.schemas",
    ),
    **dict.fromkeys(("Settings", "load_settings"), "afterword.streams.settings"),
}
"""The module of each name. All other names are errors."""


def __getattr__(name: str) -> Any:
    """Import a public name on first use. Raises: AttributeError, ExtraMissing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from afterword.installed import extra_required

    with extra_required("worker" if name == "Eraser" else "memory", f"afterword.{name}"):
        found = getattr(import_module(_MODULES.get(name, "afterword.streams.errors")), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
