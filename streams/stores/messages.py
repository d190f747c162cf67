"""Archived chat messages: their records, and the protocol of their store."""

from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial, reduce
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol, TypeVar

from pydantic import TypeAdapter

from afterword.schemas import ConversationAssigned, ConversationDeleted, MessageCreated, MessageDeleted, MessageEdited
from afterword.schemas.base import message_key, unescape, user_digest
from afterword.schemas.messages import MessageFields, Move, Role, moved, owner
from afterword.streams.stores.bookkeeping import Records
from afterword.streams.stores.episodes import id_prefix

NEVER = -1
"""An offset that comes before every log offset."""
MOST_READ = 40
"""Maximum number of messages that are read together."""
ARCHIVERS = ("metadata", "is_continuation")
"""Fields of a message that the summarizer does not have."""


@dataclass(frozen=True)
class ArchivedMessage:
    """A message with its record's partition and offset; decoding has set `message.sent_at`."""

    message: MessageCreated
    partition: int
    offset: int
    changed: int = NEVER
    """Offset of its last edit, not counting edits of the metadata alone."""


class MessageText(NamedTuple):
    """The text of a message: the beginning of its content, who wrote it, and when."""

    content: str
    role: Role
    sent_at: datetime
    author: str | None = None
    """The user, or the agent whose answer it is; None if nobody is named."""
    name: str | None = None
    """Display name of who wrote it."""
    user_id: str = ""
    """The message's user; for an answer, the user to whom it was given."""


class PendingMessage(NamedTuple):
    """A message that is in no stored episode yet."""

    conversation_id: str
    id: str
    agent_id: str | None
    reply_to: str | None
    offset: int
    text: MessageText

    @property
    def reply(self) -> MessageFields:
        """What tells whether a later answer replaces it."""
        fields: dict[str, Any] = {"agent_id": self.agent_id, "author": self.text.name, "role": self.text.role}
        return MessageFields.model_construct(id=self.id, reply_to=self.reply_to, **fields)


@dataclass(frozen=True)
class DeletedMessage:
    """The tombstone of a deleted message, so that a replay of its record does not bring it back."""

    changed: int
    """Offset of the deletion."""


@dataclass(frozen=True)
class ArchiveChange:
    """An edit, a deletion or an assignment, with its record's partition and offset."""

    event: MessageEdited | MessageDeleted | ConversationDeleted | ConversationAssigned
    partition: int
    offset: int


S = TypeVar("S", ArchivedMessage, DeletedMessage, ArchivedMessage | DeletedMessage)


class Whose(NamedTuple):
    """The user and tenant of a message."""

    user_id: str
    tenant_id: str | None


@dataclass(frozen=True)
class PresentUsers:
    """The users to whom a conversation's messages were assigned."""

    offset: int = NEVER
    """Log offset of the last assignment, or of the last deletion of the whole conversation."""
    moves: Sequence[Move] = ()
    """The assignments, in log order."""
    names: Mapping[str, str] = field(default_factory=dict)
    """By digest, the ids of users who have given away nothing since they were given it. No other ids are kept."""

    def of(self, user_id: str, offset: int) -> str:
        """Return to whom a message belongs now that this user sent at this log offset."""
        return self._named(self.moves, user_id, offset)

    def since(self, user_id: str, offset: int) -> str:
        """Return to whom a message or an episode of this offset belongs now that is stored as this user's.

        The first of the later assignments may have been applied to it, up to the last one after which this user can
        have had anything.
        """
        later = [move for move in self.moves if move.offset > offset]
        user, applied = user_digest(user_id), 0
        without = set[str]()  # who has given everything away
        for number, move in enumerate(later, start=1):
            without = without | {move.giver} if move.giver in without else (without | {move.giver}) - {move.taker}
            applied = applied if user in without else number
        return self._named(later[applied:], user_id, offset)

    def _named(self, moves: Sequence[Move], user_id: str, offset: int) -> str:
        return self.names.get(owner(moves, user_digest(user_id), offset), user_id) if moves else user_id

    def moved(self, event: ConversationAssigned, offset: int) -> "PresentUsers":
        """Return this after one more assignment."""
        moves = moved(self.moves, event, offset)
        known = {**self.names, moves[-1].taker: event.user_id}
        takers = {move.taker for move in moves} - {moves[-1].giver}
        return PresentUsers(offset, moves, {name: user for name, user in known.items() if name in takers})

    def forgetting(self, user_id: str) -> "PresentUsers":
        """Return this without the user's id."""
        return replace(self, names={name: user for name, user in self.names.items() if user != user_id})

    def merged(self, other: "PresentUsers") -> "PresentUsers":
        """Return the later one of two archives' users; of equally late ones, those that neither has forgotten."""
        if self.offset != other.offset:
            return max(self, other, key=lambda present: present.offset)
        return replace(self, names={name: user for name, user in self.names.items() if name in other.names})

    def own(self, archived: ArchivedMessage) -> ArchivedMessage:
        """Return a message of the topic with its present user."""
        return _of_user(archived, self.of(archived.message.user_id, archived.offset))

    def own_stored(self, state: S) -> S:
        """Return a message of the archive with its present user; nobody has a deleted one."""
        if isinstance(state, DeletedMessage):
            return state
        return _of_user(state, self.since(state.message.user_id, state.offset))


