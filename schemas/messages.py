"""What producers put on the topic `messages`."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from afterword.schemas.base import Id, Model, PartyId, Time

MESSAGE_CREATED = "message.created"
CONVERSATION_FLUSH = "conversation.flush"

Role = Literal["user", "assistant", "system", "tool"]

METADATA_MAX_DEPTH = 32
"""Levels; what is nested deeper cannot be stored (MongoDB's own limit is 100 for the whole document)."""
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def storable(metadata: dict[str, Any]) -> dict[str, Any]:
    """Refuses what a document store cannot hold: depth, integers past 64 bits, NUL in a name."""
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
    return node if isinstance(node, list) else []


class MessageCreated(Model):
    """One chat message; immutable once produced, unique by `id` within its conversation."""

    id: Id
    """Unique within the conversation; a repeat is a duplicate and is dropped."""
    conversation_id: Id
    """Equal to the record's key; unique across tenants."""
    user_id: PartyId
    """Whose conversation it is; on a message of the assistant too."""
    agent_id: PartyId | None = None
    """The agent that it belongs to."""
    tenant_id: PartyId | None = None
    """The same on all messages of a conversation; another one is a dead letter."""
    role: Role
    """Who speaks."""
    content: str
    """The text; may be empty."""
    sent_at: Time | None = None
    """Event time; when absent, decoding fills in the record's timestamp."""
    is_continuation: bool | None = None
    """false: the topic shifts with this message; null: unknown."""
    sentiment: Annotated[float, Field(ge=-1, le=1)] | None = None
    """Of the user: −1 is bad, 1 is good; null: unknown."""
    flows: tuple[str, ...] = ()
    """Activated with this message."""
    tools: tuple[str, ...] = ()
    """Invoked with this message."""
    skip_summarization: bool = False
    """Archived, never summarised, never counted by a trigger."""
    metadata: Annotated[dict[str, Any], AfterValidator(storable)] = Field(default_factory=dict)
    """Archived as it is; `afterword` in it overrides settings, see the triggers."""


class ConversationFlush(Model):
    """Closes all that is pending of a conversation now."""

    conversation_id: Id
    """Equal to the record's key."""
    agent_id: PartyId | None = None
    """Where episodes are kept by agent: only what is pending of this one; null: of all."""
    reason: str | None = None
    """For people."""
