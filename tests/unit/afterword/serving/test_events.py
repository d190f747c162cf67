"""Which client gets which event, and which is disconnected."""

import asyncio
import weakref
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError
from hypothesis import given
from hypothesis import strategies as st
from sse_starlette import EventSourceResponse, ServerSentEvent
from structlog.testing import capture_logs

from afterword.schemas import SummaryDeleted
from afterword.schemas.base import Model, Owner
from afterword.schemas.records import owner_header, owner_in
from afterword.serving import events, feed
from afterword.serving.events import CHECK_SECONDS, LATE_SECONDS, STREAMS_PER_KEY, event_stream
from afterword.serving.feed import (
    ALL,
    CATCHING_UP,
    COMPARED_TOGETHER,
    MOST_UNREAD,
    TICK_SECONDS,
    Feed,
    Published,
    StreamFilter,
    offsets_of,
    position_id,
)
from afterword.serving.problems import PositionInvalid, TooManyStreams, Unauthenticated
from afterword.serving.requests import CACHED_SECONDS, Caller, Principal, is_still_admitted
from afterword.streams.errors import BrokerUnavailable, StoreUnavailable
from afterword.streams.kafka.log_reader import TopicStalled
from afterword.streams.settings import Kafka, Serve, Settings
from afterword.streams.stores.episodes import Episode
from afterword.streams.telemetry.metrics import Metrics
from tests.blocking import MOST_SHARE, blocking
from tests.samples import NOON, a_closed_episode, a_stored_episode, a_summary, a_tombstone
from tests.unit.afterword.serving.served import serving
from tests.unit.afterword.serving.test_reading import Holder

EVERYTHING = StreamFilter(Owner(), frozenset(ALL))


def a_record(offset: int, value: bytes) -> ConsumerRecord:
    return ConsumerRecord("summary.created", 0, offset, 0, 0, b"c1", value, None, 0, 0, [])


class Feeding:
    """A feed that is given records, and clients that read it."""

    def __init__(self) -> None:
        self.metrics = Metrics("server", "any")
        self.feed = Feed(Kafka(), self.metrics, self.lookup)
        self.stored: dict[str, Episode] = {}
        self.decoded = self.comparisons = 0
        self.feed._offsets = {TopicPartition(topic, 0): 0 for topic in self.feed.topics}
        self._next = dict.fromkeys(self.feed.topics, 0)

    async def lookup(self, episode_ids: Sequence[str]) -> Mapping[str, Episode]:
        """Return what is stored, by default the first revision."""
        self.comparisons += 1
        return {name: self.stored.get(name, a_stored_episode(revision=1)) for name in episode_ids}

    async def come(self, event: Model, kind: str, owner: tuple[str, bytes] | None = None) -> None:
        topic = Kafka().episodes_topic if kind == "episode.closed" else kind
        key = event.conversation_id.encode()  # type: ignore[attr-defined]  # each of them has one
        headers = [("ce_type", kind.encode()), *([owner] if owner else [])]
        offset = self._next[topic]
        self._next[topic] += 1
        record = ConsumerRecord(topic, 0, offset, 0, 0, key, event.to_json(), None, 0, 0, headers)
        await self.feed.hand_out([record])

    async def summary(self, *args: Any, **fields: Any) -> None:
        await self.come(a_summary(*args, **fields), "summary.created")

    async def deletion(self, conversation_id: str = "c1", tenant_id: str = "t1") -> None:
        ids = {"event_id": f"{conversation_id}:1:2", "episode_id": f"{conversation_id}:1", "revision": 2, "ordinal": 1}
        ids |= {"conversation_id": conversation_id, "tenant_id": tenant_id}
        await self.come(SummaryDeleted(**ids, reason="deleted", deleted_at=NOON), "summary.deleted")


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@asynccontextmanager
async def listening(feeding: Feeding, wanted: StreamFilter) -> AsyncGenerator[list[Published], None]:
    """A client that reads everything it gets, of which nothing is missing once it has ended."""
    found: list[Published] = []

    async def listen() -> None:
        async for batch in feeding.feed.follow(wanted, feeding.feed.offsets):
            assert batch.position is None
            found.extend(batch.events)

    task = asyncio.create_task(listen())
    await asyncio.sleep(0)
    yield found
    await settled()
    task.cancel()


