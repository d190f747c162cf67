"""Conversion of records to MongoDB's documents and back, without loss."""

from collections.abc import Mapping
from typing import Any

from bson.int64 import Int64

from afterword.schemas import MessageCreated, SummaryCreated
from afterword.schemas.ids import message_key, row_id
from afterword.streams.stores.episodes import Conversation, EpisodeRef, RollingRow, StoredEpisode
from afterword.streams.stores.messages import ArchivedMessage, MessageRef
from afterword.streams.tokens import count_tokens

Document = dict[str, Any]
Found = Mapping[str, Any]

EPISODE_REF_FIELDS = ("episode_id", "revision", "conversation_id", "ordinal", "fingerprint", "message_ids")
MESSAGE_REF_FIELDS = ("episode_id", "source", "skip_summarization")

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
    }


def episode_from(document: Found) -> StoredEpisode:
    return StoredEpisode(
        # not strict: BSON has only arrays where the models have tuples
        summary=SummaryCreated.model_validate(document, strict=False),
        fingerprint=document["fingerprint"],
        close_reason=document["close_reason"],
        overlap_ids=tuple(document["overlap_ids"]),
    )


def episode_ref_from(document: Found) -> EpisodeRef:
    fields = {name: document[name] for name in EPISODE_REF_FIELDS}
    made_from = document.get("episode_revision") or document["revision"]
    return EpisodeRef(**fields | {"message_ids": tuple(document["message_ids"]), "made_from": made_from})


def row_document(row: RollingRow) -> Document:
    return {**vars(row), "_id": row_id(row.conversation_id, row.row)}


def row_from(document: Found) -> RollingRow:
    return RollingRow(**_without_id(document))


def conversation_from(document: Found) -> Conversation:
    return Conversation(conversation_id=document["_id"], **_without_id(document))


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
    return message_key(archived.message.conversation_id, archived.message.id)


def message_from(document: Found) -> ArchivedMessage:
    fields = {**document, "metadata": original_names(document["metadata"])}
    return ArchivedMessage(
        message=MessageCreated.model_validate(fields, strict=False),
        partition=document["source"]["partition"],
        offset=document["source"]["offset"],
    )


def message_ref_from(document: Found) -> MessageRef:
    return MessageRef(
        key=document["_id"],
        episode_id=document.get("episode_id"),
        archived="source" in document,
        skipped=document.get("skip_summarization", False),
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


def _without_id(document: Found) -> Document:
    return {name: value for name, value in document.items() if name != "_id"}
