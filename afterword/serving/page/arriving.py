"""Lists conversations by their last message, even before any summary.

The end of the topic names the conversations, and their text comes from the archive. A record's own text is never shown,
because only the archive's is redacted, edited and deleted as required.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import HTMLResponse

from afterword.reading.memory import ConversationDetails
from afterword.schemas import MessageCreated
from afterword.schemas.headers import CE_TYPE, header
from afterword.schemas.messages import MESSAGE_CREATED
from afterword.serving.page.rendering import PageRoute, html_page
from afterword.serving.page.visitor import ReadingVisitor
from afterword.serving.reading import Parameters
from afterword.serving.services import in_time, services_of
from afterword.streams.kafka.log_reader import batches, open_log
from afterword.streams.settings import Kafka

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

router = APIRouter(route_class=PageRoute, include_in_schema=False)


class RecentQuery(Parameters):
    count: int = Field(SHOWN, ge=1, le=MOST_SHOWN)
    """Number of conversations to show."""
    live: bool = False
    """Whether the list refreshes itself and has no further pages."""


class RecentMessages:
    """Reads the end of the messages topic, once for all visitors."""

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
    request: Request, principal: ReadingVisitor, wanted: Annotated[RecentQuery, Query()]
) -> HTMLResponse:
    """List the visitor's conversations by their last message."""
    arrivals: RecentMessages = request.app.state.recent_messages
    ids = await arrivals.conversations(wanted.count)
    memory, owner = services_of(request).memory, principal.owner._asdict()

    async def look_up(conversation_id: str) -> tuple[ConversationDetails, MessageCreated] | None:
        details = await memory.conversation(conversation_id, **owner)
        page = await memory.messages(conversation_id, 1, **owner) if details else None
        return (details, page.messages[0]) if details and page and page.messages else None

    found: list[tuple[ConversationDetails, MessageCreated]] = []
    # most of them may be other people's, so the number of look-ups is limited
    for start in range(0, min(len(ids), LOOKED_UP_A_CONVERSATION * wanted.count), AT_A_TIME):
        found += [one for one in await asyncio.gather(*map(look_up, ids[start : start + AT_A_TIME])) if one]
        if len(found) >= wanted.count:
            break
    found = found[: wanted.count]
    is_last = wanted.live or len(found) < wanted.count or wanted.count == MOST_SHOWN
    more = None if is_last else min(2 * wanted.count, MOST_SHOWN)
    return html_page(request, "conversations_recent.html", principal, recent=found, more=more)