async def heard(wanted: StreamFilter) -> list[tuple[str, str]]:
    """Return the events that a client gets, of two tenants, three users and three types."""
    feeding = Feeding()
    async with listening(feeding, wanted) as found:
        await feeding.summary(1, "c1")
        await feeding.summary(1, "c2", user_id="u2")
        await feeding.summary(1, "c3", tenant_id="t2", user_id="u3")
        await feeding.come(a_closed_episode(1, "c1"), "episode.closed")
        for name in ("c1", "c2", "never-seen"):
            await feeding.deletion(name)
    return [(event.kind.removeprefix("summary."), event.event.conversation_id) for event in found]


CREATED_1, CREATED_2, CREATED_3 = ("created", "c1"), ("created", "c2"), ("created", "c3")
CLOSED, DELETED_1, DELETED_2 = ("episode.closed", "c1"), ("deleted", "c1"), ("deleted", "c2")
UNSEEN = ("deleted", "never-seen")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (EVERYTHING, [CREATED_1, CREATED_2, CREATED_3, CLOSED, DELETED_1, DELETED_2, UNSEEN]),
        (
            StreamFilter(Owner(tenant_id="t1"), frozenset(ALL)),
            [CREATED_1, CREATED_2, CLOSED, DELETED_1, DELETED_2, UNSEEN],
        ),
        (StreamFilter(Owner(tenant_id=None), frozenset(ALL)), []),
        (StreamFilter(Owner("u1", "t1"), frozenset(ALL)), [CREATED_1, CLOSED, DELETED_1]),
        (StreamFilter(Owner("u1", "t2"), frozenset(ALL)), []),
        (StreamFilter(Owner("u2"), frozenset(ALL)), [CREATED_2, DELETED_2]),
        (StreamFilter(Owner(), frozenset(ALL), conversation_id="never-seen"), [UNSEEN]),
        (StreamFilter(Owner("u9", "t1"), frozenset(ALL), conversation_id="never-seen"), [UNSEEN]),
        (StreamFilter(Owner("u9", "t2"), frozenset(ALL), conversation_id="never-seen"), []),
        (StreamFilter(Owner(), frozenset({"episode.closed"})), [CLOSED]),
    ],
)
async def test_client_gets_the_events_it_asked_for(wanted: StreamFilter, expected: list[tuple[str, str]]) -> None:
    assert await heard(wanted) == expected


async def test_event_id_lists_the_next_offset_of_each_partition() -> None:
    feeding = Feeding()
    async with listening(feeding, EVERYTHING) as found:
        await feeding.summary(1)
        await feeding.come(a_closed_episode(1), "episode.closed")
    places = [offsets_of(feeding.feed.topics, event.position) for event in found]
    after = [{tp.topic: offset for tp, offset in place.items() if offset} for place in places]
    assert after == [{"summary.created": 1}, {"summary.created": 1, "episode.closed": 1}]


async def test_streamed_episode_has_no_contents() -> None:
    feeding = Feeding()
    async with listening(feeding, EVERYTHING) as found:
        await feeding.come(a_closed_episode(1), "episode.closed")
    assert '"message_ids":["m0","m1","m2"]' in found[0].data
    assert "Text of" not in found[0].data
    assert "\n" not in found[0].data


