"""Long-term memory for chat assistants, built from the Kafka topic that carries their messages.

This module exports what a service needs. Each name is imported on first use, so that a subscriber does not load the
stores' clients. `Memory` and `hits_as_text` need the extra `memory`, `Eraser` the extra `worker`, and everything else
only the base install.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from afterword.consumers.subscriber import RevisionSubscriber as RevisionSubscriber
    from afterword.consumers.subscriber import SummarySubscriber as SummarySubscriber
    from afterword.operating.eraser import Eraser as Eraser
    from afterword.reading.memory import Memory as Memory
    from afterword.reading.memory import hits_as_text as hits_as_text
    from afterword.schemas import ConversationAssigned as ConversationAssigned
    from afterword.schemas import ConversationDeleted as ConversationDeleted
    from afterword.schemas import ConversationFlush as ConversationFlush
    from afterword.schemas import EpisodeClosed as EpisodeClosed
    from afterword.schemas import InvalidRecord as InvalidRecord
    from afterword.schemas import MessageCreated as MessageCreated
    from afterword.schemas import MessageDeleted as MessageDeleted
    from afterword.schemas import MessageEdited as MessageEdited
    from afterword.schemas import SummaryCreated as SummaryCreated
    from afterword.schemas import SummaryDeleted as SummaryDeleted
    from afterword.streams.errors import AfterwordError as AfterwordError
    from afterword.streams.errors import BrokerRefuses as BrokerRefuses
    from afterword.streams.errors import BrokerUnavailable as BrokerUnavailable
    from afterword.streams.errors import ConfigurationError as ConfigurationError
    from afterword.streams.errors import OwnerMissing as OwnerMissing
    from afterword.streams.errors import RequestRefused as RequestRefused
    from afterword.streams.errors import StoreUnavailable as StoreUnavailable
    from afterword.streams.errors import TopicMissing as TopicMissing
    from afterword.streams.installed import ExtraMissing as ExtraMissing
    from afterword.streams.settings import Settings as Settings
    from afterword.streams.settings import load_settings as load_settings
    from afterword.writing.producer import Producer as Producer

_NAMES = {
    "afterword.consumers.subscriber": "RevisionSubscriber SummarySubscriber",
    "afterword.streams.installed": "ExtraMissing",
    "afterword.operating.eraser": "Eraser",
    "afterword.reading.memory": "Memory hits_as_text",
    "afterword.schemas": "ConversationAssigned ConversationDeleted ConversationFlush EpisodeClosed InvalidRecord "
    "MessageCreated MessageDeleted MessageEdited SummaryCreated SummaryDeleted",
    "afterword.streams.errors": "AfterwordError BrokerRefuses BrokerUnavailable ConfigurationError OwnerMissing "
    "RequestRefused StoreUnavailable TopicMissing",
    "afterword.streams.settings": "Settings load_settings",
    "afterword.writing.producer": "Producer",
}
"""The public names by module. Each is imported when it is first used."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    """Import a public name on first use. Raises: AttributeError, ExtraMissing."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from afterword.streams.installed import extra_required

    with extra_required("worker" if name == "Eraser" else "memory", f"afterword.{name}"):
        value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
