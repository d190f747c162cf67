"""Screens of conversations: the latest ones, a search, and a single one with its episodes and forms to change it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import Field
from starlette.responses import HTMLResponse, RedirectResponse

from afterword.reading.memory import MAX_TOKENS, MOST_PAGE_SIZE, ConversationDetails, Memory
from afterword.schemas import MessageCreated
from afterword.schemas.base import ANYONE, Id
from afterword.schemas.messages import MESSAGE_CREATED
from afterword.schemas.records import CE_TYPE, header
from afterword.serving.page.rendering import PageRoute, fragment, html_page, refreshing_page, see_other, word_finder
from afterword.serving.page.visitor import (
    ReadingVisitor,
    Submitted,
    SubmittedText,
    WritingVisitor,
    form_body,
    only_value,
)
from afterword.serving.problems import RequestInvalid, existing
from afterword.serving.reading import LARGE_TOKENS, MOST_CONTEXT_TOKENS, ByAgent, known_context
from afterword.serving.requests import Caller, Principal, SharedRead, Wanted
from afterword.serving.writing import (
    AssignBody,
    ChangeBody,
    DeletionQuery,
    FlushBody,
    assign_conversation,
    delete_conversation,
    delete_message,
    edit_message,
    flush_conversation,
)
from afterword.streams.kafka.log_reader import batches, open_log
from afterword.streams.settings import Kafka
from afterword.streams.stores.episodes import StoredEpisode
from afterword.streams.stores.index import MOST_QUERY_CHARACTERS, Recalled

SIZES = 12, 24, 48, 96
"""Numbers of conversations on the first page, and on those after it. Few, because each is read from Kafka apart."""
RECORDS_PER_CONVERSATION = 10
"""How many records of each partition are read for each conversation to list."""
LOOKUPS_PER_CONVERSATION = 20
"""The owners of at most this many conversations are looked up for each one to list."""
LATEST_SECONDS = 2.0
"""The latest conversations are read again once they are this old."""
AT_A_TIME = 6
"""Number of conversations looked up in the stores at once."""
HITS = 10
MOST_SEARCHED = 30
"""Users whose conversations are searched if none is named, at about 20 ms each."""
MESSAGES_ON_PAGE = 50

router = APIRouter(route_class=PageRoute, include_in_schema=False)


class ByConversation(ByAgent):
    id: Id


class ThreadQuery(ByConversation):
    sent: bool = False
    """Whether a change was just sent."""
    count: int = Field(MESSAGES_ON_PAGE, ge=1, le=MOST_PAGE_SIZE)
    """How many messages to show, the newest ones before `before`."""
    before: int | None = Field(None, ge=0, le=2**53)
    episodes_before: int | None = Field(None, ge=1, le=2**53)
    message_id: Id | None = None
    """A message to show: the page around it, unless it is among the newest."""
    version: str | None = Field(None, max_length=64)
    """Version of the thread that the page is showing, in requests for the thread alone."""


class ShownContextQuery(ByConversation):
    max_tokens: int = Field(MAX_TOKENS, ge=1, le=MOST_CONTEXT_TOKENS)
    version: str | None = Field(None, max_length=64)
    """Version of the context that the page is showing, in requests for the context alone."""


class ShownMessageQuery(ByConversation):
    message_id: Id


class ChangeQuery(ByConversation):
    message_id: Id | None = None
    """The message to change; absent for the conversation."""


@router.get("/conversations")
async def show_conversations(caller: ReadingVisitor) -> HTMLResponse:
    """Show the conversations with the latest messages."""
    return html_page(caller.request, "conversations.html")


async def latest_conversations(kafka: Kafka, count: int) -> list[str]:
    """Return conversation ids, most recent message first.

    They come from the end of the messages topic. Their text comes from the archive, because a record's own text may
    have to be redacted, edited or deleted. Raises: BrokerUnavailable, KafkaError, TopicStalled.
    """
    last: dict[str, int] = {}
    async with open_log(kafka) as reading, reading.reader(kafka.messages_topic) as consumer:
        partitions = list(consumer.assignment())
        first, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
        for where in partitions:
            consumer.seek(where, max(first[where], ends[where] - count * RECORDS_PER_CONVERSATION))
        async for batch in batches(consumer, ends):
            for record in batch:
                # an invalid record names no conversation that the archive has
                if record.key and header(record.headers, CE_TYPE) in (MESSAGE_CREATED, None):
                    name = record.key.decode(errors="replace")
                    last[name] = max(record.timestamp, last.get(name, 0))
            await asyncio.sleep(0)  # let others use the event loop
    return sorted(last, key=lambda name: -last[name])


@router.get("/conversations/recent")
async def show_recent_conversations(
    caller: ReadingVisitor, count: Annotated[int, Query(ge=1, le=SIZES[-1])] = SIZES[0], live: bool = False
) -> HTMLResponse:
    """List the visitor's conversations by their last message, even before any summary: `count`, rounded up.

    With `live`, the list refreshes itself and has no further pages.
    """
    latest: SharedRead[int, list[str]] = caller.request.app.state.latest
    count = min(size for size in SIZES if size >= count)
    services, owner = caller.services, caller.owner._asdict()
    memory, names = services.memory, (await latest.get(count))[: LOOKUPS_PER_CONVERSATION * count]

    async def look_up(conversation_id: str) -> tuple[ConversationDetails, MessageCreated] | None:
        details = await memory.conversation(conversation_id, **owner)
        page = await memory.messages(conversation_id, 1, **owner) if details else None
        return (details, page.messages[0]) if details and page and page.messages else None

    recent: list[tuple[ConversationDetails, MessageCreated]] = []
    async with services.turns.of(caller.key_id):
        ids = await memory.owned(names, caller.owner)  # most of them may belong to other people
        for start in range(0, len(ids), AT_A_TIME):
            recent += [entry for entry in await asyncio.gather(*map(look_up, ids[start : start + AT_A_TIME])) if entry]
            if len(recent) >= count:
                break
    recent = recent[:count]
    is_last = live or len(recent) < count or count == SIZES[-1]
    more = None if is_last else 2 * count
    return html_page(caller.request, "conversations_recent.html", recent=recent, more=more)


@router.get("/search")
async def show_search(caller: ReadingVisitor) -> HTMLResponse:
    """Show the form. What people search for is in forms, and in addresses only behind the `#`, which no server sees."""
    return await _search_page(caller)


@router.post("/search")
async def search(caller: ReadingVisitor, fields: Submitted) -> HTMLResponse:
    """Show the hits of one user's conversations or, to admins who name no user, of the users last active."""
    asked = {name: only_value(fields, name, 256) for name in ("user_id", "tenant_id") if name in fields}
    query = only_value(fields, "query", MOST_QUERY_CHARACTERS).strip()
    services, tenant_id = caller.services, caller.tenant(asked.get("tenant_id") or None)
    is_everybodys = _may_search_all(caller) and not asked.get("user_id")
    users = await _last_active(caller.memory, tenant_id) if is_everybodys else []
    names = users[:MOST_SEARCHED] if is_everybodys else [caller.user(asked.get("user_id") or None)]
    hits: dict[str, tuple[Recalled, str]] = {}
    async with services.turns.if_large(caller.key_id, is_everybodys):
        for name in names if query else ():
            for hit in await services.memory.recall(query, k=HITS, user_id=name, tenant_id=tenant_id):
                known = hits.get(hit.episode_id)
                if known is None or len(hit.matches) > len(known[0].matches):
                    hits[hit.episode_id] = hit, name if is_everybodys else ""
    best = sorted(hits.values(), key=lambda each: -each[0].score)[:HITS]
    given = {"hits": best, "left_out": len(users) > MOST_SEARCHED, "find": word_finder(query), "query": query}
    return await _search_page(caller, **given, **asked)