async def test_client_that_never_reads_is_dropped_alone() -> None:
    feeding = Feeding()
    stuck = feeding.feed.follow(EVERYTHING, feeding.feed.offsets)
    await anext(stuck)
    async with listening(feeding, EVERYTHING) as found:
        for ordinal in range(1, MOST_UNREAD + 2):
            await feeding.summary(ordinal)
            if ordinal % 10 == 0:
                await settled()
        assert [batch async for batch in stuck] == []
        assert "afterword_event_clients 1.0" in feeding.metrics.text().decode()
    assert len(found) == MOST_UNREAD + 1


async def test_client_that_reads_seldom_misses_nothing() -> None:
    feeding = Feeding()
    slow = feeding.feed.follow(EVERYTHING, feeding.feed.offsets)
    await anext(slow)
    for ordinal in (1, 2):
        await feeding.summary(ordinal)
    first = await anext(slow)
    await feeding.summary(3)
    seen = [event.event.ordinal for batch in (first, await anext(slow)) for event in batch.events]
    assert seen == [1, 2, 3]
    await slow.aclose()


async def test_client_is_not_resent_earlier_events() -> None:
    feeding = Feeding()
    ahead = feeding.feed.follow(EVERYTHING, {TopicPartition("summary.created", 0): 1})
    await anext(ahead)
    for ordinal in (1, 2):
        await feeding.summary(ordinal)
    assert [event.event.ordinal for event in (await anext(ahead)).events] == [2]
    await ahead.aclose()


async def test_events_are_decoded_only_for_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    feeding, decoded = Feeding(), []
    monkeypatch.setattr(feed, "decode_revision", decoded.append)
    await feeding.summary(1)
    assert decoded == []
    assert feeding.feed.offsets[TopicPartition("summary.created", 0)] == 1


FOREIGN = StreamFilter(Owner("u1", "t1"), frozenset(ALL))


@pytest.mark.parametrize(
    ("owner", "is_possible"),
    [
        (None, True),
        (owner_header("t1", "u1"), True),
        (owner_header("t2", "u1"), False),
        (owner_header("t1", "u2"), False),
        (owner_header(None, "u1"), False),
        (("afterword_owner", b"not JSON"), True),
    ],
)
def test_headers_identify_foreign_records(owner: tuple[str, bytes] | None, is_possible: bool) -> None:
    headers = [owner] if owner else []
    assert FOREIGN.may_have("summary.created", "c1", owner_in(headers)) is is_possible


@pytest.mark.parametrize(
    ("stored", "kinds"),
    [
        (a_stored_episode(revision=1), ["episode.closed", "summary.created", "summary.deleted"]),
        (a_stored_episode(revision=2), ["episode.closed", "summary.deleted"]),
        (a_tombstone(1, 1), ["summary.deleted"]),
    ],
)
async def test_deleted_or_replaced_text_is_not_streamed(stored: Episode, kinds: list[str]) -> None:
    feeding = Feeding()
    feeding.stored["c1:1"] = stored
    async with listening(feeding, EVERYTHING) as found:
        await feeding.come(a_closed_episode(1), "episode.closed")
        await feeding.summary(1)
        await feeding.deletion()
    assert [event.kind for event in found] == kinds


def ordinals_of(sent: Any) -> list[int]:
    return [orjson.loads(line[6:])["ordinal"] for line in sent.splitlines() if line.startswith(b"data: ")]


def standing(monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float]) -> None:
    for module in (events, feed):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))


async def test_text_deleted_before_a_late_read_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    feeding, now = Feeding(), 0.0
    standing(monkeypatch, lambda: now)
    monkeypatch.setattr(events, "SENT_TOGETHER", 1)
    lines = events.lines_of(feeding.feed, EVERYTHING, feeding.feed.offsets)
    assert [(await anext(lines)) is None for _ in range(2)] == [False, True]
    for ordinal in (1, 2, 3):
        await feeding.summary(ordinal)
    sent: list[Any] = [await anext(lines)]
    now += LATE_SECONDS + 0.1
    feeding.stored["c1:2"] = a_tombstone(1, 1)
    sent.append(await anext(lines))
    assert ordinals_of(b"".join(sent)) == [1, 3]
    await lines.aclose()


