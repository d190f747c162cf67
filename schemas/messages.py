"""Input events on the topic `messages`."""

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from afterword.schemas.base import Id, Model, PartyId, TextList, Time, user_digest

MESSAGE_CREATED = "message.created"
CONVERSATION_FLUSH = "conversation.flush"
MESSAGE_EDITED = "message.edited"
MESSAGE_DELETED = "message.deleted"
CONVERSATION_DELETED = "conversation.deleted"
CONVERSATION_ASSIGNED = "conversation.assigned"

Role = Literal["user", "assistant", "system", "tool"]

METADATA_MAX_DEPTH = 32
"""Maximum nesting of stored metadata."""
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def storable(metadata: dict[str, Any]) -> dict[str, Any]:
    """Reject metadata that JSON or a document store cannot hold.

    That is deep nesting, integers beyond 64 bits, NUL in a name, and the NaN and infinity that Python reads from
    `NaN` and `1e400`.
    """
    level: list[Any] = [metadata]
    for _ in range(METADATA_MAX_DEPTH):
        if any("\0" in name for node in level if isinstance(node, dict) for name in node):
            raise ValueError("a field name contains NUL")
        values = [value for node in level for value in (node.values() if isinstance(node, dict) else node)]
        if any(isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX for value in values):
            raise ValueError("an integer has more than 64 bits")
        if any(isinstance(value, float) and not isfinite(value) for value in values):
            raise ValueError("a number is not finite")
        level = [value for value in values if isinstance(value, dict | list)]
        if not level:
            return metadata
    raise ValueError(f"nested deeper than {METADATA_MAX_DEPTH} levels")


class MessageFields(Model):
    """The fields of a message that its episode carries, with everything a summary may need."""

    id: Id
    """Message id, unique within the conversation. A repeat with the same text is dropped as a duplicate; one with
    another text edits the message, unless somebody else wrote it."""
    user_id: PartyId
    """User of the conversation, also on assistant messages."""
    agent_id: PartyId | None = None
    """Agent that the message belongs to."""
    role: Role
    """Author's role."""
    author: PartyId | None = None
    """Display name of the author, useful if several people take part."""
    content: str
    """The text; may be empty."""
    reply_to: Id | None = None
    """Id of the message that an assistant's message answers. Of several answers to it by the same agent and author, the
    last one counts."""
    sent_at: Time | None = None
    """Event time. If it is absent, decoding fills in the record's timestamp."""
    sentiment: Annotated[float, Field(ge=-1, le=1)] | None = None
    """Sentiment of the user, from −1 (bad) to 1 (good); null if unknown."""
    flows: TextList = ()
    """Flows that were activated with this message."""
    tools: TextList = ()
    """Tools that were invoked with this message."""


class MessageCreated(MessageFields):
    """A chat message, unique by `id` within its conversation. An edit, a deletion or another text changes it."""

    conversation_id: Id
    """Equal to the record's key; unique across tenants."""
    tenant_id: PartyId | None = None
    """Tenant, the same on all messages of a conversation. A message of another tenant is dead-lettered."""
    is_continuation: bool | None = None
    """`false` if this message starts a new topic; null if unknown."""
    skip_summarization: bool = False
    """`true` to archive the message but never summarize it or count it toward a trigger."""
    metadata: Annotated[dict[str, Any], AfterValidator(storable)] = Field(default_factory=dict)
    """Archived unchanged. The key `afterword` overrides trigger settings."""

    def edited(self, edit: "MessageEdited") -> "MessageCreated":
        return self.model_copy(update=edit.changes)

    @property
    def writer(self) -> tuple[str, str, str]:
        """Role and ids of who wrote it, and for whom. A message with the id of somebody else's is no edit of it."""
        return self.role, self.user_id, "" if self.role == "user" else self.agent_id or ""

    @property
    def as_edit(self) -> "MessageEdited":
        """The edit that this record stands for if an earlier one has its id."""
        ids = {name: getattr(self, name) for name in ("id", "conversation_id", "tenant_id")}
        return MessageEdited(**ids, **{name: getattr(self, name) for name in EDITABLE})


def replaced_answers(messages: Iterable[MessageFields]) -> set[str]:
    """Return the ids of messages, given in log order, that a later answer to the same message replaces.

    What an agent did and wrote further in reply to a replaced answer is replaced with it; a user's reply stays.
    """
    of_agents = [message for message in messages if message.reply_to and message.role in ("assistant", "tool")]
    answers = {(one.reply_to, one.agent_id, one.author): one.id for one in of_agents if one.role == "assistant"}
    replaced = set[str]()
    for message in of_agents:
        last = answers.get((message.reply_to, message.agent_id, message.author), message.id)
        if message.reply_to in replaced or (message.role == "assistant" and message.id != last):
            replaced.add(message.id)
    return replaced


class ConversationChange(Model):
    """What every event but a message has."""

    conversation_id: Id
    """Equal to the record's key."""
    tenant_id: PartyId | None = None
    """Tenant of the conversation's messages. A record that names another one is dead-lettered."""
    reason: str | None = None
    """Free-text reason."""


