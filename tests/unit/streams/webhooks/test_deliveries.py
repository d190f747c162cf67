"""Deliveries to one endpoint: in order, repeated until accepted, and the outcome of those that are not."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas.records import CE_TYPE, FOR_ENDPOINT
from afterword.streams.app import Lanes
from afterword.streams.errors import StoreUnavailable
from afterword.streams.stores.episodes import Episode, Lookup
from afterword.streams.telemetry.metrics import Metrics
from afterword.streams.webhooks.agent import Deliveries, wait_after
from afterword.streams.webhooks.endpoint import DeliveryFailed, EndpointGone
from distributions.engine.tests.simulation.virtual_time import run_in_virtual_time
from faust_eos.failures import Attempts, Breaker
from tests.samples import NOON, a_stored_episode, a_summary, a_tombstone

FOREVER = 1000


@dataclass
class Record:
    """A conversation's event, invalid if its number is 0; the endpoint fails `failures` times before it takes it."""

    conversation: str
    number: int
    failures: int = 0
    headers: tuple[tuple[str, bytes], ...] = ()
    topic: str = "summary.created"
    partition: int = 0
    timestamp: int = 0

    @property
    def key(self) -> bytes:
        return self.conversation.encode()

    @property
    def value(self) -> bytes:
        return a_summary(self.number, self.conversation).to_json() if self.number else b"{}"

    @property
    def id(self) -> str:
        return f"{self.conversation}:{self.number}:1"


@dataclass
class Given:
    """A record in the hands of the agent, as the engine gives it."""

    value: Record
    acknowledged: int = 0

    def __post_init__(self) -> None:
        self.message = SimpleNamespace(rests=False, on_rest=lambda: None)

    def ack(self) -> None:
        self.acknowledged += 1


@dataclass
class Taking:
    """An endpoint that fails as often as each record says, and stops all at the `kill_at`th request."""

    records: dict[str, Record]
    name: str = "one"
    kill_at: int = -1
    kill: Callable[[], None] = lambda: None
    requests: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    taken: list[str] = field(default_factory=list)
    busy: set[str] = field(default_factory=set)
    gone: bool = False

    @asynccontextmanager
    async def turn(self) -> Any:
        yield

    async def post(self, identity: str, _: bytes) -> None:
        record = self.records[identity]
        assert record.conversation not in self.busy, "two at a time of one conversation"
        self.busy.add(record.conversation)
        try:
            self.requests += 1
            if self.requests == self.kill_at:
                self.kill()
            await asyncio.sleep(0)
            if self.gone:
                raise EndpointGone(kind="gone")
            if self.failed.get(identity, 0) < record.failures:
                self.failed[identity] = self.failed.get(identity, 0) + 1
                raise DeliveryFailed(problem="it answers 500", kind="http_5xx")
            self.taken.append(identity)
        finally:
            self.busy.discard(record.conversation)


@dataclass
class Letters:
    sent: list[tuple[str, str, int]] = field(default_factory=list)

    def send(self, record: Record, error_type: str, _: str, attempts: int = 1) -> None:
        self.sent.append((record.id, error_type, attempts))


def deliveries(
    endpoint: Taking,
    letters: Letters,
    retry_seconds: float = 60.0,
    retries: int = 0,
    since: datetime | None = None,
    lookup: Lookup | None = None,
) -> Deliveries:
    attempts = Attempts(Breaker(), retries, stops=())
    metrics = Metrics("webhooks", "0")
    handler = Deliveries(  # type: ignore[arg-type]  # as far as they are used
        endpoint, "undelivered", attempts, retry_seconds, lookup or unknown, metrics, since, first_wait_seconds=0.001
    )
    handler.give_up = letters.send  # type: ignore[method-assign]
    return handler


async def unknown(_: Sequence[str]) -> Mapping[str, Episode]:
    return {}


def lanes() -> tuple[Lanes[bytes], list[BaseException]]:
    errors: list[BaseException] = []
    return Lanes[bytes](lambda _, error: errors.append(error)), errors


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 – several tasks may bring it about
            await asyncio.sleep(0.001)


Plan = dict[str, list[int]]
plans = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d"]), st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1
)


@given(plan=plans, kills=st.lists(st.integers(1, 12), max_size=3))
def test_events_arrive_in_order_after_any_failure(plan: Plan, kills: list[int]) -> None:
    asyncio.run(all_is_taken(plan, kills))


async def all_is_taken(plan: Plan, kills: list[int]) -> None:
    records = [
        Record(conversation, number, failures)
        for conversation, found in plan.items()
        for number, failures in enumerate(found, 1)
    ]
    endpoint, letters = Taking({record.id: record for record in records}), Letters()
    given_out = [Given(record) for record in records]
    for kill_at in [*kills, -1]:
        killed = asyncio.Event()
        endpoint.kill_at = endpoint.requests + kill_at if kill_at > 0 else -1
        endpoint.kill = killed.set
        running, errors = lanes()
        left = [one for one in given_out if not one.acknowledged]
        handler = deliveries(endpoint, letters)
        for one in left:
            running.submit(one.value.key, partial(handler.deliver, one))
        await until(lambda: killed.is_set() or not running.in_flight)  # noqa: B023 – it is awaited here
        await running.cancel()
        assert errors == []
    assert [one.acknowledged for one in given_out] == [1] * len(given_out)
    assert letters.sent == []
    for conversation, found in plan.items():
        firsts = dict.fromkeys(one for one in endpoint.taken if endpoint.records[one].conversation == conversation)
        assert list(firsts) == [f"{conversation}:{number}:1" for number in range(1, len(found) + 1)]
        # a repeat is of what was taken and not committed when it was killed: nothing newer was taken before it
        numbers = [endpoint.records[one].number for one in endpoint.taken if one in firsts]
        assert numbers == sorted(numbers)