def _of_user(archived: ArchivedMessage, user_id: str) -> ArchivedMessage:
    message = archived.message
    if user_id == message.user_id:
        return archived
    return replace(archived, message=message.model_copy(update={"user_id": user_id}))


PRESENT_USERS: TypeAdapter[PresentUsers] = TypeAdapter(PresentUsers)


@dataclass(frozen=True)
class Kept:
    """A message as the archive keeps it, with the fields that decide about later writes."""

    state: ArchivedMessage | DeletedMessage
    is_whole: bool = True
    """False until the archiver has written the message; until then it lacks the fields in ARCHIVERS."""
    metadata_offset: int = NEVER
    """Offset of the last edit of its metadata."""
    said: str = ""
    """Offset and digest of the text of the last record that brought the message, once an edit may have replaced it."""


class StoredMessage(NamedTuple):
    """The data about a message, or its tombstone, that a comparison of all messages needs."""

    key: str
    """`message_key(conversation_id, id, tenant_id)`."""
    episode_id: str | None
    content: str | None
    """None for a tombstone, which also has no position."""
    partition: int | None
    offset: int | None
    changed: int
    """Offset of its last edit or its deletion."""


@dataclass(frozen=True)
class Selection:
    """Selects archived messages of one conversation and tenant; tenant None selects those without a tenant."""

    conversation_id: str
    tenant_id: str | None
    agent_id: str | None = None
    """Only messages of this agent and those that name no agent; None means all."""
    unsummarised: bool = False
    """Only messages that are in no stored episode: of the agent if one is given, else of the conversation."""
    user_id: str | None = None
    """Only messages of this user; None means all."""
    before: int | None = None
    """Only messages before this log offset; None means all."""

    def conditions(self) -> dict[str, Any]:
        """Return the Conditions that a message must meet; `agent_scopes` are those that it is in an episode of."""
        of_agent = self.agent_id is not None
        asked: dict[str, Any] = {"agent_id or none": self.agent_id, "user_id": self.user_id, "offset <": self.before}
        wanted: dict[str, Any] = {"conversation_id": self.conversation_id, "tenant_id": self.tenant_id}
        wanted |= {name: value for name, value in asked.items() if value is not None}
        if not self.unsummarised:
            return wanted
        scope = id_prefix(self.conversation_id, self.agent_id).removesuffix(":")
        return wanted | ({"agent_scopes !=": scope} if of_agent else {"episode_id": None})


@dataclass(frozen=True)
class Counted:
    """Counts that the store computes without loading messages."""

    messages: int = 0
    tokens: int = 0
    """The number of tokens in their contents."""
    skipped: int = 0
    """The number of `messages` with `skip_summarization`."""


def key_of(archived: ArchivedMessage) -> str:
    """Return the message's `message_key`."""
    message = archived.message
    return message_key(message.conversation_id, message.id, message.tenant_id)


def assignments_key(conversation_id: str, tenant_id: str | None) -> str:
    """Return the key of a conversation's PresentUsers."""
    return message_key(conversation_id, "", tenant_id)