class ConversationFlush(ConversationChange):
    """A request to close a conversation's pending messages now."""

    agent_id: PartyId | None = None
    """If episodes are kept per agent, the agent whose pending messages to close; null for all agents."""


class Replacements(Model):
    """The fields of a message that an edit may replace. Absent fields are unchanged."""

    content: str | None = None
    """The new text; null leaves it unchanged."""
    metadata: Annotated[dict[str, Any], AfterValidator(storable)] | None = None
    """Replaces the whole metadata; null leaves it unchanged. The key `afterword` has no effect here."""
    sentiment: Annotated[float, Field(ge=-1, le=1)] | None = None
    """The new sentiment. An explicit null makes it unknown."""
    flows: TextList | None = None
    """Replaces the list; null leaves it unchanged."""
    tools: TextList | None = None
    """Replaces the list; null leaves it unchanged."""
    skip_summarization: bool | None = None
    """`true` removes the message from its episode but keeps it in the archive; `false` does not bring it back."""


EDITABLE = tuple(Replacements.model_fields)


class MessageChanges(Replacements):
    """The fields of a message to replace, at least one. Absent fields are unchanged."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": [name]} for name in EDITABLE]})

    edited_at: Time | None = None
    """Informational time; the order of the records decides."""

    @model_validator(mode="after")
    def changes_something(self) -> Self:
        if not self.model_fields_set.intersection(EDITABLE):
            raise ValueError(f"must have at least one of {', '.join(EDITABLE)}")
        return self

    @property
    def changes(self) -> dict[str, Any]:
        """Return the fields to replace, with their new values."""
        given = {name: getattr(self, name) for name in EDITABLE if getattr(self, name) is not None}
        if "sentiment" in self.model_fields_set:
            given["sentiment"] = self.sentiment
        if not given.get("skip_summarization"):
            given.pop("skip_summarization", None)
        return given


class MessageEdited(MessageChanges, ConversationChange):
    """Replaces fields of an earlier message of the conversation. Absent fields are unchanged.

    The order of the records decides: an edit that precedes its message is dead-lettered, and one that follows the
    message's deletion has no effect.
    """

    id: Id
    """Id of the message."""


class MessageDeleted(ConversationChange):
    """Removes a message from the archive, its episode, its summary and the index. Deleting it again has no effect."""

    id: Id
    """Id of the message. It must not be reused."""
    deleted_at: Time | None = None
    """Informational time; the order of the records decides."""


class ConversationDeleted(ConversationChange):
    """Removes all messages of a conversation so far, with their episodes and summaries.

    Later messages start the conversation afresh. Its ordinals continue, so that no episode id is used twice.
    """


class ConversationAssigned(ConversationChange):
    """Gives one user's messages in a conversation to another user, such as those of a guest who has signed in.

    Episodes, facts and the search index follow. Messages of the earlier user that come later belong to the other user
    too, until the conversation is deleted.
    """

    from_user_id: Id
    """User whose messages are given away."""
    user_id: Id
    """User to whom they belong from now on."""

    @model_validator(mode="after")
    def names_two_users(self) -> Self:
        if self.from_user_id == self.user_id:
            raise ValueError("from_user_id and user_id must be different users")
        return self


InputEvent = (
    MessageCreated | ConversationFlush | MessageEdited | MessageDeleted | ConversationDeleted | ConversationAssigned
)
"""Any event on the topic `messages`."""
INPUT_TYPES: dict[str, type[InputEvent]] = {
    MESSAGE_CREATED: MessageCreated,
    CONVERSATION_FLUSH: ConversationFlush,
    MESSAGE_EDITED: MessageEdited,
    MESSAGE_DELETED: MessageDeleted,
    CONVERSATION_DELETED: ConversationDeleted,
    CONVERSATION_ASSIGNED: ConversationAssigned,
}


MOST_MOVES = 100
"""A conversation remembers this many assignments."""


class Move(NamedTuple):
    """An assignment: its log offset, and the digests of both users."""

    offset: int
    giver: str
    taker: str


def moved(moves: Sequence[Move], event: ConversationAssigned, offset: int) -> tuple[Move, ...]:
    """Return the assignments after one more."""
    return (*moves, Move(offset, user_digest(event.from_user_id), user_digest(event.user_id)))[-MOST_MOVES:]


def owner(moves: Sequence[Move], writer: str, offset: int) -> str:
    """Return the user to whom a message belongs now that `writer` sent at this log offset."""
    present = writer
    for move in moves:
        is_before = move.offset < offset
        if move.giver == present or (is_before and move.giver == writer):
            present = move.taker
        elif is_before and move.taker == writer:
            present = writer
    return present


def givers(moves: Sequence[Move], user: str) -> set[str]:
    """Return the users whose messages, at least some, were assigned to this user and still belong to them."""
    return {move.giver for n, move in enumerate(moves) if owner(moves[n:], move.giver, -1) == user} - {user}