async def test_late_events_are_compared_together(monkeypatch: pytest.MonkeyPatch) -> None:
    feeding, now = Feeding(), 0.0
    standing(monkeypatch, lambda: now)
    async with aclosing(events.lines_of(feeding.feed, EVERYTHING, feeding.feed.offsets)) as lines:
        await anext(lines)
        await anext(lines)
        ordinals = [*range(1, feed.COMPARED_TOGETHER + 1)]
        for ordinal in ordinals:
            await feeding.summary(ordinal)
        now, feeding.comparisons = LATE_SECONDS + 0.1, 0
        assert ordinals_of(await anext(lines)) == ordinals
    assert feeding.comparisons == 1


async def test_sent_events_are_not_retained() -> None:
    feeding = Feeding()
    async with aclosing(feeding.feed.follow(EVERYTHING, feeding.feed.offsets)) as client:
        await anext(client)
        await feeding.summary(1)
        sent = weakref.ref((await anext(client)).events[0])
        assert (await anext(client)).events == []
        assert sent() is None


class Topic:
    """A log whose consumer returns one summary and then nothing."""

    def __init__(self) -> None:
        self._source = TopicPartition("summary.created", 0)
        self._record = a_record(0, a_summary(1).to_json())
        self._at = 0

    @asynccontextmanager
    async def opening(self, *_: object) -> AsyncGenerator["Topic", None]:
        yield self

    reader = opening

    def assignment(self) -> set[TopicPartition]:
        return {self._source}

    def seek(self, _: TopicPartition, offset: int) -> None:
        self._at = offset

    async def getmany(self, **_: object) -> dict[TopicPartition, list[ConsumerRecord]]:
        if self._at:
            await asyncio.Event().wait()
        self._at = 1
        return {self._source: [self._record]}


async def no_check(*_: object) -> None:
    pass


async def test_store_outage_delays_an_event_and_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    feeding, topic, attempts = Feeding(), Topic(), 0

    async def lookup(episode_ids: Sequence[str]) -> Mapping[str, Episode]:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise StoreUnavailable(store="mongodb", problem="AutoReconnect")
        return await feeding.lookup(episode_ids)

    monkeypatch.setattr(feeding.feed, "_lookup", lookup)
    monkeypatch.setattr(feed, "WAIT_SECONDS", 0)
    monkeypatch.setattr(feed, "require_topics", no_check)
    monkeypatch.setattr(feed, "open_log", topic.opening)
    async with listening(feeding, EVERYTHING) as found, asyncio.timeout(60):
        with capture_logs() as logs:
            running = asyncio.create_task(feeding.feed.run())
            while not found:  # noqa: ASYNC110 – the client reads in turns
                await asyncio.sleep(0)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert [entry["event"] for entry in logs] == ["feed_interrupted"], "once for two failures"
    assert feeding.feed.running


async def catching_up(
    feeding: Feeding, clients: Sequence[tuple[str, str, int]], monkeypatch: pytest.MonkeyPatch, left: int
) -> list[str]:
    """Let clients catch up, each with a name, a key and the offset up to which it has everything.

    No turn ends, but the first clients leave. Returns the names in the order in which they got their turns.
    """
    opened = list[str]()

    @asynccontextmanager
    async def open_log(_: Kafka) -> AsyncGenerator[None, None]:
        task = asyncio.current_task()
        assert task is not None
        opened.append(task.get_name())
        await asyncio.Event().wait()
        yield

    async def catch_up(key: str, offset: int) -> None:
        since = {TopicPartition("summary.created", 0): offset}
        await anext(feeding.feed.follow(replace(EVERYTHING, key_id=key), since))

    monkeypatch.setattr(feed, "open_log", open_log)
    tasks = [asyncio.create_task(catch_up(key, offset), name=name) for name, key, offset in clients]
    await settled()
    for task in tasks[:left]:
        task.cancel()
        await settled()
    for task in tasks:
        task.cancel()
    return opened


