"""An agent's tools: what a model may ask one user's memory, and the answers.

The principal determines tenant and user; no tool takes them as an argument. Texts in conversations may have been
written by anyone. They are returned as data: in structured content, and fenced as quotations in the text for the model.
"""

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

from pydantic import Field, ValidationError

from afterword.reading.memory import (
    MAX_TOKENS,
    MOST_PAGE_SIZE,
    NOTHING_KNOWN,
    PAGE_SIZE,
    ConversationPage,
    Memory,
    MessageInContext,
    hit_lines,
)
from afterword.reading.profile import PROFILE_TOKENS
from afterword.schemas import ConversationFlush, MessageDeleted
from afterword.schemas.base import ANYONE, Id, Model, Time
from afterword.schemas.messages import Role
from afterword.serving.outbox import Outbox, require_own, write_change, write_events
from afterword.serving.problems import NotPermitted, RequestInvalid, existing, problems_of
from afterword.serving.reading import (
    LARGE_TOKENS,
    MOST_CONTEXT_TOKENS,
    ContextAnswer,
    EpisodeDocument,
    ProfileAnswer,
    RecallAnswer,
    WithNeighbours,
    known_context,
)
from afterword.serving.requests import EpisodeName, Parameters, Permission, Principal
from afterword.serving.writing import NewMessage, owned_message
from afterword.streams.errors import StoreUnavailable
from afterword.streams.settings import Serve, TimeZone
from afterword.streams.stores.index import MIN_COVERAGE, MOST_HITS, MOST_QUERY_CHARACTERS
from afterword.streams.tasks import FairTurns
from afterword_text.fences import cleaned, indented, quotation, speaker_of
from afterword_text.visible import printable, shown

HEADERS_OF_CLIENTS = ["Mcp-Method", "Mcp-Name", "Mcp-Protocol-Version"]
"""Headers that scripts of other origins may send."""

ARCHIVED_SECONDS, LOOK_SECONDS = 1.0, 0.02
"""How long `remember` waits until the archive has its message, which a model's next call may ask for, and how often it
looks."""


ConversationName = Annotated[Id, Field(description="Id of the conversation.")]
MessageName = Annotated[Id, Field(description="Id of the message.")]


class RecallArguments(Parameters):
    query: Annotated[str, Field(min_length=1, max_length=10 * MOST_QUERY_CHARACTERS)]
    """Text to search for, in any words."""
    k: int = Field(5, ge=1, le=MOST_HITS)
    """Maximum number of hits."""
    since: Time | None = None
    """Only episodes that began at this time or later; RFC 3339 with an offset."""
    until: Time | None = None
    """Only episodes that ended before this time; RFC 3339 with an offset."""
    min_coverage: float = Field(MIN_COVERAGE, ge=0, le=1)
    """Share of the query that a hit must cover; if none does, the answer is that nothing is known."""
    time_zone: TimeZone | None = None
    """The user's time zone, such as Europe/Berlin, in which days are counted and shown."""


class ContextArguments(Parameters):
    conversation_id: ConversationName
    max_tokens: int = Field(MAX_TOKENS, ge=1, le=MOST_CONTEXT_TOKENS)
    """Upper limit for the texts of the answer, in tokens. The messages' ids come on top."""
    time_zone: TimeZone | None = None
    """The user's time zone, such as Europe/Berlin, in which times are shown."""


class ProfileArguments(Parameters):
    max_tokens: int = Field(PROFILE_TOKENS, ge=1, le=MOST_CONTEXT_TOKENS)
    """Upper limit for the facts, in tokens."""
    time_zone: TimeZone | None = None
    """The user's time zone, such as Europe/Berlin, in which days are shown."""


class ConversationsArguments(Parameters):
    limit: int = Field(PAGE_SIZE, ge=1, le=MOST_PAGE_SIZE)
    """Maximum number of conversations."""


class EpisodeArguments(Parameters):
    episode_id: EpisodeName
    """Id of the episode, as the other tools show it."""


class RememberArguments(Parameters):
    conversation_id: ConversationName
    role: Role
    """Speaker: `user` for what the person said, `assistant` for what you said."""
    content: str
    """The message, word for word."""


class FlushArguments(Parameters):
    conversation_id: ConversationName


class ForgetArguments(FlushArguments):
    message_id: MessageName


class MessageArguments(WithNeighbours, ForgetArguments): ...


class ChangeAccepted(Model):
    """A change that Kafka acknowledged."""

    conversation_id: str
    message_id: str | None = None


class ToolAnswer(NamedTuple):
    """A tool's result. `document` is for programs; `text` is for the model, with quotations fenced."""

    document: Model
    text: str


