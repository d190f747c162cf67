"""Conversion of records to MongoDB's documents and back, without loss."""

from collections.abc import Iterable, Mapping
from typing import Any

from bson.int64 import Int64

from afterword.schemas import MessageCreated, MessageEdited, SummaryCreated, SummaryDeleted
from afterword.schemas.ids import message_key, row_id
from afterword.streams.stores.episodes import (
    NEVER,
    Conversation,
    DeletedEpisode,
    EpisodeRef,
    EpisodeVersion,
    Revision,
    RollingRow,
    StoredEpisode,
)
from afterword.streams.stores.messages import ArchivedMessage, DeletedMessage, MessageRef, MessageText, PendingDeletion
from afterword.streams.tokens import count_tokens

Document = dict[str, Any]
StoredDocument = Mapping[str, Any]

EPISODE_REF_FIELDS = (
    *("episode_id", "revision", "conversation_id", "ordinal", "fingerprint", "message_ids"),
    *("tenant_id", "agent_id", "as_of"),
)
DELETED_FIELDS = (*SummaryDeleted.model_fields, "deleted", "changes", "as_of", "made_by", "announced_by", "last_offset")
EPISODE_SCAN_FIELDS = tuple(sorted({*EPISODE_REF_FIELDS, "episode_revision", *DELETED_FIELDS}))
"""Fields of an `EpisodeRef`, and of what stays of a deleted episode."""
EPISODE_VERSION_FIELDS = ("revision", "as_of", "made_by", "deleted", "reason")
TEXT_FIELDS = ("source", "role", "sent_at", "user_id", "agent_id")
MESSAGE_REF_FIELDS = ("source", "episode_id", "deleted", "offset", "skip_summarization", "content")

_EMPTY_NAME = "%"
_ESCAPES = {"%": "%25", ".": "%2E", "$": "%24"}
_ESCAPE_TABLE = str.maketrans(_ESCAPES)


def episode_document(episode: StoredEpisode) -> Document:
    """The document of an episode. Its times are BSON dates, which hold UTC milliseconds, as the schemas do."""
    return {
        **episode.summary.model_dump(),
        "_id": episode.summary.episode_id,
        "fingerprint": episode.fingerprint,
        "close_reason": episode.close_reason,
        "overlap_ids": episode.overlap_ids,
        "changes": _changes_document(episode.changes),
        "as_of": episode.as_of,
        "made_by": episode.made_by,
        "built_on": episode.built_on,
        "last_offset": episode.last_offset,
        "participants": episode.participants,
        "announced_by": episode.announced_by,
        "earlier": [revision.model_dump() for revision in episode.earlier],
    }


def deleted_document(deleted: DeletedEpisode) -> Document:
    """The document that stays of a deleted episode."""
    return {
        **deleted.deletion.model_dump(),
        "_id": deleted.deletion.episode_id,
        "deleted": True,
        "changes": _changes_document(deleted.changes),
        "as_of": deleted.as_of,
        "made_by": deleted.made_by,
        "announced_by": deleted.announced_by,
        "last_offset": deleted.last_offset,
    }


def any_episode_from(document: StoredDocument) -> StoredEpisode | DeletedEpisode:
    return deleted_from(document) if document.get("deleted") else episode_from(document)


def deleted_from(document: StoredDocument) -> DeletedEpisode:
    deletion = SummaryDeleted.model_validate(document, strict=False)
    return DeletedEpisode(
        deletion,
        changes=_changes_from(document),
        as_of=document["as_of"],
        made_by=document["made_by"],
        announced_by=document["announced_by"],
        last_offset=document["last_offset"],
    )


def _changes_document(changes: Iterable[tuple[str, int]]) -> list[Document]:
    return [{"message_id": message_id, "offset": offset} for message_id, offset in changes]


def _changes_from(document: StoredDocument) -> tuple[tuple[str, int], ...]:
    return tuple((change["message_id"], change["offset"]) for change in document["changes"])


def episode_from(document: StoredDocument) -> StoredEpisode:
    return StoredEpisode(
        # not strict: BSON has only arrays where the models have tuples
        summary=SummaryCreated.model_validate(document, strict=False),
        fingerprint=document["fingerprint"],
        close_reason=document["close_reason"],
        overlap_ids=tuple(document["overlap_ids"]),
        changes=_changes_from(document),
        as_of=document["as_of"],
        made_by=document["made_by"],
        built_on=tuple(document["built_on"]),
        last_offset=document["last_offset"],
        participants=tuple(document["participants"]),
        announced_by=document["announced_by"],
        earlier=tuple(Revision.model_validate(one, strict=False) for one in document["earlier"]),
    )


