"""The event stream: server-sent events that resume from `Last-Event-ID`."""

import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Annotated, Any

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from fastapi import APIRouter, Header, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from afterword.schemas.base import Id, PartyId
from afterword.serving.feed import ALL, LONGEST_POSITION, Feed, Kind, StreamFilter, offsets_of, position_id
from afterword.serving.outbox import require_own
from afterword.serving.problems import TooManyStreams
from afterword.serving.requests import Caller, MayRead, Parameters, Wanted, is_still_admitted
from afterword.streams.errors import BrokerUnavailable, StoreUnavailable
from afterword.streams.kafka.log_reader import TopicStalled
from afterword.streams.tasks import Paced

LATE_SECONDS = 2.0
"""Events that were read from Kafka longer ago than this are compared with the store again before they are sent."""
SENT_TOGETHER = 20
STREAMS_PER_KEY = 500
"""Upper limit for the open event streams of a key in one process."""
CHECK_SECONDS = 1.0
"""Together with `CACHED_SECONDS`, the cache time of keys, this ends a stream within 5 s of its key's revocation."""


router = APIRouter(prefix="/v1", tags=["events"])
log = structlog.get_logger(__name__)


class EventsQuery(Parameters):
    type: tuple[Kind, ...] = ALL
    """Types of events; may be repeated."""
    conversation_id: Id | None = None
    """Only events of this conversation."""
    user_id: PartyId | None = None
    """Only events of this user. Defaults to the key's user if it is bound to one."""


def event_stream(caller: Caller, content: AsyncGenerator[ServerSentEvent | bytes | None, None]) -> EventSourceResponse:
    """Build one of the limited number of streams that a key may have open.

    `content` yields None if there is nothing to send for two seconds, except while the client catches up. The stream
    ends quietly when its key is no longer valid, and with a warning when Kafka or the store is unavailable.

    Raises: TooManyStreams; BrokerUnavailable if the feed has not started.
    """
    services = caller.services
    if not services.feed.offsets:
        servers = services.settings.kafka.bootstrap_servers
        raise BrokerUnavailable(servers=servers, problem="the topics were not read yet")
    if services.settings.serve.auth != "none" and services.open_streams[caller.key_id] >= STREAMS_PER_KEY:
        raise TooManyStreams(limit=STREAMS_PER_KEY)
    return EventSourceResponse(_while_admitted(caller, content))


async def _while_admitted(
    caller: Caller, content: AsyncGenerator[ServerSentEvent | bytes | None, None]
) -> AsyncGenerator[ServerSentEvent | bytes, None]:
    open_streams, asked_at = caller.services.open_streams, time.monotonic()
    open_streams[caller.key_id] += 1
    try:
        async with aclosing(content):
            async for event in content:
                if time.monotonic() - asked_at >= CHECK_SECONDS:
                    if not await is_still_admitted(caller):
                        return
                    asked_at = time.monotonic()
                if event is not None:
                    yield event
    except (KafkaError, BrokerUnavailable, StoreUnavailable, TopicStalled) as error:
        log.warning("stream_interrupted", stage="serve", error_type=type(error).__name__)
    finally:
        open_streams -= Counter([caller.key_id])  # in place, and keys without streams are dropped


DESCRIPTION: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "An endless stream of events: `event` is the type, `data` its JSON, `id` where to resume.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


@router.get("/events", response_class=Response, responses=DESCRIPTION)
async def stream_events(
    caller: MayRead,
    wanted: Wanted[EventsQuery],
    last_event_id: Annotated[str | None, Header(max_length=LONGEST_POSITION)] = None,
) -> EventSourceResponse:
    """Stream events from now on, or from the event `Last-Event-ID` on without gaps or repeats.

    An `episode.closed` comes without the contents of its messages. A `summary.deleted` names no user: with a key bound
    to one user, it is only sent if `conversation_id` is given or if this process has streamed the conversation before.
    A client that does not keep up is disconnected, and can resume where it was.
    """
    services = caller.services
    owner = caller.asserted(wanted.user_id, None)
    if wanted.conversation_id is not None:
        await require_own(services.memory, owner, {wanted.conversation_id})
    feed = services.feed
    since = feed.offsets if last_event_id is None else offsets_of(feed.topics, last_event_id)
    asked = StreamFilter(owner, frozenset(wanted.type), wanted.conversation_id, caller.key_id)
    return event_stream(caller, lines_of(feed, asked, since))


async def lines_of(
    feed: Feed, wanted: StreamFilter, since: Mapping[TopicPartition, int]
) -> AsyncGenerator[ServerSentEvent | bytes | None, None]:
    """Yield a client's events, and None if there is nothing to send."""
    # without data this is not an event, but it tells a client that is interrupted before the first event where to
    # resume
    yield ServerSentEvent(id=position_id(feed.topics, since), comment="open")
    async with aclosing(feed.follow(wanted, since)) as batches:
        async for batch in batches:
            work = Paced()  # waiting for news is no work
            events = deque(batch.events)
            compared_at = events[0].read_at if events else 0.0
            while events:
                await work.rest()
                if time.monotonic() - compared_at > LATE_SECONDS:  # some may have been deleted meanwhile
                    events, compared_at = deque(await feed.still_there([*events])), time.monotonic()
                else:
                    yield b"".join(events.popleft().line for _ in range(min(len(events), SENT_TOGETHER)))
            yield ServerSentEvent(id=batch.position, comment="so far") if batch.position else None