@dataclass(frozen=True)
class Toolbox:
    """The tools, acting for one principal."""

    memory: Memory
    outbox: Outbox
    principal: Principal
    turns: FairTurns = field(default_factory=FairTurns)
    """Turns by key, for large contexts."""

    @property
    def _owner(self) -> dict[str, Any]:
        return self.principal.owner._asdict()

    async def recall(self, given: RecallArguments) -> ToolAnswer:
        """Search earlier conversations with this user, best match first.

        Use it whenever something may have come up before. `get_message` returns the messages around a hit's message,
        and `get_episode` returns more about its episode.
        """
        hits = await self.memory.recall(
            given.query,
            k=given.k,
            started_after=given.since,
            ended_before=given.until,
            min_coverage=given.min_coverage,
            time_zone=given.time_zone,
            **self._owner,
        )
        lines: list[str] = []
        for hit in hits:
            lines += hit_lines(hit, _visible, lambda match: _ids([match.message_id], match.conversation_id))
            place = "" if hit.pending else f", episode {id_shown(hit.episode_id)}"
            lines.append(f"  conversation {id_shown(hit.conversation_id)}{place}")
        return ToolAnswer(RecallAnswer(hits=tuple(hits), by_words=self.memory.by_words), quoted(lines))

    async def get_profile(self, given: ProfileArguments) -> ToolAnswer:
        """Show what is known about this user: who they are, what they must avoid, what they like and plan.

        Use it at the beginning of a conversation. Each fact ends with the message that states it.
        """
        profile = await self.memory.profile(max_tokens=given.max_tokens, time_zone=given.time_zone, **self._owner)
        lines = profile.lines(_visible, lambda source: _ids(source.message_ids, source.conversation_id))
        return ToolAnswer(ProfileAnswer.of(profile), quoted(lines))

    async def get_context(self, given: ContextArguments) -> ToolAnswer:
        """Load a conversation to continue it: all of it, or a summary and the last messages, in `max_tokens` tokens."""
        async with self.turns.if_large(self.principal.key_id, given.max_tokens > LARGE_TOKENS):
            context = await known_context(self.memory, self.outbox.begun, self.principal.owner, **given.model_dump())
        lines = [context.as_text(_visible, lambda message: _ids([message.id]))] if context.events else []
        return ToolAnswer(ContextAnswer.of(context), quoted(lines))

    async def get_message(self, given: MessageArguments) -> ToolAnswer:
        """Read a message together with the messages before and after it."""
        message = await self.memory.message(given.conversation_id, given.message_id, given.neighbours, **self._owner)
        seen = existing("message", message)
        lines = (
            f"{each.sent_at:%Y-%m-%d %H:%M} UTC, {speaker_of(each.role, said(each.author or ''))}: {said(each.content)}"
            f"{_ids([each.id])}"
            for each in (*seen.before, seen.message, *seen.after)
        )
        return ToolAnswer(seen, quoted(lines))

    async def list_conversations(self, given: ConversationsArguments) -> ToolAnswer:
        """List this user's conversations, the most recently summarized first."""
        page = await self.memory.conversations(limit=given.limit, **self._owner)
        lines = (
            f"conversation {id_shown(entry.conversation_id)} ({entry.message_count} messages in "
            f"{entry.episode_count} episodes, summarized {entry.summarized_at:%Y-%m-%d %H:%M} UTC): {said(entry.title)}"
            for entry in page.conversations
        )
        return ToolAnswer(page, quoted(lines))

    async def get_episode(self, given: EpisodeArguments) -> ToolAnswer:
        """Show an episode, a section of a conversation about one subject: its title, long summary and times."""
        episode = EpisodeDocument.of(existing("episode", await self.memory.episode(given.episode_id, **self._owner)))
        times = f"{episode.started_at:%Y-%m-%d %H:%M} to {episode.ended_at:%Y-%m-%d %H:%M} UTC"
        line = f"episode {id_shown(episode.episode_id)} ({times}): {said(f'{episode.title}. {episode.long_summary}')}"
        return ToolAnswer(episode, quoted([line]))

    async def remember(self, given: RememberArguments) -> ToolAnswer:
        """Add a message to a conversation of this user, or start a new one. It can then be recalled."""
        named = {"id": str(uuid.uuid4()), **given.model_dump()}
        message = owned_message(NewMessage.model_construct(**named), self.principal)
        owner = self.principal.owner
        unknown = await require_own(self.memory, owner, {given.conversation_id}, new=True)
        await write_events(self.outbox, [message], owner, unknown)
        archived = partial(self.memory.message, given.conversation_id, message.id, 0, **self._owner)
        with suppress(TimeoutError, StoreUnavailable):  # it is kept, and archived later
            async with asyncio.timeout(ARCHIVED_SECONDS):
                while not await archived():  # noqa: ASYNC110 – another process archives it
                    await asyncio.sleep(LOOK_SECONDS)
        text = f"Kept as message {message.id}."
        return ToolAnswer(ChangeAccepted(conversation_id=given.conversation_id, message_id=message.id), text)

    async def flush(self, given: FlushArguments) -> ToolAnswer:
        """Close the conversation's current episode, so that it is summarized now and can be recalled shortly."""
        event = ConversationFlush(conversation_id=given.conversation_id, tenant_id=self.principal.tenant(None))
        await write_change(self.memory, self.outbox, self.principal.owner, event)
        text = "The flush was accepted. The summary will be ready in a moment."
        return ToolAnswer(ChangeAccepted(**given.model_dump()), text)

    async def forget_message(self, given: ForgetArguments) -> ToolAnswer:
        """Permanently delete a message of this user from the archive, its episode, the summaries and the search."""
        tenant_id = self.principal.tenant(None)
        event = MessageDeleted(id=given.message_id, conversation_id=given.conversation_id, tenant_id=tenant_id)
        await write_change(self.memory, self.outbox, self.principal.owner, event)
        text = "The deletion was accepted. The message will be gone in a moment."
        return ToolAnswer(ChangeAccepted(**given.model_dump()), text)


