"""OpenAI Agents SDK adapters: a session whose items are messages, and a tool that recalls other conversations."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from typing import Any, cast, get_args
from uuid import uuid4

from afterword.reading.memory import MOST_PAGE_SIZE, Memory, hits_as_text
from afterword.reading.profile import PROFILE_TOKENS
from afterword.schemas import MessageCreated
from afterword.schemas.messages import Role
from afterword.schemas.records import MAX_INPUT_BYTES, to_record
from afterword.streams.errors import AfterwordError
from afterword.streams.installed import extra_required
from afterword.writing.producer import Producer
from afterword_text.visible import without_surrogates

with extra_required("openai-agents", __name__):
    from agents import FunctionTool, SessionSettings, TResponseInputItem, function_tool
    from agents.memory.session_settings import resolve_session_limit

ITEM = "openai_item"
"""Metadata key of a message's item, without its text if the message's content has that."""
CLEARED = "openai_session_cleared"
"""Metadata key of the message that hides those before it from sessions."""
TEXTS = {"message": "content", "function_call": "arguments", "function_call_output": "output"}
"""The field with the text, by an item's type. Items of other types have no text."""
ROLES: dict[object, Role] = {**{role: role for role in get_args(Role)}, "developer": "system"}
ARCHIVED_SECONDS = 10.0
POLL_SECONDS = 0.05

Fields = dict[str, Any]


class ItemTooLarge(AfterwordError, ValueError):
    """item {number} is too large: {size} bytes as a message; at most {most} are accepted"""


class SessionTaken(AfterwordError, ValueError):
    """the conversation {conversation_id} was begun by another user or tenant"""


def recall_tool(memory: Memory, *, user_id: str, tenant_id: str | None, k: int = 5) -> FunctionTool:
    """Build the tool `recall`, which searches all conversations of this user.

    Calls raise the errors of `Memory.recall`.
    """

    @function_tool
    async def recall(query: str) -> str:
        """Search what the user said in earlier conversations.

        Args:
            query: Words or a question to search for.
        """
        return hits_as_text(await memory.recall(query, user_id=user_id, tenant_id=tenant_id, k=k))

    return recall


def with_profile(
    instructions: str, memory: Memory, *, user_id: str, tenant_id: str | None, max_tokens: int = PROFILE_TOKENS
) -> Callable[[object, object], Awaitable[str]]:
    """Build an agent's `instructions` that end with what is known about the user.

    They change less often than what `recall` finds, so a model's server can cache them. Runs raise the errors of
    `Memory.profile`.
    """

    async def known(_context: object, _agent: object) -> str:
        text = (await memory.profile(user_id, tenant_id, max_tokens)).as_text()
        return f"{instructions}\n\n{text}" if text else instructions

    return known