async def test_one_keys_catch_ups_do_not_delay_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    feeding = Feeding()
    await feeding.summary(1)
    keys = [*["many"] * 5, "more", "more", "one"]
    opened = await catching_up(feeding, [(key, key, 0) for key in keys], monkeypatch, left=2)
    assert opened == ["many", "many", "more", "more", "one", "many"]
    assert CATCHING_UP == 4


async def test_client_that_missed_fewest_catches_up_first(monkeypatch: pytest.MonkeyPatch) -> None:
    feeding = Feeding()
    for ordinal in (1, 2, 3):
        await feeding.summary(ordinal)
    clients = [(f"from {offset}", "key", offset) for offset in (0, 0, 0, 1, 2)]
    opened = await catching_up(feeding, clients, monkeypatch, left=3)
    assert opened == ["from 0", "from 0", "from 2", "from 1"]


def log_of(records: list[ConsumerRecord], monkeypatch: pytest.MonkeyPatch, opened: list[str]) -> None:
    """Let catch-ups read these records in one batch, and note the tasks that do."""

    @asynccontextmanager
    async def open_log(_: Kafka) -> AsyncGenerator[Any, None]:
        task = asyncio.current_task()
        assert task is not None
        opened.append(task.get_name())
        yield SimpleNamespace(reader=lambda *_, **__: nullcontext(consumer))

    async def beginning_offsets(_: Any) -> dict[TopicPartition, int]:
        return {TopicPartition("summary.created", 0): 0}

    async def batches(*_: Any) -> AsyncGenerator[list[ConsumerRecord], None]:
        yield records

    consumer = SimpleNamespace(beginning_offsets=beginning_offsets, assign=lambda _: None, seek=lambda *_: None)
    monkeypatch.setattr(feed, "open_log", open_log)
    monkeypatch.setattr(feed, "batches", batches)


async def test_api_key_beyond_its_records_per_minute_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    feeding, opened = Feeding(), list[str]()

    async def catch_up(key: str) -> None:
        await anext(feeding.feed.follow(replace(EVERYTHING, key_id=key), {}))

    log_of([a_record(0, b"{")], monkeypatch, opened)
    monkeypatch.setattr(feed, "RECORDS_PER_MINUTE", 2)
    await feeding.summary(1)
    tasks: list[asyncio.Task[None]] = []
    for key in ("one", "one", "one", "other"):
        tasks.append(asyncio.create_task(catch_up(key), name=key))
        await asyncio.wait(tasks[-1:], timeout=0.2)
    assert opened == ["one", "one", "other"]
    tasks[2].cancel()


async def test_catching_up_blocks_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    feeding, summary = Feeding(), a_summary(1).to_json()
    log_of([a_record(n, summary) for n in range(300)], monkeypatch, [])
    await feeding.summary(1)
    _, share = await blocking(anext(feeding.feed.follow(EVERYTHING, {})))
    assert share < MOST_SHARE / 2, "the double's lookups take about half of the time"


async def test_invalid_records_are_not_streamed() -> None:
    feeding = Feeding()
    async with listening(feeding, EVERYTHING) as found:
        await feeding.feed.hand_out([a_record(7, b"{")])
    assert found == []
    assert feeding.feed._offsets[TopicPartition("summary.created", 0)] == 8


class Revocable:
    """An authenticator that knows one principal until it is revoked."""

    def __init__(self, key_id: str) -> None:
        self.holder = Principal(key_id, frozenset({"read"}))
        self.is_revoked = False

    async def principal(self, _: str | None) -> Principal:
        if self.is_revoked:
            raise Unauthenticated
        return self.holder


async def receive() -> dict[str, Any]:
    """A client that sends nothing more."""
    await asyncio.Event().wait()
    raise AssertionError