def agent_scope(episode_id: str) -> str | None:
    """Return `conversation/agent` from the id of an agent's episode; None for a conversation's episode."""
    scope = episode_id.rpartition(":")[0]
    return scope if "/" in scope else None


Decide = Callable[[str, Kept | None], Kept | None]
"""Given a key and what is kept under it, returns what to keep; None if there is no message to keep."""


class MessageArchive(Protocol):
    """The message archive, which keeps the last change of each message.

    Archiver and summarizer write the same messages, in any order and repeatedly. Each write reads what is kept,
    decides, and replaces it unless it has changed since. All methods raise StoreUnavailable.
    """

    records: Records
    """Has the PresentUsers of each conversation of which messages were assigned."""

    async def put_many(self, messages: Sequence[ArchivedMessage], *, repeats_edit: bool = True) -> None:
        """Archive messages in log order; for one that exists, add only what the summarizer did not have.

        With `repeats_edit`, a later message with the same id and another text edits the first one. A deleted message
        stays deleted.
        """
        given = defaultdict[str, list[ArchivedMessage]](list)
        for archived in await self.of_present_users(messages):
            given[key_of(archived)].append(archived)
        when = partial(when_archived, repeats_edit=repeats_edit)
        await self._revise(list(given), lambda key, known: reduce(when, given[key], known))

    async def assign(self, episode_id: str, messages: Sequence[ArchivedMessage], keys: Sequence[str] = ()) -> None:
        """Set the episode on its core messages, and archive those that are missing or older in the archive.

        A message that the archive has may be given by its key alone. The given ones have their present users.
        """
        given = {key_of(archived): archived for archived in messages}
        if given:
            await self._revise(list(given), lambda key, known: when_assigned(known, given[key]))
        await self._label(episode_id, list({*given, *keys}))

    async def copy(self, states: Mapping[str, ArchivedMessage | DeletedMessage]) -> None:
        """Store messages and tombstones of another archive, by key, with their present users here.

        A tombstone stays, and a message that was changed later.
        """
        said = [state for state in states.values() if isinstance(state, ArchivedMessage)]
        given = {**states, **{key_of(one): one for one in await self.of_present_users(said, PresentUsers.own_stored)}}

        def decide(key: str, known: Kept | None) -> Kept:
            state = given[key]
            if known is None or isinstance(state, DeletedMessage):
                return Kept(state)
            if isinstance(known.state, DeletedMessage):
                return known
            is_older = known.state.changed < state.changed
            return replace(known, state=state if is_older else _of_user(known.state, state.message.user_id))

        await self._revise(list(states), decide)

    async def copy_assignments(self, copied: Mapping[str, str]) -> None:
        """Store the records of another archive's assignments, by key. A later one that is stored stays."""
        for key, text in copied.items():
            await self._reassign(key, PRESENT_USERS.validate_json(text).merged)

    async def change(self, change: ArchiveChange) -> None:
        """Edit a message, replace it, or all messages of a conversation so far, with tombstones, or assign messages.

        This does nothing for a message that is not archived, is deleted, has another tenant, came later, or has a later
        change.
        """
        event, users_key = change.event, assignments_key(change.event.conversation_id, change.event.tenant_id)
        if isinstance(event, ConversationAssigned):
            after = await self._reassign(users_key, lambda users: users.moved(event, change.offset), change.offset)
            whose = Selection(event.conversation_id, event.tenant_id, user_id=event.from_user_id, before=change.offset)
            seen = list[str]()
            while (keys := await self._keys(whose)) and keys != seen:  # assigned messages are no longer selected
                await self._revise(keys, lambda _, known: known and replace(known, state=after.own_stored(known.state)))
                seen = keys
            return
        if not isinstance(event, ConversationDeleted):
            key = message_key(event.conversation_id, event.id, event.tenant_id)
            await self._revise([key], lambda _, known: when_changed(known, change))
            return
        earlier = Selection(event.conversation_id, event.tenant_id, before=change.offset)
        while keys := await self._keys(earlier):  # tombstones are no longer selected
            await self._revise(keys, lambda _, known: when_changed(known, change))
        await self._reassign(users_key, lambda _: PresentUsers(change.offset), change.offset)

    async def present_users(self, conversation_id: str, tenant_id: str | None) -> PresentUsers:
        """Return the users to whom a conversation's messages were assigned."""
        stored = await self.records.read("assignments", assignments_key(conversation_id, tenant_id))
        return PRESENT_USERS.validate_json(stored) if stored else PresentUsers()

    async def forget_user(self, user_id: str, tenant_id: str | None) -> None:
        """Forget that messages of the tenant's conversations were assigned to this user, who has none any longer.

        A conversation whose messages and episodes have expired still has its assignments.
        """
        for key in await self.records.read_all("assignments"):
            if key == assignments_key(unescape(key.partition(":")[0]), tenant_id):
                await self._reassign(key, lambda users: users.forgetting(user_id))

    async def of_present_users(
        self,
        messages: Sequence[ArchivedMessage],
        own: Callable[[PresentUsers, ArchivedMessage], ArchivedMessage] = PresentUsers.own,
    ) -> Sequence[ArchivedMessage]:
        """Return the messages, each with the user to whom it was assigned."""
        keys = [assignments_key(one.message.conversation_id, one.message.tenant_id) for one in messages]
        stored = await self.records.read_some("assignments", list(dict.fromkeys(keys))) if messages else {}
        present = {key: PRESENT_USERS.validate_json(text) for key, text in stored.items()}
        return [own(present[key], one) if key in present else one for key, one in zip(keys, messages, strict=True)]

    async def _reassign(
        self, key: str, change: Callable[[PresentUsers], PresentUsers], offset: int | None = None
    ) -> PresentUsers:
        """Store what `change` makes of the users, unless a record of this offset or a later one did; return them."""
        while True:
            stored = await self.records.read("assignments", key)
            known = PRESENT_USERS.validate_json(stored) if stored else PresentUsers()
            made = change(known)
            if (offset is not None and known.offset >= offset) or not (stored or made.moves):
                return known
            text = PRESENT_USERS.dump_json(made).decode()
            if text == stored or await self.records.replace("assignments", key, stored, text):
                return made

    async def _revise(self, keys: Sequence[str], decide: Decide) -> None:
        """Store what `decide` returns for each message. `decide` may be called repeatedly."""
        ...

    async def _label(self, episode_id: str, keys: Sequence[str]) -> None:
        """Set the episode on messages."""
        ...

    async def _keys(self, selection: Selection) -> list[str]:
        """Return the keys of a page of the selected messages."""
        ...

    async def newest(self, selection: Selection) -> AsyncGenerator[ArchivedMessage, None]:
        """Yield the selected messages, newest first, page by page; a reader that stops early closes the generator."""
        while page := await self._page(selection):
            for archived in page:
                yield archived
            selection = replace(selection, before=page[-1].offset)

    async def _page(self, selection: Selection) -> list[ArchivedMessage]:
        """Return the newest selected messages: a page of at most MOST_READ, of up to 1 MB each."""
        ...

    async def count(self, selection: Selection) -> Counted: ...

    async def total(self) -> int:
        """Return the number of all archived messages, without tombstones."""
        ...

    async def conversations_of(self, user_id: str, tenant_id: str | None, after: str | None, limit: int) -> list[str]:
        """Return a page of the ids of conversations that have messages of exactly this user and tenant.

        It begins after the id `after`, in the order of the ids' UTF-8. Tenant None means messages without a tenant.
        """
        ...

    async def owners(self, conversation_ids: Sequence[str]) -> dict[str, Whose]:
        """Return whose each conversation's message with the lowest offset is, by the conversation's id."""
        ...

    async def get_many(self, keys: Sequence[str]) -> dict[str, ArchivedMessage]:
        """Return archived messages by their `message_key`; missing ones, and those of another tenant, are left out."""
        states = await self.states(keys)
        return {key: state for key, state in states.items() if isinstance(state, ArchivedMessage)}

    async def texts(self, keys: Sequence[str], characters: int) -> dict[str, MessageText]:
        """Return the texts of the messages that `get_many` returns, each up to this number of characters."""
        ...

    async def pending(
        self, user_id: str, tenant_id: str | None, limit: int, characters: int, since: datetime | None = None
    ) -> list[PendingMessage]:
        """Return a user's messages, and the answers to them, that are in no stored episode, the newest first.

        Messages that are never summarized, and those that were sent before `since`, are left out. Each text has up to
        this number of characters.
        """
        ...

    async def states(
        self, keys: Sequence[str], *, with_metadata: bool = True
    ) -> dict[str, ArchivedMessage | DeletedMessage]:
        """Return messages like `get_many`, including deleted ones.

        Without metadata, the messages of an episode take no more memory than its texts.
        """
        ...

    async def expire(self, before: datetime, limit: int) -> int:
        """Remove messages that were sent before this time, the oldest first; return how many, at most `limit`."""
        ...

    def all_messages(self) -> AsyncIterator[StoredMessage]:
        """Iterate over every message and tombstone, in no particular order."""
        ...


