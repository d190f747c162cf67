"""Claude's data export: `conversations.json`, an array of conversations with `chat_messages`."""

from collections.abc import Iterator, Mapping
from typing import Any

from afterword.streams.text.content import flatten, said
from afterword.writing.importing.outcomes import (
    ImportOptions,
    ImportOutcome,
    Refused,
    Rejected,
    identifier,
    mapping,
    outcomes_of,
    placeholders,
    rfc3339_of,
)

ROLES = {"human": "user", "assistant": "assistant"}


def read(where: str, record: Any, options: ImportOptions) -> Iterator[ImportOutcome]:
    """Read a conversation."""
    known = mapping(record)
    messages, conversation_id = known.get("chat_messages"), identifier(known.get("uuid"))
    if not isinstance(messages, list) or conversation_id is None:
        yield Rejected(where, "not a conversation: it has no uuid or no chat_messages")
        return
    user_id = options.user_id or identifier(mapping(known.get("account")).get("uuid"))
    if user_id is None:
        yield Rejected(where, "it names no account; give --user", max(1, len(messages)))
        return
    common = {"conversation_id": conversation_id, "user_id": user_id, "metadata": {"imported_from": "claude"}}
    yield from outcomes_of(where, options, messages, lambda one: [common | fields for fields in _fields(mapping(one))])


def _fields(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    role, message_id = ROLES.get(str(message.get("sender"))), identifier(message.get("uuid"))
    if role is None or message_id is None:
        raise Refused("it has no uuid or no known sender")
    content = message.get("content") if flatten(message.get("content")) else message.get("text")
    files = [shown for name in ("attachments", "files") for shown in placeholders(message.get(name), "file_name")]
    pieces = flatten([content, *files])
    sent_at = rfc3339_of(message.get("created_at"))
    return [{**one, "sent_at": sent_at} for one in said(role, pieces, message_id)]