@dataclass(eq=False, repr=False)
class AfterwordSession:
    """A conversation's history for `Runner.run`. `memory` and `producer` must be open; all sessions can share them:

        session = AfterwordSession("chat-1", memory=memory, producer=producer, user_id="ada", tenant_id="acme")
        result = await Runner.run(agent, "Where is my lamp?", session=session)

    `session_id` is the conversation's id. Each item becomes a message: its text is the content, and the rest is
    metadata. An item without a text, such as reasoning, is archived but never summarized. Items come back as they were
    added, with later edits and deletions applied. Messages from elsewhere come back as plain items.

    Clearing a session hides its items and leaves the memory as it is, because the SDK also clears a session to compact
    it. `erase_conversation` deletes what was said.

    A message reaches the archive a moment after it was sent. Until then, this object adds what it has sent itself and
    leaves out what it has deleted; other writers' changes appear once they are archived. Create one session per run or
    request. If another process may handle the next request immediately, end the request with `archived()`.

    Calls raise StoreUnavailable, BrokerUnavailable and OtherLoop. After BrokerUnavailable, some of the items may have
    been sent.
    """

    session_id: str
    _: KW_ONLY
    memory: Memory
    producer: Producer
    user_id: str
    tenant_id: str | None
    agent_id: str | None = None
    session_settings: SessionSettings | None = None

    def __post_init__(self) -> None:
        for name in ("session_id", "user_id", "tenant_id", "agent_id"):  # as the messages that it sends have them
            value = getattr(self, name)
            setattr(self, name, value and without_surrogates(value))
        self._is_ours = False
        self._hidden: Counter[tuple[Role, str]] = Counter()
        """Texts that were just hidden: if they are added again, the memory has them already."""
        self._unseen: dict[str, MessageCreated] = {}
        """Messages that were sent but not yet seen in the archive, oldest first."""
        self._deleted: set[str] = set()

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the last `limit` items in order, or if it is None all of them, within `session_settings`.

        There may be fewer: outputs at the beginning are dropped if their calls are missing, because a model rejects
        them.
        """
        most = resolve_session_limit(limit, self.session_settings)
        if most is not None and most < 1:
            return []
        messages: list[MessageCreated] = []
        async with aclosing(self._newest()) as newest:
            async for message in newest:
                messages.append(message)
                if len(messages) == most:
                    break
        return with_calls([to_item(message) for message in reversed(messages)])

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items, and return once the broker has acknowledged all of them.

        Raises: ItemTooLarge; ValidationError for an item that does not fit into a message; SessionTaken. In these cases
        nothing is sent.
        """
        if not self._is_ours:
            owner = await self.memory.owner(self.session_id)
            if owner not in (None, (self.user_id, self.tenant_id)):
                raise SessionTaken(conversation_id=self.session_id)
            self._is_ours = True
        messages, self._hidden = [self._message(cast("Fields", item)) for item in items], Counter()
        await self._send(messages)

    async def _send(self, messages: Sequence[MessageCreated]) -> None:
        records = [to_record(message, datetime.now(UTC)) for message in messages]
        for number, record in enumerate(records, 1):
            if len(record.value) > MAX_INPUT_BYTES:
                raise ItemTooLarge(number=number, size=len(record.value), most=MAX_INPUT_BYTES)
        await self.producer.send_all(records)
        self._unseen |= {message.id: message for message in messages}

    async def pop_item(self) -> TResponseInputItem | None:
        """Delete the last item everywhere and return it; None if there is none."""
        async with aclosing(self._newest()) as newest:
            async for message in newest:
                await self.producer.delete(self.session_id, message.id, tenant_id=self.tenant_id)
                self._deleted.add(message.id)
                self._unseen.pop(message.id, None)
                return to_item(message)
        return None

    async def clear_session(self) -> None:
        """Hide all items so far from this agent's sessions. Episodes, recall and the archive keep what was said.

        Texts that the next `add_items` adds again are not summarized twice.
        """
        async with aclosing(self._newest()) as newest:
            hidden = Counter([(message.role, message.content) async for message in newest])
        if hidden:
            await self._send([self._message({}).model_copy(update={"metadata": {CLEARED: True}})])
            self._hidden = hidden

    async def erase_conversation(self) -> None:
        """Delete all messages of the conversation from everywhere, including those of other agents."""
        async with aclosing(self._newest(hides=False)) as newest:
            ids = {message.id async for message in newest}
        if ids:
            await self.producer.delete_conversation(self.session_id, tenant_id=self.tenant_id)
            self._deleted |= ids
            self._unseen.clear()

    async def archived(self, timeout: float = ARCHIVED_SECONDS) -> None:
        """Wait until the archive has everything that this object sent. Raises: TimeoutError after `timeout` seconds."""
        async with asyncio.timeout(timeout):
            while self._unseen:
                await self.get_items(1)
                await asyncio.sleep(POLL_SECONDS if self._unseen else 0)

    def _message(self, item: Fields) -> MessageCreated:
        role, content, rest = taken_apart(item)
        is_copy = self._hidden[role, content] > 0
        self._hidden[role, content] -= 1
        name = item.get("name") if item.get("type") == "function_call" else None
        return MessageCreated(
            id=str(uuid4()),  # not the item's id, because some models give the same id to all their items
            conversation_id=self.session_id,
            user_id=self.user_id,
            agent_id=self.agent_id,
            tenant_id=self.tenant_id,
            role=role,
            content=content,
            sent_at=datetime.now(UTC),
            tools=(name,) if isinstance(name, str) else (),
            skip_summarization=is_copy or not content,
            metadata={ITEM: rest},
        )

    async def _newest(self, *, hides: bool = True) -> AsyncGenerator[MessageCreated, None]:
        """Yield messages, newest first: those not yet archived, then the archived ones, down to the last clearing."""
        before: int | None = None
        owner: dict[str, Any] = {"user_id": self.user_id, "tenant_id": self.tenant_id}
        while True:
            page = await self.memory.messages(self.session_id, MOST_PAGE_SIZE, before, self.agent_id, **owner)
            messages: Sequence[MessageCreated] = page.messages if page else ()
            if before is None:
                # once a message is archived, any earlier one that is missing must have been deleted
                archived, sent = {message.id for message in messages}, list(self._unseen)
                last = max((n for n, name in enumerate(sent) if name in archived), default=-1)
                for name in sent[: last + 1]:
                    del self._unseen[name]
                messages = [*reversed(self._unseen.values()), *messages]
            for message in messages:
                if hides and message.metadata.get(CLEARED):
                    return
                if message.id not in self._deleted:
                    yield message
            if page is None or page.next_before is None:
                return
            before = page.next_before


