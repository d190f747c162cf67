"""Redaction of incoming records, before anything of them is stored, and of dead letters."""

from typing import Any, TypeVar

import orjson

from afterword.schemas import (
    ConversationDeleted,
    ConversationFlush,
    InputEvent,
    MessageCreated,
    MessageDeleted,
    MessageEdited,
)
from afterword.schemas.dead_letters import DEAD_LETTER_PREFIX, DeadLetterRecord, cut_headers
from afterword.schemas.decoding import loads
from afterword.schemas.headers import RESERVED_PREFIX, Headers
from afterword.schemas.messages import METADATA_MAX_DEPTH
from afterword.streams.redaction.redactor import Redactor

AnyEvent = TypeVar(
    "AnyEvent", MessageCreated, ConversationFlush, MessageEdited, MessageDeleted, ConversationDeleted, InputEvent
)

IDS = frozenset({"id", "conversation_id", "user_id", "agent_id", "tenant_id"})
"""Fields that stay, because a redacted id would be another message's."""
NOT_TEXT = frozenset({"role"})
"""Fields that stay because their values are ours. Every other field of an event, even a new one, is redacted."""
MAX_DEPTH = METADATA_MAX_DEPTH + 4
"""Maximum nesting of the JSON that is read in a dead letter; metadata lies below `data` and its own name."""
LEAST_NUMBER = 10**6
"""Integers from here on are read as texts, because they may be card numbers."""


class TooDeep(ValueError):
    """The JSON has too many levels."""


class RecordRedaction:
    """Redacts the texts of input events and dead letters, but no ids and keys."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def event(self, event: AnyEvent) -> AnyEvent:
        """Return the event without entities in its texts, including metadata names; ids, times and roles stay."""
        names = type(event).model_fields.keys() - IDS - NOT_TEXT
        given = {name: value for name in names if (value := getattr(event, name))}
        redacted = {name: self._value(value, MAX_DEPTH) for name, value in given.items()}
        changed = {name: value for name, value in redacted.items() if value != given[name]}
        return event.model_copy(update=changed) if changed else event

    def dead_letter(self, key: bytes | None, value: bytes | None, headers: Headers) -> DeadLetterRecord:
        """Return the dead letter without entities in its value and in its original's headers.

        A value that is not JSON is left out. Its size and its SHA-256 are kept, but the record cannot be replayed from
        there.
        """
        ours = [(name, said) for name, said in headers if name.startswith(RESERVED_PREFIX)]
        others = [(name, said) for name, said in headers if not name.startswith(RESERVED_PREFIX)]
        # a producer may leave a header's value out
        kept = [(self._redactor.redacted(name), said and self._header(said)) for name, said in others]
        if value is None:
            return key, None, kept + ours
        try:
            return key, self._json(value), kept + ours
        except (orjson.JSONDecodeError, orjson.JSONEncodeError, TooDeep):
            known = {name for name, _ in ours}
            said = [(DEAD_LETTER_PREFIX + name, text.encode()) for name, text in cut_headers("value", value).items()]
            return key, None, kept + ours + [(name, text) for name, text in said if name not in known]

    def _header(self, said: bytes) -> bytes:
        return self._redactor.redacted(said.decode(errors="surrogateescape")).encode(errors="surrogateescape")

    def _json(self, value: bytes) -> bytes:
        read = loads(value)
        redacted = self._event_json(read) if isinstance(read, dict) else self._value(read, MAX_DEPTH)
        return value if redacted == read else orjson.dumps(redacted)

    def _event_json(self, event: dict[str, Any], *, is_data: bool = False) -> dict[str, Any]:
        """Redact an event's JSON, or an event in the `data` of a structured CloudEvent."""
        found: dict[str, Any] = {}
        for name, value in event.items():
            if name in IDS and isinstance(value, str):
                found[name] = value
            elif name == "data" and isinstance(value, dict) and not is_data:
                found[name] = self._event_json(value, is_data=True)
            else:
                found[self._redactor.redacted(name)] = self._value(value, MAX_DEPTH)
        return found

    def _value(self, value: Any, depth: int) -> Any:
        """Redact the texts in a value; if several names become the same, the last one stays. Raises: TooDeep."""
        if isinstance(value, str):
            return self._redactor.redacted(value)
        if type(value) is int and abs(value) >= LEAST_NUMBER:
            text = self._redactor.redacted(str(value))
            return value if text == str(value) else text
        if not isinstance(value, dict | list | tuple):
            return value
        if not depth:
            raise TooDeep
        if isinstance(value, dict):
            return {self._redactor.redacted(name): self._value(one, depth - 1) for name, one in value.items()}
        return type(value)(self._value(one, depth - 1) for one in value)
