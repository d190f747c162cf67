"""Builds records of `messages` as Afterword writes them: key, JSON and CloudEvents headers of an event."""

from datetime import datetime
from typing import NamedTuple

from afterword.schemas.decoding import INPUT_TYPES
from afterword.schemas.headers import Headers, cloud_event
from afterword.schemas.ids import escape, message_key
from afterword.schemas.messages import MESSAGE_CREATED, ConversationFlush, InputEvent, MessageCreated

SOURCE = "afterword/producer"
"""The CloudEvents source of records whose producer names no other."""

TYPES = {model: name for name, model in INPUT_TYPES.items()}


class ProducerRecord(NamedTuple):
    """One record for `messages`. Its key is the conversation's id in UTF-8."""

    conversation_id: str
    value: bytes
    headers: Headers
    is_message: bool = True
    tenant_id: str | None = None
    is_flush: bool = False


def to_record(event: InputEvent, now: datetime, source: str = SOURCE, value: bytes | None = None) -> ProducerRecord:
    """Build the record of an event. `value` is its JSON, if the caller has it already."""
    if isinstance(event, MessageCreated):
        headers = cloud_event(
            MESSAGE_CREATED, message_key(event.conversation_id, event.id), source, event.sent_at or now
        )
        value = value or event.model_dump_json(exclude_defaults=True).encode()
        return ProducerRecord(event.conversation_id, value, headers, tenant_id=event.tenant_id)
    event_type = TYPES[type(event)]
    subject = message_key(event.conversation_id, event.id) if hasattr(event, "id") else escape(event.conversation_id)
    event_id = f"{subject}:{event_type.rpartition('.')[2]}:{int(now.timestamp() * 1000)}"
    headers = cloud_event(event_type, event_id, source, now)
    value = value or event.model_dump_json(exclude_unset=True).encode()
    is_flush = isinstance(event, ConversationFlush)
    return ProducerRecord(event.conversation_id, value, headers, False, event.tenant_id, is_flush)