G = TypeVar("G", bound=Parameters)


@dataclass(frozen=True)
class AgentTool(Generic[G]):
    """A tool as offered to a model. `call` is a method of Toolbox, and its docstring is the tool's description."""

    title: str
    call: Callable[[Toolbox, G], Awaitable[ToolAnswer]]
    arguments: type[G]
    answer: type[Model]
    scope: Permission = "read"
    destructive: bool = False

    @property
    def name(self) -> str:
        return self.call.__name__


TOOLS: tuple[AgentTool[Any], ...] = (
    AgentTool("Search the memory", Toolbox.recall, RecallArguments, RecallAnswer),
    AgentTool("Show what is known of the user", Toolbox.get_profile, ProfileArguments, ProfileAnswer),
    AgentTool("Load a conversation", Toolbox.get_context, ContextArguments, ContextAnswer),
    AgentTool("Read a message", Toolbox.get_message, MessageArguments, MessageInContext),
    AgentTool("List conversations", Toolbox.list_conversations, ConversationsArguments, ConversationPage),
    AgentTool("Show an episode", Toolbox.get_episode, EpisodeArguments, EpisodeDocument),
    AgentTool("Remember a message", Toolbox.remember, RememberArguments, ChangeAccepted, "write"),
    AgentTool("Summarize now", Toolbox.flush, FlushArguments, ChangeAccepted, "write"),
    AgentTool("Forget a message", Toolbox.forget_message, ForgetArguments, ChangeAccepted, "write", True),
)


def agent_principal(principal: Principal, settings: Serve) -> Principal:
    """Return the principal. Without authentication it is bound to the user and the tenant in the settings."""
    if settings.auth != "none":
        return principal
    return replace(principal, user_id=settings.mcp_user or ANYONE, tenant_id=settings.mcp_tenant or None)


async def call_tool(toolbox: Toolbox, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
    """Call a tool. Raises: AfterwordError."""
    tool = existing("tool", next((tool for tool in TOOLS if tool.name == name), None))
    if not toolbox.principal.may(tool.scope):
        raise NotPermitted(problem=f"the key lacks the scope {tool.scope}")
    if toolbox.principal.user_id is ANYONE:  # otherwise a model could choose the user
        problem = "an agent may only read one user's memory: bind its key to a user, or set AFTERWORD_SERVE__MCP_USER"
        raise NotPermitted(problem=problem)
    try:
        fields = tool.arguments.model_fields  # null means the default, as does an empty string in an optional field
        unset = {name: (None,) if field.is_required() else (None, "") for name, field in fields.items()}
        stated = {name: value for name, value in arguments.items() if value not in unset.get(name, ())}
        given = tool.arguments.model_validate_json(json.dumps(stated))
    except ValidationError as error:
        raise RequestInvalid(problems=problems_of(error)) from None
    return await tool.call(toolbox, given)


def quoted(lines: Iterable[str]) -> str:
    """Fence quotations as data, or say that there is nothing."""
    text = "\n".join(lines)
    return quotation(text) if text else NOTHING_KNOWN


def said(text: str) -> str:
    """Embed foreign text in one of our lines, so that no line of it passes for ours and nothing in it is hidden."""
    return indented(_visible(text))


def _visible(text: str) -> str:
    return printable(cleaned(text))


def _ids(message_ids: Iterable[str], conversation_id: str | None = None) -> str:
    """Name messages at the end of a line, so that a model which reads only text can read more, or forget them."""
    of_conversation = f" of conversation {id_shown(conversation_id)}" if conversation_id else ""
    return f" (message {', '.join(map(id_shown, message_ids))}{of_conversation})"


def id_shown(name: str) -> str:
    """Return a foreign id on one line. The structured content has it unchanged."""
    return shown(cleaned(name))