async def _search_page(caller: Caller, **given: Any) -> HTMLResponse:
    given = {"query": "", "user_id": "", "tenant_id": "", "hits": None, **given}
    if caller.request.headers.get("hx-request"):
        template = "search_hits.html"
    else:
        template = "search.html"
        given["all_users"] = _may_search_all(caller)
        tenant_id = caller.tenant(given["tenant_id"] or None)
        given["users"] = await _last_active(caller.memory, tenant_id) if given["all_users"] else []
    # in a thread, because stemming long texts takes up to half a second
    return await asyncio.to_thread(html_page, caller.request, template, **given)


def _may_search_all(principal: Principal) -> bool:
    return principal.may("admin") and principal.user_id is ANYONE


async def _last_active(memory: Memory, tenant_id: str | None) -> list[str]:
    page = await memory.users(tenant_id=tenant_id, limit=MOST_SEARCHED + 1)
    return [user.user_id for user in page.users if user.user_id]


@dataclass(frozen=True)
class MessageRun:
    """Consecutive messages of one episode, or of none."""

    ordinal: int | None
    episode: StoredEpisode | None
    """The episode, which is shown beside its first run."""
    messages: list[MessageCreated]


def runs_of(messages: Sequence[MessageCreated], episodes: Sequence[StoredEpisode]) -> list[MessageRun]:
    """Group messages, given oldest first, by the episodes they belong to."""
    ordinals = {message_id: episode.ordinal for episode in episodes for message_id in episode.summary.message_ids}
    unseen: dict[int | None, StoredEpisode] = {episode.ordinal: episode for episode in episodes}
    runs = groupby(messages, lambda message: ordinals.get(message.id))
    return [MessageRun(ordinal, unseen.pop(ordinal, None), list(found)) for ordinal, found in runs]


