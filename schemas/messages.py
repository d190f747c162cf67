"""Input events of the topic `messages`."""

from math import isfinite
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from afterword.schemas.base import Id, Model, PartyId, TextList, Time

MESSAGE_CREATED = "message.created"
CONVERSATION_FLUSH = "conversation.flush"
MESSAGE_EDITED = "message.edited"
MESSAGE_DELETED = "message.deleted"
CONVERSATION_DELETED = "conversation.deleted"

Role = Literal["user", "assistant", "system", "tool"]

METADATA_MAX_DEPTH = 32
"""Levels of nesting that can be stored (MongoDB's own limit is 100 for the whole document)."""
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def storable(metadata: dict[str, Any]) -> dict[str, Any]:
    """Reject what a document store or JSON cannot hold.

    Deep nesting, integers beyond 64 bits, NUL in a name; NaN and infinity, which the parser makes of `NaN` and `1e400`.
    """
    level: list[Any] = [metadata]
    for _ in range(METADATA_MAX_DEPTH):
        level = [child for node in level for child in _children(node)]
        if not level:
            return metadata
    raise ValueError(f"nested deeper than {METADATA_MAX_DEPTH} levels")


def _children(node: Any) -> list[Any]:
    if isinstance(node, dict):
        if any("\0" in name for name in node):
            raise ValueError("a field name contains NUL")
        return list(node.values())
    if isinstance(node, int) and not INT64_MIN <= node <= INT64_MAX:
        raise ValueError("an integer has more than 64 bits")
    if isinstance(node, float) and not isfinite(node):
        raise ValueError("a number is not finite")
    return node if isinstance(node, list) else []


class MessageCreated(Model):
    """Chat message, unique by `id` within its conversation; changed by `message.edited` and `message.deleted` only."""

    id: Id
    """Message id, unique within the conversation; a repeat is dropped as a duplicate."""
    conversation_id: Id
    """Equal to the record's key; unique across tenants."""
    user_id: PartyId
    """User of the conversation, on assistant messages too."""
    agent_id: PartyId | None = None
    """Agent that the message belongs to."""
    tenant_id: PartyId | None = None
    """Tenant, the same on all messages of a conversation; a message of another tenant is dead-lettered."""
    role: Role
    """Author's role."""
    content: str
    """The text; may be empty."""
    sent_at: Time | None = None
    """Event time; when absent, decoding fills in the record's timestamp."""
    is_continuation: bool | None = None
    """`false`: the topic shifts with this message; `null`: unknown."""
    sentiment: Annotated[float, Field(ge=-1, le=1)] | None = None
    """Sentiment of the user: −1 is bad, 1 is good; null: unknown."""
    flows: TextList = ()
    """Flows activated with this message."""
    tools: TextList = ()
    """Tools invoked with this message."""
    skip_summarization: bool = False
    """`true`: archive the message, but never summarize it or count it for a trigger."""
    metadata: Annotated[dict[str, Any], AfterValidator(storable)] = Field(default_factory=dict)
    """Archived unchanged; the key `afterword` overrides settings, see the triggers."""

    def edited(self, edit: "MessageEdited") -> "MessageCreated":
        """The message as it is after the edit."""
        return self.model_copy(update=edit.changes)


class ConversationFlush(Model):
    """Request to close everything pending of a conversation now."""

    conversation_id: Id
    """Equal to the record's key."""
    agent_id: PartyId | None = None
    """Agent whose pending messages are flushed, where episodes are kept by agent; null: all agents."""
    tenant_id: PartyId | None = None
    """Tenant of the conversation's messages; another one is a dead letter."""
    reason: str | None = None
    """Reason for people to read."""


EDITABLE = ("content", "metadata", "sentiment", "flows", "tools", "skip_summarization")
"""Fields of a message that an edit may replace."""


class MessageEdited(Model):
    """Replaces fields of an earlier message of the conversation; absent fields stay as they are.

    The order of the records decides: an edit before its message is a dead letter, one after its deletion changes
    nothing.
    """

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": [name]} for name in EDITABLE]})

    id: Id
    """Id of the message."""
    conversation_id: Id
    """Equal to the record's key."""
    tenant_id: PartyId | None = None
    """Tenant of the message; with another one the edit is a dead letter."""
    edited_at: Time | None = None
    """Time for people to read: the order of the records decides, not this."""
    content: str | None = None
    """The new text; null: it stays."""
    metadata: Annotated[dict[str, Any], AfterValidator(storable)] | None = None
    """Replaces all of the metadata; the key `afterword` has no effect here; null: it stays."""
    sentiment: Annotated[float, Field(ge=-1, le=1)] | None = None
    """The new sentiment; null, if it is given: unknown."""
    flows: TextList | None = None
    """Replaces the list; null: it stays."""
    tools: TextList | None = None
    """Replaces the list; null: it stays."""
    skip_summarization: bool | None = None
    """`true`: the message leaves its episode and stays in the archive; `false` brings nothing back."""

    @model_validator(mode="after")
    def changes_something(self) -> Self:
        if not self.model_fields_set.intersection(EDITABLE):
            raise ValueError(f"must have at least one of {', '.join(EDITABLE)}")
        return self

    @property
    def changes(self) -> dict[str, Any]:
        """The fields to replace, with their values."""
        given = {name: getattr(self, name) for name in EDITABLE if getattr(self, name) is not None}
        if "sentiment" in self.model_fields_set:
            given["sentiment"] = self.sentiment
        if not given.get("skip_summarization"):
            given.pop("skip_summarization", None)
        return given


class MessageDeleted(Model):
    """Takes a message out of everything: archive, episode, summary, index. Deleting it again changes nothing."""

    id: Id
    """Id of the message; it is not used again."""
    conversation_id: Id
    """Equal to the record's key."""
    tenant_id: PartyId | None = None
    """Tenant of the message; with another one the deletion is a dead letter."""
    deleted_at: Time | None = None
    """Time for people to read: the order of the records decides, not this."""
    reason: str | None = None
    """Reason for people to read."""


class ConversationDeleted(Model):
    """Takes all messages of a conversation so far out of everything, with episodes and summaries.

    Later messages start it afresh; its ordinals go on, so that no episode id is used twice.
    """

    conversation_id: Id
    """Equal to the record's key."""
    tenant_id: PartyId | None = None
    """Tenant of the conversation's messages; with another one the deletion is a dead letter."""
    reason: str | None = None
    """Reason for people to read."""


InputEvent = MessageCreated | ConversationFlush | MessageEdited | MessageDeleted | ConversationDeleted
"""An event of the topic `messages`."""