def version_from(document: StoredDocument) -> EpisodeVersion:
    ended = document["reason"] if document.get("deleted") else None
    return EpisodeVersion(document["revision"], document["as_of"], document["made_by"], ended)


def episode_ref_from(document: StoredDocument) -> EpisodeRef:
    fields = {name: document[name] for name in EPISODE_REF_FIELDS}
    made_from = document["episode_revision"] or document["revision"]
    more = {"message_ids": tuple(document["message_ids"]), "changes": _changes_from(document), "made_from": made_from}
    return EpisodeRef(**fields | more)


def row_document(row: RollingRow) -> Document:
    return {**vars(row), "_id": row_id(row.conversation_id, row.row)}


def row_from(document: StoredDocument) -> RollingRow:
    return RollingRow(**_without_key(document))


def conversation_from(document: StoredDocument) -> Conversation:
    return Conversation(conversation_id=document["_id"], **_without_key(document))


def message_document(archived: ArchivedMessage) -> Document:
    """The fields that the archiver writes, without `_id` and `episode_id`."""
    message = archived.message
    return {
        **message.model_dump(),
        "metadata": safe_names(message.metadata),
        "source": {"partition": archived.partition, "offset": archived.offset},
        "token_count": count_tokens(message.content),
    }


def archived_key(archived: ArchivedMessage) -> str:
    """The `_id` of a message's document."""
    message = archived.message
    return message_key(message.conversation_id, message.id, message.tenant_id)


def is_archived(document: StoredDocument) -> bool:
    """False while only the summarizer has written the document."""
    return "source" in document


def message_from(document: StoredDocument) -> ArchivedMessage:
    fields = {**document, "metadata": original_names(document["metadata"])}
    return ArchivedMessage(
        message=MessageCreated.model_validate(fields, strict=False),
        partition=document["source"]["partition"],
        offset=document["source"]["offset"],
        changed=document.get("offset", NEVER),
    )


def text_from(document: StoredDocument) -> MessageText:
    author = {"user": document["user_id"], "assistant": document.get("agent_id")}.get(document["role"])
    return MessageText(document["content"], document["role"], document["sent_at"], author)


def any_message_from(document: StoredDocument) -> ArchivedMessage | DeletedMessage:
    return DeletedMessage(document["offset"]) if document.get("deleted") else message_from(document)


def deleted_message_document(key: str, offset: int) -> Document:
    """Document that remains of a deleted message: nothing of its content."""
    return {"_id": key, "deleted": True, "offset": offset}


def deletion_key(deletion: PendingDeletion) -> str:
    """The `_id` of a pending deletion. No message has an empty id: that of a whole conversation is its own."""
    return message_key(deletion.conversation_id, deletion.message_id or "", deletion.tenant_id)


def deletion_from(document: StoredDocument) -> PendingDeletion:
    return PendingDeletion(**{name: document[name] for name in PendingDeletion.__dataclass_fields__})


def edit_document(edit: MessageEdited, offset: int) -> Document:
    """The fields that an edit sets."""
    fields = edit.changes
    if "metadata" in fields:
        fields["metadata"] = safe_names(fields["metadata"])
    if "content" in fields:
        fields["token_count"] = count_tokens(fields["content"])
    return {**fields, "offset": offset}


def message_ref_from(document: StoredDocument) -> MessageRef:
    return MessageRef(
        changed=document.get("offset", NEVER),
        key=document["_id"],
        episode_id=document.get("episode_id"),
        skipped=document.get("skip_summarization", False),
        source=(document["source"]["partition"], document["source"]["offset"]) if is_archived(document) else None,
        content=document.get("content"),
        deleted=document.get("deleted", False),
    )


def safe_names(value: Any) -> Any:
    """The value with `$`, dots and empty names escaped in every field name; `%` marks an escape.

    So MongoDB never takes a name for an operator, a path, or a part of a DBRef.
    """
    if isinstance(value, dict):
        return {name.translate(_ESCAPE_TABLE) or _EMPTY_NAME: safe_names(child) for name, child in value.items()}
    return [safe_names(child) for child in value] if isinstance(value, list) else value


def original_names(value: Any) -> Any:
    """The inverse of `safe_names`."""
    if isinstance(value, dict):
        return {_original(name): original_names(child) for name, child in value.items()}
    if isinstance(value, Int64):  # the driver's type for a plain int
        return int(value)
    return [original_names(child) for child in value] if isinstance(value, list) else value


def _original(name: str) -> str:
    if name == _EMPTY_NAME:
        return ""
    for character, escaped in reversed(_ESCAPES.items()):  # the escape character itself last
        name = name.replace(escaped, character)
    return name


def _without_key(document: StoredDocument) -> Document:
    return {name: value for name, value in document.items() if name != "_id"}