async def deliver(record: Record, **fields: Any) -> tuple[Given, Taking, Letters]:
    endpoint, letters, one = Taking({record.id: record}), Letters(), Given(record)
    await deliveries(endpoint, letters, **fields).deliver(one)
    return one, endpoint, letters


async def test_overdue_event_is_dead_lettered_with_its_tries() -> None:
    one, endpoint, letters = await deliver(Record("c", 1, FOREVER), retry_seconds=0.05)
    assert letters.sent == [("c:1:1", "delivery_failed", endpoint.requests)]
    assert endpoint.requests > 1
    assert one.acknowledged == 1


async def test_stuck_conversation_blocks_no_other() -> None:
    records = [Record("stuck", 1, FOREVER), Record("stuck", 2), *(Record("other", number) for number in range(1, 9))]
    endpoint, (running, _) = Taking({record.id: record for record in records}), lanes()
    handler = deliveries(endpoint, Letters())
    for record in records:
        running.submit(record.key, partial(handler.deliver, Given(record)))
    await until(lambda: len(endpoint.taken) == 8)
    assert endpoint.taken == [f"other:{number}:1" for number in range(1, 9)]
    await running.cancel()


async def test_invalid_event_is_dead_lettered_and_empty_one_skipped() -> None:
    one, endpoint, letters = await deliver(Record("c", 0))
    assert (letters.sent, endpoint.requests, one.acknowledged) == ([("c:0:1", "schema_violation", 1)], 0, 1)
    one, endpoint, letters = await deliver(Record("c", 1, headers=((CE_TYPE, b"summary.other"),)))
    assert (letters.sent, endpoint.requests, one.acknowledged) == ([], 0, 1)


async def test_replay_reaches_its_endpoint_only() -> None:
    for name, taken in (("one", ["c:1:1"]), ("another", [])):
        one, endpoint, _ = await deliver(Record("c", 1, headers=((FOR_ENDPOINT, name.encode()),)))
        assert (endpoint.taken, one.acknowledged) == (taken, 1)


async def test_events_before_the_endpoints_start_are_skipped() -> None:
    since_ms = int(NOON.timestamp() * 1000)
    for number, taken in ((1, []), (2, ["c:2:1"]), (3, ["c:3:1"])):
        one, endpoint, letters = await deliver(Record("c", number, timestamp=since_ms + number - 2), since=NOON)
        assert (endpoint.taken, one.acknowledged, letters.sent) == (taken, 1, [])


async def test_nothing_is_acknowledged_after_410() -> None:
    record = Record("c", 1)
    endpoint, letters, one = Taking({record.id: record}, gone=True), Letters(), Given(record)
    delivering = asyncio.create_task(deliveries(endpoint, letters).deliver(one))
    await until(lambda: endpoint.requests == 1 and one.message.rests)
    await asyncio.sleep(0.05)
    assert (one.acknowledged, letters.sent, endpoint.requests) == (0, [], 1)
    delivering.cancel()
    await asyncio.wait([delivering])


def test_unforeseen_error_is_dead_lettered_after_retries() -> None:
    record = Record("c", 1)
    endpoint, letters, one = Taking({}), Letters(), Given(record)  # it knows no record: KeyError
    run_in_virtual_time(deliveries(endpoint, letters, retries=1).deliver(one))
    assert (letters.sent, one.acknowledged) == ([("c:1:1", "unforeseen", 2)], 1)


def test_waits_are_those_the_endpoint_asks_for() -> None:
    asked = DeliveryFailed(problem="it answers 429", kind="http_429", retry_after=7.0)
    assert wait_after(asked) == 7.0
    assert wait_after(DeliveryFailed(problem="it answers 500", kind="http_5xx")) is True
    assert wait_after(EndpointGone(kind="gone")) is False
    assert wait_after(ValueError()) is False


async def test_deleted_or_replaced_summary_is_not_posted() -> None:
    stored = {"a:1": a_stored_episode(revision=1), "b:1": a_stored_episode(revision=2), "c:1": a_tombstone(1, 2)}
    away = True

    async def lookup(names: Sequence[str]) -> Mapping[str, Episode]:
        nonlocal away
        if away:
            away = False
            raise StoreUnavailable(store="mongodb", problem="AutoReconnect")
        return {name: stored[name] for name in names if name in stored}

    records = {record.id: record for record in (Record("a", 1, failures=1), Record("b", 1), Record("c", 1))}
    endpoint, letters = Taking(records), Letters()
    handler = deliveries(endpoint, letters, lookup=lookup)
    given = [Given(record) for record in records.values()]
    for one in given:
        await handler.deliver(one)
    assert (endpoint.taken, letters.sent) == (["a:1:1"], [])
    assert [one.acknowledged for one in given] == [1, 1, 1]
    endpoint.taken.clear()
    records["a:1:1"].failures = 3

    async def fail_and_delete() -> None:
        await until(lambda: endpoint.failed["a:1:1"] > 1)
        stored["a:1"] = a_tombstone(1, 2)

    await asyncio.gather(handler.deliver(Given(records["a:1:1"])), fail_and_delete())
    assert endpoint.taken == []