@router.get("/conversation")
async def show_conversation(caller: ReadingVisitor, wanted: Wanted[ThreadQuery]) -> Response:
    """Show a conversation. Its messages and episodes refresh themselves."""
    details = await seen_conversation(caller, wanted.id, wanted.agent_id)
    memory, owner = caller.memory, caller.owner._asdict()
    if wanted.message_id and (
        pages := await memory.pages_around(wanted.id, wanted.message_id, wanted.agent_id, **owner)
    ):
        newest = await memory.messages(wanted.id, wanted.count, agent_id=wanted.agent_id, **owner)
        if newest and wanted.message_id not in [message.id for message in newest.messages]:
            wanted = wanted.model_copy(update=dict(zip(("before", "episodes_before"), pages, strict=True)))
    thread = await thread_of(caller, details, wanted)
    templates = "conversation.html", "conversation_thread.html"
    given: dict[str, Any] = {"details": details, "wanted": wanted, "may_write": caller.may("write")}
    given["any_user"] = caller.user_id is ANYONE
    return refreshing_page(caller.request, *templates, thread, wanted.version, **given)


async def thread_of(caller: Caller, details: ConversationDetails, wanted: ThreadQuery) -> str:
    """Render the page's messages and the episodes they belong to."""
    memory, owner = caller.memory, caller.owner._asdict()
    page = await memory.messages(wanted.id, wanted.count, wanted.before, wanted.agent_id, **owner)
    messages = existing("conversation", page)
    # each message is in at most one episode, so this many episodes are enough
    episodes = await memory.episodes(wanted.id, wanted.count + 1, wanted.episodes_before, wanted.agent_id, **owner)
    runs = runs_of(messages.messages[::-1], episodes.episodes)
    # what is shown grows, so that all of it is refreshed; only beyond its limit there are pages
    grows = len(messages.messages) == wanted.count < MOST_PAGE_SIZE
    older: dict[str, int | None] = {"before": wanted.before, "episodes_before": wanted.episodes_before}
    if grows:
        older["count"] = min(2 * wanted.count, MOST_PAGE_SIZE)
    else:
        ordinals = [run.ordinal for run in runs if run.ordinal]
        last = min(ordinals) + 1 if ordinals else wanted.episodes_before
        older = {"before": messages.next_before, "episodes_before": last}
    # in a thread, because rendering the Markdown of many messages may take seconds
    return await asyncio.to_thread(
        fragment,
        "conversation_runs.html",
        runs=runs,
        details=details,
        older=older if messages.next_before is not None else None,
        grows=grows,
        wanted=wanted,
        may_write=caller.may("write"),
    )


