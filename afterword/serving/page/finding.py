"""Screens that find conversations: those with the latest messages, and by a search."""

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse, RedirectResponse

from afterword.reading.context import ANYONE
from afterword.reading.memory import ConversationDetails
from afterword.schemas import MessageCreated
from afterword.schemas.headers import CE_TYPE, header
from afterword.schemas.messages import MESSAGE_CREATED
from afterword.serving.page.rendering import PageRoute, html_page, see_other, word_finder
from afterword.serving.page.visitor import ReadingVisitor, Submitted, field, seal_of
from afterword.serving.requests import in_time, services_of
from afterword.streams.kafka.log_reader import batches, open_log
from afterword.streams.settings import Kafka
from afterword.streams.stores.index import MOST_QUERY_CHARACTERS

SHOWN = 12
"""Number of conversations on the first page."""
MOST_SHOWN = 96
RECORDS_A_CONVERSATION = 10
"""How many records of each partition are read for each conversation wanted."""
LOOKED_UP_A_CONVERSATION = 20
"""How many of these conversations are looked up at most for each one wanted."""
READ_SECONDS = 10.0
FRESH_SECONDS = 2.0
"""A result up to this old is shared with other visitors."""
AT_A_TIME = 6
"""Number of conversations looked up in the stores at once."""
HITS = 10
SEARCH_FIELDS = ("query", "user_id", "tenant_id")
SEARCH = "search "
"""Distinguishes a sealed search from a sealed key, which has no space."""

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/conversations")
async def show_conversations(request: Request, principal: ReadingVisitor) -> HTMLResponse:
    """Show a search form, and the conversations with the latest messages."""
    return html_page(request, "conversations.html", principal, user_id="", tenant_id="")


class RecentMessages:
    """Reads the end of the messages topic, once for all visitors.

    It only names the conversations. Their text comes from the archive, because a record's own text may have to be
    redacted, edited or deleted.
    """

    def __init__(self, kafka: Kafka, clock: Callable[[], float] = time.monotonic) -> None:
        self._kafka = kafka
        self._clock = clock
        self._reading = asyncio.Lock()
        self._found: dict[int, tuple[float, list[str]]] = {}

    async def conversations(self, count: int) -> list[str]:
        """Return conversation ids, most recent message first. Raises: BrokerUnavailable, KafkaError."""
        async with self._reading:
            read_at, ids = self._found.get(count, (0.0, []))
            if not read_at or self._clock() - read_at >= FRESH_SECONDS:
                ids = await in_time(self._kafka, READ_SECONDS, self._read(count * RECORDS_A_CONVERSATION))
                self._found[count] = self._clock(), ids
            return ids

    async def _read(self, records: int) -> list[str]:
        last: dict[str, int] = {}
        async with (
            open_log(self._kafka) as reading,
            reading.reader(self._kafka.messages_topic) as consumer,
        ):
            partitions = list(consumer.assignment())
            first, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
            for where in partitions:
                consumer.seek(where, max(first[where], ends[where] - records))
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
    request: Request,
    principal: ReadingVisitor,
    count: Annotated[int, Query(ge=1, le=MOST_SHOWN)] = SHOWN,
    live: bool = False,
) -> HTMLResponse:
    """List `count` of the visitor's conversations by their last message, even before any summary.

    With `live`, the list refreshes itself and has no further pages.
    """
    arrivals: RecentMessages = request.app.state.recent_messages
    ids = await arrivals.conversations(count)
    memory, owner = services_of(request).memory, principal.owner._asdict()

    async def look_up(conversation_id: str) -> tuple[ConversationDetails, MessageCreated] | None:
        details = await memory.conversation(conversation_id, **owner)
        page = await memory.messages(conversation_id, 1, **owner) if details else None
        return (details, page.messages[0]) if details and page and page.messages else None

    found: list[tuple[ConversationDetails, MessageCreated]] = []
    # most of them may be other people's, so the number of look-ups is limited
    for start in range(0, min(len(ids), LOOKED_UP_A_CONVERSATION * count), AT_A_TIME):
        found += [one for one in await asyncio.gather(*map(look_up, ids[start : start + AT_A_TIME])) if one]
        if len(found) >= count:
            break
    found = found[:count]
    is_last = live or len(found) < count or count == MOST_SHOWN
    more = None if is_last else min(2 * count, MOST_SHOWN)
    return html_page(request, "conversations_recent.html", principal, recent=found, more=more)


@router.get("/search")
async def show_search(
    request: Request, principal: ReadingVisitor, s: Annotated[str | None, Query(max_length=20_000)] = None
) -> HTMLResponse:
    """Show the form, and the hits of the sealed search `s`."""
    found = seal_of(request).opened(s) or ""
    asked = orjson.loads(found.removeprefix(SEARCH)) if found.startswith(SEARCH) else {}
    query, user_id, tenant_id = (asked.get(name, "") for name in SEARCH_FIELDS)
    hits = None
    if query:
        owner: dict[str, Any] = {
            "user_id": principal.user(user_id or None),
            "tenant_id": principal.tenant(tenant_id or None),
        }
        hits = await services_of(request).memory.recall(query, k=HITS, **owner)
    given: dict[str, Any] = {"query": query, "user_id": user_id, "tenant_id": tenant_id, "hits": hits}

    def page() -> HTMLResponse:
        lost = bool(s) and not asked
        return html_page(request, "search.html", principal, lost=lost, find=word_finder(query), **given)

    # rendered in a thread, because stemming long texts takes up to half a second
    return await asyncio.to_thread(page)


@router.post("/search")
async def search(request: Request, principal: ReadingVisitor, fields: Submitted) -> RedirectResponse:
    """Redirect to the address of the search, which can be revisited for as long as a visitor stays signed in.

    What people search for is sealed, to keep it out of addresses and logs.
    """
    asked = {"query": field(fields, "query", MOST_QUERY_CHARACTERS).strip()}
    if principal.user_id is ANYONE:
        asked["user_id"] = principal.user(field(fields, "user_id", 256))
    if principal.tenant_id is ANYONE:
        asked["tenant_id"] = field(fields, "tenant_id", 256)
    return see_other("/search", s=seal_of(request).sealed(SEARCH + orjson.dumps(asked).decode()))
