"""Converts records to MongoDB documents and back, without loss."""

from collections.abc import Mapping
from typing import Any

from bson.int64 import Int64

from afterword.schemas import MessageCreated, MessageEdited, SummaryCreated, SummaryDeleted
from afterword.schemas.ids import message_key, row_id
from afterword.streams.stores.episodes import (
    Cause,
    Conversation,
    DeletedEpisode,
    Episode,
    EpisodeFacts,
    EpisodeRef,
    EpisodeVersion,
    FactOfUser,
    Revision,
    RollingRow,
    StoredEpisode,
)
from afterword.streams.stores.messages import NEVER, ArchivedMessage, DeletedMessage, MessageRef, MessageText
from afterword.streams.text.tokens import count_tokens

Document = dict[str, Any]
StoredDocument = Mapping[str, Any]

EPISODE_REF_FIELDS = (
    *("episode_id", "revision", "conversation_id", "ordinal", "fingerprint", "message_ids"),
    *("tenant_id", "agent_id"),
)
DELETED_FIELDS = (
    *SummaryDeleted.model_fields,
    "deleted",
    "core_ids",
    "overlap_ids",
    "inputs",
    "cause",
    "last_offset",
    "ended_at",
)
EPISODE_SCAN_FIELDS = tuple(sorted({*EPISODE_REF_FIELDS, *DELETED_FIELDS, "facts.message_ids"}))
"""Fields of an `EpisodeRef`, and those that remain of a deleted episode."""
FACT_FIELDS = ("episode_id", "conversation_id", "ordinal", "ended_at", "facts")
EPISODE_VERSION_FIELDS = ("revision", "deleted", "reason")
TEXT_FIELDS = ("source", "role", "author", "sent_at", "user_id", "agent_id")
MESSAGE_REF_FIELDS = ("source", "episode_id", "deleted", "offset", "skip_summarization", "content")

_EMPTY_NAME = "%"
_ESCAPES = {"%": "%25", ".": "%2E", "$": "%24"}
_ESCAPE_TABLE = str.maketrans(_ESCAPES)


def episode_document(episode: Episode) -> Document:
    """Return the document of an episode, or what remains of a deleted one.

    Its times are BSON dates: in UTC, to the millisecond, as the schemas have them.
    """
    document = {
        **episode.event.model_dump(),
        "_id": episode.event.episode_id,
        "core_ids": episode.core_ids,
        "overlap_ids": episode.overlap_ids,
        "last_offset": episode.last_offset,
        "cause": episode.cause._asdict(),
        "inputs": [{"message_id": message_id, "offset": offset} for message_id, offset in episode.inputs],
        "attempt": episode.version[1],
    }
    if isinstance(episode, DeletedEpisode):
        return document | {"deleted": True, "ended_at": episode.ended_at}
    return document | {
        "fingerprint": episode.fingerprint,
        "close_reason": episode.close_reason,
        "first_offset": episode.first_offset,
        "participants": episode.participants,
        "writers": episode.writers,
        "earlier": [revision.model_dump() for revision in episode.earlier],
        "unusable": episode.unusable,
        "due_at": episode.due_at,
    }


def any_episode_from(document: StoredDocument) -> Episode:
    return deleted_from(document) if document.get("deleted") else episode_from(document)


def deleted_from(document: StoredDocument) -> DeletedEpisode:
    return DeletedEpisode(
        SummaryDeleted.model_validate(document, strict=False),
        core_ids=tuple(document["core_ids"]),
        overlap_ids=tuple(document["overlap_ids"]),
        last_offset=document["last_offset"],
        cause=Cause(**document["cause"]),
        inputs=_inputs_from(document),
        ended_at=document["ended_at"],
    )


def episode_from(document: StoredDocument) -> StoredEpisode:
    return StoredEpisode(
        # not strict, because BSON has arrays where the models have tuples
        summary=SummaryCreated.model_validate(document, strict=False),
        core_ids=tuple(document["core_ids"]),
        overlap_ids=tuple(document["overlap_ids"]),
        fingerprint=document["fingerprint"],
        close_reason=document["close_reason"],
        first_offset=document["first_offset"],
        last_offset=document["last_offset"],
        cause=Cause(**document["cause"]),
        inputs=_inputs_from(document),
        participants=tuple(document["participants"]),
        writers=tuple(document["writers"]),
        earlier=tuple(Revision.model_validate(one, strict=False) for one in document["earlier"]),
        attempt=document["attempt"],
        unusable=document["unusable"],
        due_at=document["due_at"],
    )


def version_from(document: StoredDocument) -> EpisodeVersion:
    return EpisodeVersion(document["revision"], document["reason"] if document.get("deleted") else None)


def facts_from(document: StoredDocument, user_id: str) -> EpisodeFacts:
    """Return the facts about this user."""
    own = tuple(FactOfUser.of(one) for one in document["facts"] if one["user_id"] == user_id)
    return EpisodeFacts(**{name: document[name] for name in FACT_FIELDS} | {"facts": own})