@router.get("/conversation/context")
async def show_context(caller: ReadingVisitor, wanted: Wanted[ShownContextQuery]) -> Response:
    """Show what an agent would load within this many tokens. It refreshes itself."""
    services, given = caller.services, wanted.model_dump(exclude={"id", "version"})
    async with services.turns.if_large(caller.key_id, wanted.max_tokens > LARGE_TOKENS):
        context = await known_context(services.memory, services.outbox.begun, caller.owner, wanted.id, **given)
    part = fragment("conversation_context.html", context=context, wanted=wanted)
    templates = "conversation_agent.html", "conversation_agent_part.html"
    return refreshing_page(caller.request, *templates, part, wanted.version, wanted=wanted)


@router.get("/conversation/message")
async def show_message(caller: ReadingVisitor, wanted: Wanted[ShownMessageQuery]) -> HTMLResponse:
    message = await seen_message(caller, wanted)
    return html_page(caller.request, "message_text.html", message=message)


async def seen_message(caller: Caller, wanted: ShownMessageQuery) -> MessageCreated:
    """Find a message that the visitor may see. Raises: NotFound."""
    memory = caller.memory
    seen = await memory.message(wanted.id, wanted.message_id, 0, **caller.owner._asdict())
    return existing("message", seen).message


async def seen_conversation(caller: Caller, conversation_id: str, agent_id: str | None = None) -> ConversationDetails:
    """Find a conversation that the visitor may see. Raises: NotFound."""
    memory = caller.memory
    return existing("conversation", await memory.conversation(conversation_id, agent_id, **caller.owner._asdict()))


@router.get("/conversation/edit")
async def show_editor(caller: WritingVisitor, wanted: Wanted[ShownMessageQuery]) -> HTMLResponse:
    message = await seen_message(caller, wanted)
    return html_page(caller.request, "message_editor.html", message=message, agent_id=wanted.agent_id)


@router.post("/conversation")
async def change_conversation(
    caller: WritingVisitor, wanted: Wanted[ChangeQuery], fields: SubmittedText
) -> RedirectResponse:
    """Carry out the submitted button's action. Deleting a conversation deletes it for all agents."""
    details = await seen_conversation(caller, wanted.id, wanted.agent_id)
    tenant = {"tenant_id": details.tenant_id}
    deletion = DeletionQuery(**tenant, reason=None)
    match only_value(fields, "action"), wanted.message_id:
        case "save-message", str(message_id):
            change = form_body(ChangeBody, content=only_value(fields, "content"), **tenant)
            await edit_message(caller, wanted.id, message_id, change)
        case "delete-message", str(message_id):
            await delete_message(caller, wanted.id, message_id, deletion)
        case "close-episode", None:
            flush = FlushBody(agent_id=wanted.agent_id, **tenant)
            await flush_conversation(caller, wanted.id, flush)
        case "hand-over", None:
            given = form_body(AssignBody, from_user_id=details.user_id, user_id=only_value(fields, "to"), **tenant)
            await assign_conversation(caller, wanted.id, given)
        case "delete-conversation", None:
            await delete_conversation(caller, wanted.id, deletion)
            return see_other("/conversations")
        case _:
            expected = "save-message or delete-message with message_id; close-episode, hand-over or delete-conversation"
            raise RequestInvalid(problems=[("action", f"must be {expected}")])
    return see_other("/conversation", id=wanted.id, agent_id=wanted.agent_id, sent="1")