def a_request(services: Any) -> Any:
    app = SimpleNamespace(state=SimpleNamespace(services=services))
    return SimpleNamespace(app=app, state=SimpleNamespace(read_token=lambda: "secret"))


def a_stream(
    keys: Revocable,
    content: AsyncGenerator[ServerSentEvent | None, None] | None = None,
    opened: Counter[str] | None = None,
) -> EventSourceResponse:
    services = SimpleNamespace(
        feed=Feeding().feed,
        open_streams=Counter() if opened is None else opened,
        authenticator=keys,
        settings=Settings(serve=Serve(auth="keys")),
    )
    return event_stream(Caller(**vars(keys.holder), request=a_request(services)), content or endless())


async def test_stream_ends_soon_after_its_key_was_revoked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CACHED_SECONDS + CHECK_SECONDS + 2 * TICK_SECONDS <= 5, "as docs/how-to/serve.md says"
    monkeypatch.setattr("afterword.serving.events.CHECK_SECONDS", 0.05)
    keys, sent = Revocable("a"), []

    async def send(message: Any) -> None:
        sent.append(message)
        keys.is_revoked = True

    await asyncio.wait_for(a_stream(keys)(SCOPE, receive, send), 60)
    assert sent[-1]["more_body"] is False


@pytest.mark.parametrize(
    "error",
    [
        KafkaError(),
        BrokerUnavailable(servers="kafka:9092", problem="away"),
        StoreUnavailable(store="mongodb", problem="AutoReconnect"),
        TopicStalled(topic="summary.created"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_stream_warns_and_ends_when_kafka_or_store_fails(error: Exception) -> None:
    async def content() -> AsyncGenerator[ServerSentEvent | None, None]:
        yield ServerSentEvent(comment="open")
        raise error

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    with capture_logs() as logs:
        await asyncio.wait_for(a_stream(Revocable("a"), content())(SCOPE, receive, send), 60)
    assert sent[-1]["more_body"] is False
    warning = {"event": "stream_interrupted", "log_level": "warning", "stage": "serve"}
    assert logs == [{**warning, "error_type": type(error).__name__}]


async def test_revoked_or_changed_token_ends_its_stream() -> None:
    found: Principal | Exception = Principal("a", frozenset({"read"}), "t1")

    class Issuer:
        async def principal(self, token: str | None) -> Principal:
            assert token == "secret"
            if isinstance(found, Exception):
                raise found
            return found

    async with serving(Issuer()) as served:
        caller = Caller(**vars(found), request=a_request(served.services))
        assert await is_still_admitted(caller)
        found = Principal("a", frozenset({"read"}), "t2")
        assert not await is_still_admitted(caller)
        found = StoreUnavailable(store="mongodb", problem="AutoReconnect")
        assert await is_still_admitted(caller)
        found = Unauthenticated()
        assert not await is_still_admitted(caller)


SCOPE = {"type": "http", "method": "GET"}


async def endless() -> AsyncGenerator[ServerSentEvent | None, None]:
    yield ServerSentEvent(comment="open")
    while True:
        await asyncio.sleep(0.01)
        yield None


async def test_api_key_has_a_limited_number_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "STREAMS_PER_KEY", 2)
    open_streams, begun, silence = Counter[str](), asyncio.Event(), asyncio.Event()
    a, b = Revocable("a"), Revocable("b")

    async def receive() -> dict[str, Any]:
        await silence.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message.get("body"):
            begun.set()

    opened = []
    for _ in range(2):
        begun.clear()
        opened.append(asyncio.create_task(a_stream(a, opened=open_streams)(SCOPE, receive, send)))
        await begun.wait()
    with pytest.raises(TooManyStreams):
        a_stream(a, opened=open_streams)
    a_stream(b, opened=open_streams)
    silence.set()
    await asyncio.gather(*opened)
    a_stream(a, opened=open_streams)
    assert not open_streams, "nothing is kept of keys that have none"


@pytest.mark.parametrize(
    ("holder", "asked", "status"),
    [
        (Holder(tenant_id="t1", user_id="u2"), {}, 404),
        (Holder(tenant_id="t1"), {"user_id": "u2"}, 404),
        (Holder(tenant_id="t2"), {}, 404),
        (Holder(tenant_id="t1", user_id="u1"), {}, 429),  # otherwise an admitted stream would never end
    ],
)
async def test_conversation_is_streamed_only_to_its_people(holder: Holder, asked: dict[str, str], status: int) -> None:
    async with serving(holder, auth="keys") as served:
        await served.remembered.say("Hello.", conversation_id="c1", user_id="u1")
        served.services.feed._offsets = Feeding().feed.offsets
        served.services.open_streams[(await holder.principal("any")).key_id] = STREAMS_PER_KEY
        answer = await served.client.get("/v1/events", params={"conversation_id": "c1", **asked})
        assert answer.status_code == status
        if status == 429:
            assert answer.json()["error_type"] == "too_many_streams"
            assert int(answer.headers["Retry-After"]) > 0


async def test_many_events_for_many_clients_block_no_request() -> None:
    feeding, summary = Feeding(), a_summary(1).to_json()
    nobody = StreamFilter(Owner("nobody", "t1"), frozenset(ALL))
    records = [a_record(n, summary) for n in range(200)]
    async with AsyncExitStack() as clients:
        for _ in range(2000):
            await clients.enter_async_context(listening(feeding, nobody))
        found = await clients.enter_async_context(listening(feeding, EVERYTHING))

        async def handed_out() -> None:
            await feeding.feed.hand_out(records)
            while len(found) < len(records):  # noqa: ASYNC110 – the client reads in turns
                await asyncio.sleep(0)

        _, share = await blocking(handed_out())
    assert share < MOST_SHARE


TOPICS = ("a", "b", "c")
offsets = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 20)), st.integers(0, 10**18 - 1), max_size=20
)