def taken_apart(item: Fields) -> tuple[Role, str, Fields]:
    """Return an item's role and text, and the item without the text, or unchanged if the text is in several places.

    Only messages, calls and outputs have one.
    """
    kind, named = item.get("type", "message"), item.get("role")
    role: Role = "tool" if kind == "function_call_output" else "assistant"
    if kind == "message":
        if not isinstance(named, str) or named not in ROLES:
            return role, "", item
        role = ROLES[named]
    field = TEXTS.get(kind, "") if isinstance(kind, str) else ""
    match item.get(field):
        case str(text) if text:
            return role, text, {**item, field: None}
        case [{"text": str(text)} as part] if text:
            return role, text, {**item, field: [{**part, "text": None}]}
        case [*parts]:
            return role, _texts(parts), item
    return role, "", item


def with_calls(items: Sequence[TResponseInputItem]) -> list[TResponseInputItem]:
    """Drop outputs and approvals whose calls are not among the items before them."""
    called: set[object] = set()
    kept = []
    for item in items:
        fields = cast("Fields", item)
        ids = [fields[name] for name in ("call_id", "approval_request_id", "id") if fields.get(name)]
        if not str(fields.get("type", "")).endswith(("_output", "_response")):
            called.update(ids)
        elif called.isdisjoint(ids[:1]):
            continue
        kept.append(item)
    return kept


def to_item(message: MessageCreated) -> TResponseInputItem:
    """Return a message's item with the message's current content, or a plain item if it has none."""
    rest = message.metadata.get(ITEM)
    item = _put_together(rest, message) if isinstance(rest, dict) else None
    if item is None:
        item = {"role": message.role, "content": message.content}
        if message.role == "tool":  # the id of its call is unknown
            item = {"role": "user", "content": f"Result: {message.content}"}
    return cast("TResponseInputItem", item)


def _put_together(rest: Fields, message: MessageCreated) -> Fields | None:
    """Rebuild an item; None if `taken_apart` did not make it, or if its text was edited and cannot be put back."""
    kind, text = str(rest.get("type", "message")), message.content
    if message.skip_summarization and not text:
        return rest  # it never had a text
    field = TEXTS.get(kind, "")
    if kind == "message" and ROLES.get(str(rest.get("role"))) != message.role:
        return None
    match rest.get(field, ""):
        case None:
            return {**rest, field: text}
        case [{"text": None} as part]:
            return {**rest, field: [{**part, "text": text}]}
        case [*parts] if _texts(parts) == text:
            return rest
    return None if text or kind == "message" else rest


def _texts(parts: Sequence[object]) -> str:
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    return "\n".join(text for text in texts if isinstance(text, str))