def when_archived(known: Kept | None, given: ArchivedMessage, *, repeats_edit: bool = True) -> Kept:
    """Decide what to keep when the archiver brings a message. If an earlier one has its id, the earlier one is kept;
    with `repeats_edit`, it is edited if the same writer sent it, and its text was another when it last came.
    """
    if known is None:
        return Kept(given)
    if isinstance(known.state, DeletedMessage):
        return known
    said, text = f"{given.offset} {_digest(given)}", given.message
    if not known.is_whole:
        has_changed = known.state.changed != NEVER
        state = _completed(known.state, text) if has_changed else given
        return replace(known, state=state, is_whole=True, said=said if has_changed else "")
    offset, digest = (known.said or _said(known.state)).split()
    if given.offset <= int(offset):
        return known
    earlier = known.state.message
    if earlier.skip_summarization and not text.skip_summarization and known.state.changed == NEVER:
        return Kept(given)  # the segmenter has skipped the earlier one, so this is the first for it
    is_seen = earlier.skip_summarization or not text.skip_summarization  # the segmenter skips it otherwise
    is_edit = repeats_edit and is_seen and earlier.writer == text.writer
    if not is_edit or said.endswith(digest):
        return known
    edited = when_changed(known, ArchiveChange(text.as_edit, given.partition, given.offset))
    return replace(edited or known, said=said)