@given(offsets)
def test_offsets_survive_a_round_trip(found: dict[TopicPartition, int]) -> None:
    back = offsets_of(TOPICS, position_id(TOPICS, found))
    assert {tp: offset for tp, offset in back.items() if offset} == {tp: o for tp, o in found.items() if o}


@given(st.text() | st.binary().map(bytes.hex))
def test_any_event_id_is_read_or_refused(text: str) -> None:
    try:
        found = offsets_of(TOPICS, text)
    except PositionInvalid:
        return
    assert offsets_of(TOPICS, position_id(TOPICS, found)) == found


@pytest.mark.parametrize(
    "text", ["", "!", ";", ";;;", "1,;;", "1;;2;", "-1;;", "1 ;;", "٣;;", "9" * 19 + ";;", "1," * 9000 + ";;"]
)
def test_malformed_event_id_is_refused(text: str) -> None:
    with pytest.raises(PositionInvalid):
        offsets_of(TOPICS, text)


def test_event_id_of_24_partitions_is_short() -> None:
    every = {TopicPartition(topic, n): 10_000_000 for topic in TOPICS for n in range(8)}
    assert len(position_id(TOPICS, every)) <= 220


async def test_events_are_compared_with_the_store_in_small_batches() -> None:
    feeding, asked = Feeding(), list[int]()

    async def lookup(episode_ids: Sequence[str]) -> Mapping[str, Episode]:
        asked.append(len(episode_ids))
        return await feeding.lookup(episode_ids)

    feed = Feed(Kafka(), feeding.metrics, lookup)
    source = TopicPartition("summary.created", 0)
    summaries = [a_summary(n, "c1") for n in range(1, 2 * COMPARED_TOGETHER + 2)]
    missed = [Published("", "summary.created", one, "", source, n, 0.0) for n, one in enumerate(summaries)]
    assert await feed.still_there(missed) == missed
    assert asked == [COMPARED_TOGETHER, COMPARED_TOGETHER, 1]
