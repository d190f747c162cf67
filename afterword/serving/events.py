"""The route of the event stream: server-sent events that resume from `Last-Event-ID`."""

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Annotated, Any, Literal

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from afterword.schemas.base import PartyId
from afterword.serving.feed import LATE_SECONDS, MOST_CHARACTERS, Feed, StreamFilter, offsets_of, position_id
from afterword.serving.principal import MayRead, Principal, is_still_admitted
from afterword.serving.reading import Parameters
from afterword.serving.services import services_of
from afterword.serving.writing import require_own
from afterword.streams.errors import BrokerUnavailable, StoreUnavailable
from afterword.streams.kafka.log_reader import TopicStalled

HEARTBEAT_SECONDS = 15
CHECK_SECONDS = 1.0
"""Together with `CACHED_SECONDS`, the cache time of keys, this ends a stream within 5 s of its key's revocation."""
SEND_SECONDS = 20.0
"""A client must read what it is sent within this time."""

Kind = Literal["summary.created", "summary.deleted", "episode.closed"]
ALL: tuple[Kind, ...] = ("summary.created", "summary.deleted", "episode.closed")

router = APIRouter(prefix="/v1", tags=["events"])
log = structlog.get_logger(__name__)


class EventsQuery(Parameters):
    type: tuple[Kind, ...] = ALL
    """Types of events; may be repeated."""
    conversation_id: str | None = Field(None, min_length=1, max_length=256)
    """Only events of this conversation."""
    user_id: PartyId | None = None
    """Only events of this user. Defaults to the key's user if it is bound to one."""


class EventStream(EventSourceResponse):
    """One of the limited number of streams that a key may have open.

    `content` yields None if there is nothing to send for two seconds, except while the client catches up. The stream
    ends quietly when a client stops reading or its key is no longer valid, and with a warning when Kafka or the store
    is unavailable.
    """

    def __init__(
        self, request: Request, principal: Principal, content: AsyncGenerator[ServerSentEvent | None, None]
    ) -> None:
        """Open the stream. Raises: TooManyStreams; BrokerUnavailable if the feed has not started."""
        services = services_of(request)
        services.feed.require_running()
        services.streams.require_room(principal.key_id)
        super().__init__(
            _while_admitted(request, principal, content), ping=HEARTBEAT_SECONDS, send_timeout=SEND_SECONDS
        )
        self._streams, self._key_id = services.streams, principal.key_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._streams.counted(self._key_id):
                await super().__call__(scope, receive, send)
        except SendTimeoutError:
            log.info("client_too_slow", stage="serve")


async def _while_admitted(
    request: Request, principal: Principal, content: AsyncGenerator[ServerSentEvent | None, None]
) -> AsyncGenerator[ServerSentEvent, None]:
    asked_at = time.monotonic()
    async with aclosing(content):
        try:
            async for event in content:
                if time.monotonic() - asked_at >= CHECK_SECONDS:
                    if not await is_still_admitted(request, principal):
                        return
                    asked_at = time.monotonic()
                if event is not None:
                    yield event
        except (KafkaError, BrokerUnavailable, StoreUnavailable, TopicStalled) as error:
            log.warning("stream_interrupted", stage="serve", error_type=type(error).__name__)


DESCRIPTION: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "An endless stream of events: `event` is the type, `data` its JSON, `id` where to resume.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


@router.get("/events", response_class=Response, responses=DESCRIPTION)
async def stream_events(
    request: Request,
    principal: MayRead,
    wanted: Annotated[EventsQuery, Query()],
    last_event_id: Annotated[str | None, Header(max_length=MOST_CHARACTERS)] = None,
) -> EventStream:
    """Stream events from now on, or from the event `Last-Event-ID` on without gaps or repeats.

    An `episode.closed` comes without the contents of its messages. A `summary.deleted` names no user: with a key bound
    to one user, it is only sent if `conversation_id` is given or if this process has streamed the conversation before.
    A client that does not keep up is disconnected, and can resume where it was.
    """
    services = services_of(request)
    if wanted.user_id is not None:
        principal.user(wanted.user_id)
    if wanted.conversation_id is not None:
        await require_own(services.memory, principal, {wanted.conversation_id})
    feed = services.feed
    since = feed.offsets if last_event_id is None else offsets_of(feed.topics, last_event_id)
    asked = StreamFilter(
        principal.owner, frozenset(wanted.type), wanted.conversation_id, wanted.user_id, principal.key_id
    )
    return EventStream(request, principal, lines_of(feed, asked, since))


async def lines_of(
    feed: Feed, wanted: StreamFilter, since: Mapping[TopicPartition, int]
) -> AsyncGenerator[ServerSentEvent | None, None]:
    # without data this is not an event, but it tells a client that is interrupted before the first event where to
    # resume
    yield ServerSentEvent(id=position_id(feed.topics, since), comment="open")
    async with aclosing(feed.follow(wanted, since)) as batches:
        async for batch in batches:
            began = time.monotonic()
            for event in batch.events:
                if time.monotonic() - began > LATE_SECONDS and not await feed.still_there([event]):
                    continue  # it was deleted while the client read the events before it
                yield ServerSentEvent(event.data, event=event.kind, id=event.position)
            yield ServerSentEvent(id=batch.position, comment="so far") if batch.position else None