def when_assigned(known: Kept | None, given: ArchivedMessage) -> Kept:
    """Decide what to keep when the summarizer brings a message of an episode."""
    if known is None:
        return Kept(given, is_whole=False)
    if isinstance(known.state, ArchivedMessage) and known.state.changed < given.changed:
        said = known.said or _said(known.state)
        return replace(known, state=_completed(given, known.state.message), said=said if known.is_whole else "")
    return known


def when_changed(known: Kept | None, change: ArchiveChange) -> Kept | None:
    """Decide what to keep when a message is edited or deleted. If two edits change a field, the later one wins.

    An edit without effect is not recorded, so that nothing is made again because of it.
    """
    event, offset = change.event, change.offset
    if known is None or isinstance(known.state, DeletedMessage) or known.state.offset >= offset:
        return known
    if not isinstance(event, MessageEdited):
        return Kept(DeletedMessage(offset))
    state, fields = known.state, {name: value for name, value in event.changes.items() if name != "metadata"}
    has_effect = any(getattr(state.message, name) != value for name, value in fields.items())
    # a repeated edit has one if the summarizer had a shortened text
    if has_effect and state.changed <= offset:
        state = replace(state, message=state.message.model_copy(update=fields), changed=offset)
    said = (known.said or _said(known.state)) if known.is_whole else ""
    if event.metadata is None or known.metadata_offset > offset:
        return replace(known, state=state, said=said)
    message = state.message.model_copy(update={"metadata": event.metadata})
    return Kept(replace(state, message=message), metadata_offset=offset, said=said)


def _said(state: ArchivedMessage) -> str:
    return f"{state.offset} {_digest(state)}"


def _digest(state: ArchivedMessage) -> str:
    return blake2b(state.message.content.encode(), digest_size=8).hexdigest()


def _completed(archived: ArchivedMessage, by: MessageCreated) -> ArchivedMessage:
    """Copy the fields that only the archiver knows from `by`."""
    fields = {name: getattr(by, name) for name in ARCHIVERS}
    return replace(archived, message=archived.message.model_copy(update=fields))