def episode_ref_from(document: StoredDocument) -> EpisodeRef:
    fields = {name: document[name] for name in EPISODE_REF_FIELDS}
    named = tuple(dict.fromkeys(one for fact in document["facts"] for one in fact["message_ids"]))
    ids = {"message_ids": tuple(document["message_ids"]), "fact_message_ids": named}
    return EpisodeRef(**fields | ids | {"inputs": _inputs_from(document)})


def _inputs_from(document: StoredDocument) -> tuple[tuple[str, int], ...]:
    return tuple((found["message_id"], found["offset"]) for found in document["inputs"])


def row_document(row: RollingRow) -> Document:
    inputs = [{"ordinal": ordinal, "revision": revision} for ordinal, revision in row.inputs]
    own = {"_id": row_id(row.conversation_id, row.row), "inputs": inputs, "cause": row.cause._asdict()}
    return {**vars(row), **own}


def row_from(document: StoredDocument) -> RollingRow:
    inputs = tuple((found["ordinal"], found["revision"]) for found in document["inputs"])
    return RollingRow(**{**_without_key(document), "inputs": inputs, "cause": Cause(**document["cause"])})


def conversation_document(conversation: Conversation) -> Document:
    fields = {**vars(conversation), "_id": conversation.conversation_id, "cause": conversation.cause._asdict()}
    del fields["conversation_id"]
    return fields


def conversation_from(document: StoredDocument) -> Conversation:
    fields = {**_without_key(document), "cause": Cause(**document["cause"])}
    return Conversation(conversation_id=document["_id"], **fields)


def message_document(archived: ArchivedMessage) -> Document:
    """Return all fields of a message's document except `_id` and `episode_id`."""
    return {**shown_document(archived), "metadata": safe_names(archived.message.metadata)}


def shown_document(archived: ArchivedMessage) -> Document:
    """Return the fields that the summarizer knows too."""
    message = archived.message
    changed = {} if archived.changed == NEVER else {"offset": archived.changed}
    return {
        **message.model_dump(exclude={"metadata"}),
        "source": {"partition": archived.partition, "offset": archived.offset},
        "token_count": count_tokens(message.content),
        **changed,
    }


def archived_key(archived: ArchivedMessage) -> str:
    message = archived.message
    return message_key(message.conversation_id, message.id, message.tenant_id)


def message_from(document: StoredDocument) -> ArchivedMessage:
    fields = {**document, "metadata": original_names(document.get("metadata", {}))}
    return ArchivedMessage(
        message=MessageCreated.model_validate(fields, strict=False),
        partition=document["source"]["partition"],
        offset=document["source"]["offset"],
        changed=document.get("offset", NEVER),
    )


def text_from(document: StoredDocument) -> MessageText:
    author = {"user": document["user_id"], "assistant": document.get("agent_id")}.get(document["role"])
    return MessageText(
        document["content"], document["role"], document["sent_at"], author, document.get("author"), document["user_id"]
    )


def any_message_from(document: StoredDocument) -> ArchivedMessage | DeletedMessage:
    return DeletedMessage(document["offset"]) if document.get("deleted") else message_from(document)


def deleted_message_document(key: str, offset: int) -> Document:
    """Return the document that remains of a deleted message, without any of its content."""
    return {"_id": key, "deleted": True, "offset": offset}


def edited_fields(edit: MessageEdited, offset: int) -> Document:
    """Return the fields known to the summarizer that an edit sets; empty if it changes only the metadata."""
    fields = {name: value for name, value in edit.changes.items() if name != "metadata"}
    if "content" in fields:
        fields["token_count"] = count_tokens(fields["content"])
    return {**fields, "offset": offset} if fields else {}


def message_ref_from(document: StoredDocument) -> MessageRef:
    return MessageRef(
        changed=document.get("offset", NEVER),
        key=document["_id"],
        episode_id=document.get("episode_id"),
        skipped=document.get("skip_summarization", False),
        source=None if document.get("deleted") else (document["source"]["partition"], document["source"]["offset"]),
        content=document.get("content"),
        deleted=document.get("deleted", False),
    )


def safe_names(value: Any) -> Any:
    """Escape `$`, dots and empty names in every field name of the value; `%` marks an escape.

    So MongoDB never takes a name for an operator, a path, or a part of a DBRef.
    """
    if isinstance(value, dict):
        return {name.translate(_ESCAPE_TABLE) or _EMPTY_NAME: safe_names(child) for name, child in value.items()}
    return [safe_names(child) for child in value] if isinstance(value, list) else value


def original_names(value: Any) -> Any:
    """Undo `safe_names`."""
    if isinstance(value, dict):
        return {_original(name): original_names(child) for name, child in value.items()}
    if isinstance(value, Int64):  # the driver's type for a plain int
        return int(value)
    return [original_names(child) for child in value] if isinstance(value, list) else value


def _original(name: str) -> str:
    if name == _EMPTY_NAME:
        return ""
    for character, escaped in reversed(_ESCAPES.items()):  # the escape character itself comes last
        name = name.replace(escaped, character)
    return name


def _without_key(document: StoredDocument) -> Document:
    return {name: value for name, value in document.items() if name != "_id"}
