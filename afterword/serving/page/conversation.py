"""Screens of one conversation: its messages beside what was made of them, and the context that an agent loads."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field
from starlette.responses import HTMLResponse

from afterword.reading.memory import MAX_TOKENS, ConversationDetails
from afterword.schemas import MessageCreated
from afterword.schemas.base import Id
from afterword.serving.page.rendering import (
    PageRoute,
    figures_in,
    fragment,
    html_page,
    refreshing_page,
)
from afterword.serving.page.visitor import ReadingVisitor
from afterword.serving.principal import Principal
from afterword.serving.problems import existing
from afterword.serving.reading import MOST_CONTEXT_TOKENS, ByAgent
from afterword.serving.requests import services_of
from afterword.streams.stores.episodes import StoredEpisode

MESSAGES_ON_PAGE = 50

router = APIRouter(route_class=PageRoute, include_in_schema=False)


class WholeQuery(ByAgent):
    id: Id


class ConversationQuery(WholeQuery):
    sent: bool = False
    """Whether a change was just sent."""
    before: str | None = Field(None, max_length=2000)
    episodes_before: int | None = Field(None, ge=1, le=2**53)
    version: str | None = Field(None, max_length=64)
    """Version of the thread that the page is showing, in requests for the thread alone."""


class ShownContextQuery(WholeQuery):
    max_tokens: int = Field(MAX_TOKENS, ge=1, le=MOST_CONTEXT_TOKENS)


class MessageQuery(WholeQuery):
    message_id: Id


@dataclass
class MessageRun:
    """Consecutive messages of one episode, or of none."""

    ordinal: int | None
    episode: StoredEpisode | None = None
    """The episode, which is shown beside its first run."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Figures in the episode's messages, with the anchors of the messages."""
    messages: list[MessageCreated] = field(default_factory=list)


def runs_of(messages: Sequence[MessageCreated], episodes: Sequence[StoredEpisode]) -> list[MessageRun]:
    """Group messages, given oldest first, by the episodes they belong to."""
    of = {message_id: episode for episode in episodes for message_id in episode.summary.message_ids}
    known = {message.id: message for message in messages}
    runs: list[MessageRun] = []
    shown: set[int] = set()
    for message in messages:
        episode = of.get(message.id)
        ordinal = episode.ordinal if episode else None
        if not runs or runs[-1].ordinal != ordinal:
            runs.append(MessageRun(ordinal))
        if episode and episode.ordinal not in shown:
            shown.add(episode.ordinal)
            runs[-1].episode = episode
            runs[-1].sources = figures_in(known[one] for one in episode.summary.message_ids if one in known)
        runs[-1].messages.append(message)
    return runs


@router.get("/conversation")
async def show_conversation(
    request: Request, principal: ReadingVisitor, wanted: Annotated[ConversationQuery, Query()]
) -> Response:
    """Show a conversation. Its messages and episodes refresh themselves."""
    details = await seen_conversation(request, principal, wanted.id, wanted.agent_id)
    thread = await thread_of(request, principal, details, wanted)
    templates = "conversation.html", "conversation_thread.html"
    given: dict[str, Any] = {"details": details, "wanted": wanted, "budget": MAX_TOKENS}
    return refreshing_page(request, *templates, principal, thread, wanted.version, **given)


async def thread_of(
    request: Request,
    principal: Principal,
    details: ConversationDetails,
    wanted: ConversationQuery,
    may_write: bool = True,
) -> str:
    """Render the page's messages and the episodes they belong to."""
    memory, owner = services_of(request).memory, principal.owner._asdict()
    found = await memory.messages(wanted.id, MESSAGES_ON_PAGE, wanted.before, wanted.agent_id, **owner)
    messages = existing("conversation", found)
    # each message is in at most one episode, so this many episodes are enough
    episodes = await memory.episodes(wanted.id, MESSAGES_ON_PAGE + 1, wanted.episodes_before, wanted.agent_id, **owner)
    runs = runs_of(messages.messages[::-1], episodes.episodes)
    ordinals = [run.ordinal for run in runs if run.ordinal]
    # in a thread, because rendering the Markdown of 50 messages may take seconds
    return await asyncio.to_thread(
        fragment,
        "conversation_runs.html",
        runs=runs,
        details=details,
        next_before=messages.next_before,
        next_episodes=min(ordinals) + 1 if ordinals else wanted.episodes_before,
        may_write=may_write and principal.may("write"),
    )


@router.get("/conversation/context")
async def show_context(
    request: Request, principal: ReadingVisitor, wanted: Annotated[ShownContextQuery, Query()]
) -> HTMLResponse:
    """Show what an agent would load within this many tokens."""
    memory = services_of(request).memory
    context = await memory.context(
        wanted.id, max_tokens=wanted.max_tokens, agent_id=wanted.agent_id, **principal.owner._asdict()
    )
    found = existing("conversation", context)
    return html_page(request, "conversation_context.html", principal, context=found, max_tokens=wanted.max_tokens)


@router.get("/conversation/message")
async def show_message(
    request: Request, principal: ReadingVisitor, wanted: Annotated[MessageQuery, Query()]
) -> HTMLResponse:
    """Show the whole text of a message."""
    message = await seen_message(request, principal, wanted)
    return html_page(request, "message_text.html", principal, message=message)


async def seen_message(request: Request, principal: Principal, wanted: MessageQuery) -> MessageCreated:
    """Find a message that the visitor may see. Raises: NotFound."""
    memory = services_of(request).memory
    found = await memory.find_messages(wanted.id, [wanted.message_id], **principal.owner._asdict())
    return existing("message", next(iter(found), None))


async def seen_conversation(
    request: Request, principal: Principal, conversation_id: str, agent_id: str | None = None
) -> ConversationDetails:
    """Find a conversation that the visitor may see. Raises: NotFound."""
    memory = services_of(request).memory
    return existing("conversation", await memory.conversation(conversation_id, agent_id, **principal.owner._asdict()))
