"""Input events of the topic `messages`."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from afterword.schemas.base import Id, Model, PartyId, Time

MESSAGE_CREATED = "message.created"
CONVERSATION_FLUSH = "conversation.flush"

Role = Literal["user", "assistant", "system", "tool"]

METADATA_MAX_DEPTH = 32
"""Levels of nesting that can be stored (MongoDB's own limit is 100 for the whole document)."""
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def storable(metadata: dict[str, Any]) -> dict[str, Any]:
    """Reject what a document store cannot hold: deep nesting, integers beyond 64 bits, NUL in a name."""
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
    """Chat message; immutable once produced, unique by `id` within its conversation."""

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
    flows: tuple[str, ...] = ()
    """Flows activated with this message."""
    tools: tuple[str, ...] = ()
    """Tools invoked with this message."""
    skip_summarization: bool = False
    """`true`: archive the message, but never summarize it or count it for a trigger."""
    metadata: Annotated[dict[str, Any], AfterValidator(storable)] = Field(default_factory=dict)
    """Archived unchanged; the key `afterword` overrides settings, see the triggers."""


class ConversationFlush(Model):
    """Request to close everything pending of a conversation now."""

    conversation_id: Id
    """Equal to the record's key."""
    agent_id: PartyId | None = None
    """Where episodes are kept by agent: only what is pending of this one; null: of all."""
    tenant_id: PartyId | None = None
    """That of the conversation's messages; another one is a dead letter."""
    reason: str | None = None
    """For people."""
