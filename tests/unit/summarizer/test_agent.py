"""The summarizer's agent: records that fail, what is counted, and what it imports."""

import asyncio
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import InvalidTimestampError
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import EpisodeClosed, Quality
from afterword.schemas.dead_letters import read_dead_letter
from afterword.streams.app import Job, Lanes
from afterword.streams.errors import AnswerInvalid, StateUnreadable
from afterword.streams.settings import Kafka
from afterword.streams.stores.episodes import Cause
from afterword.streams.summarizer.agent import Outputs, RecordHandler
from afterword.streams.telemetry.metrics import Metrics
from faust_eos.batch import Batch, bound
from faust_eos.errors import EverythingFails, OutputRefused
from faust_eos.failures import Breaker
from faust_eos.transaction import Output
from tests.samples import a_closed_episode, a_summary
from tests.summarizer_world import a_handler

SECRET = "the contents of a message"


class Reconciler:
    """Fails on episodes of chosen conversations, so many times each."""

    def __init__(self, fails: dict[str, int], error: Exception | None = None) -> None:
        self.fails = fails
        self.error = error or KeyError(SECRET)
        self.processed: list[str] = []

    async def handle(self, episode: EpisodeClosed, _: Cause) -> None:
        await asyncio.sleep(0)
        if self.fails.get(episode.conversation_id, 0) > 0:
            self.fails[episode.conversation_id] -= 1
            raise self.error
        self.processed.append(episode.conversation_id)


class Queue:
    """Takes dead letters."""

    def __init__(self) -> None:
        self.taken: list[Any] = []

    def send(self, letter: Output) -> None:
        fields = {"topic": letter.topic, "key": letter.key, "value": letter.value, "headers": letter.headers}
        record: Any = SimpleNamespace(**fields, partition=0, offset=0, timestamp=0)
        self.taken.append(read_dead_letter(record))


class Event:
    def __init__(self, name: str, value: bytes | None = None) -> None:
        episode = a_closed_episode(1, conversation_id=name)
        self.value = SimpleNamespace(
            topic="episode.closed",
            partition=0,
            offset=7,
            key=name.encode(),
            value=value or episode.to_json(),
            headers=[],
            timestamp=0,
        )
        self.done = False

    def ack(self) -> None:
        self.done = True


def handler_of(reconciler: Any, queue: Any, **given: Any) -> RecordHandler:
    return a_handler(reconciler, queue.send, **given)


async def handled(handler: RecordHandler, *names: str) -> list[Event]:
    """Handle all events at once, as the lanes do."""
    events = [Event(name) for name in names]
    async with asyncio.TaskGroup() as group:
        for event in events:
            group.create_task(handler.handle(event))
    return events


async def test_episode_that_keeps_failing_is_dead_lettered_alone() -> None:
    reconciler, queue, metrics = Reconciler({"bad": 100}), Queue(), Metrics("summarizer", "1.2.3")
    handler, bad = handler_of(reconciler, queue, metrics=metrics), Event("bad")
    async with asyncio.TaskGroup() as group:
        group.create_task(handler.handle(bad))
        for _ in range(100):
            await asyncio.sleep(0)
        assert 100 - reconciler.fails["bad"] == 4
        assert not bad.done, "nothing has succeeded since: it may not be the record's fault"
        others = await handled(handler, "a", "b")
    assert all(event.done for event in (bad, *others))
    assert sorted(reconciler.processed) == ["a", "b"]
    [letter] = queue.taken
    assert (letter.error_type, letter.stage, letter.origin) == ("unforeseen", "summarizer", ("episode.closed", 0, 7))
    assert letter.problem.startswith("KeyError at afterword.streams.summarizer.agent:")
    assert SECRET not in repr(letter.headers) + letter.problem
    labels = {"stage": "summarizer", "error_type": "unforeseen"}
    assert metrics.registry.get_sample_value("afterword_dead_letters_total", labels) == 1


async def test_dead_letter_names_a_refused_announcements_topic() -> None:
    queue = Queue()
    refused = OutputRefused("summary.created", InvalidTimestampError())
    queue.send(handler_of(Reconciler({}), queue).dead_letter(Event("bad").value, refused))
    [letter] = queue.taken
    assert (letter.error_type, letter.origin) == ("unforeseen", ("episode.closed", 0, 7))
    assert letter.problem == "topic summary.created refuses a record with InvalidTimestampError (32)"


async def test_episode_that_fails_for_a_while_is_summarized() -> None:
    reconciler, queue = Reconciler({"bad": 3}), Queue()
    await handled(handler_of(reconciler, queue), "bad")
    assert reconciler.processed == ["bad"]
    assert not queue.taken


async def test_failure_on_every_episode_stops_without_dead_letters() -> None:
    names = [f"c{n}" for n in range(20)]
    reconciler, queue = Reconciler(dict.fromkeys(names, 100)), Queue()
    with pytest.raises(ExceptionGroup) as stopped:
        await handled(handler_of(reconciler, queue, breaker=Breaker(failures=20)), *names)
    assert all(isinstance(error, EverythingFails) for error in stopped.value.exceptions)
    assert SECRET not in str(stopped.value.exceptions[0])
    assert not queue.taken


@pytest.mark.parametrize(
    "error", [StateUnreadable(problem="a later release"), EverythingFails(where="", number=1, failure="")]
)
async def test_deliberate_stop_is_immediate(error: Exception) -> None:
    reconciler, queue = Reconciler({"a": 100}, error), Queue()
    event = Event("a")
    with pytest.raises(type(error)):
        await handler_of(reconciler, queue).handle(event)
    assert (reconciler.fails["a"], event.done, queue.taken) == (99, False, [])


async def test_invalid_record_is_done_after_its_dead_letter() -> None:
    event, taken = Event("c1", b"not JSON"), list[Any]()
    queue = SimpleNamespace(send=lambda letter: taken.append((letter.value, event.done)))
    await handler_of(SimpleNamespace(handle=None), queue).handle(event)  # what cannot be decoded does not come so far
    assert (taken, event.done) == ([(b"not JSON", False)], True)


async def test_summaries_are_counted_by_source_and_reason() -> None:
    metrics = Metrics("summarizer", "1.2.3")
    invalid = AnswerInvalid(problem="no JSON").error_type
    outputs = Outputs(Kafka(), metrics)
    with bound(Batch("episode.closed-0", None)):
        await outputs.publish(a_summary(quality=Quality(source="llm")))
        await outputs.publish(a_summary(quality=Quality(source="fallback", reason=invalid)))
    value = metrics.registry.get_sample_value
    assert value("afterword_summaries_total", {"source": "llm", "reason": ""}) == 1
    assert value("afterword_summaries_total", {"source": "fallback", "reason": invalid}) == 1


OF_OTHERS = {"rocksdict", "phonenumbers", "stdnum", "afterword.streams.segmenter.agent"}
"""What the state of a segmenter and redaction need."""


def test_summarizer_imports_nothing_of_other_workers() -> None:
    loaded = "import sys, afterword.streams.summarizer.agent; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert OF_OTHERS.isdisjoint(done.stdout.split())


class Owner:
    """Keeps what was reported, and hands out handlers that note when they run."""

    def __init__(self) -> None:
        self.errors: list[tuple[str, BaseException]] = []
        self.lanes: Lanes[str] = Lanes(lambda key, error: self.errors.append((key, error)))
        self.done: dict[str, list[int]] = defaultdict(list)
        self.running: dict[str, int] = defaultdict(int)

    def handler(self, key: str, number: int, turns: int = 0) -> Job:
        async def handle() -> None:
            self.running[key] += 1
            assert self.running[key] == 1
            for _ in range(turns):
                await asyncio.sleep(0)
            self.running[key] -= 1
            self.done[key].append(number)

        return handle

    def gated(self, key: str, number: int, gate: asyncio.Event) -> Job:
        async def handle() -> None:
            await gate.wait()
            self.done[key].append(number)

        return handle


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")


@given(work=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5), st.integers(0, 3)), max_size=40))
async def test_each_key_runs_one_record_at_a_time(work: list[tuple[str, int, int]]) -> None:
    owner = Owner()
    for number, (key, turns, pause) in enumerate(work):
        owner.lanes.submit(key, owner.handler(key, number, turns))
        for _ in range(pause):
            await asyncio.sleep(0)
    await until(lambda: not owner.lanes.in_flight)
    assert owner.errors == []
    assert owner.done == {key: [n for n, (k, *_) in enumerate(work) if k == key] for key in {k for k, *_ in work}}
    assert owner.lanes.in_flight == 0


async def test_slow_key_delays_no_other() -> None:
    owner, gate = Owner(), asyncio.Event()
    owner.lanes.submit("slow", owner.gated("slow", 0, gate))
    for number in range(100):
        owner.lanes.submit("quick", owner.handler("quick", number))
    await until(lambda: owner.done["quick"] == list(range(100)))
    assert owner.done["slow"] == []
    gate.set()
    await until(lambda: not owner.lanes.in_flight)
    assert owner.done["slow"] == [0]


@pytest.mark.parametrize("error", [ValueError("broken"), asyncio.CancelledError()], ids=["fails", "cancels itself"])
async def test_ended_lane_is_reported_and_returns_once_cancelled(error: BaseException) -> None:
    async def end() -> None:
        raise error

    owner = Owner()
    owner.lanes.submit("a", end)
    owner.lanes.submit("a", owner.handler("a", 1))
    owner.lanes.submit("b", owner.handler("b", 1))
    await until(lambda: bool(owner.errors) and owner.done["b"] == [1])
    owner.lanes.submit("a", owner.handler("a", 2))
    await until(lambda: not owner.lanes.in_flight)
    assert {(key, type(raised)) for key, raised in owner.errors} == {("a", type(error))}
    assert owner.done["a"] == []
    await owner.lanes.cancel()
    owner.lanes.submit("a", owner.handler("a", 3))
    await until(lambda: not owner.lanes.in_flight)
    assert owner.done["a"] == [3]


async def test_cancelling_ends_running_and_queued_work() -> None:
    owner, never = Owner(), asyncio.Event()
    for number in range(3):
        owner.lanes.submit("a", owner.gated("a", number, never))
    owner.lanes.submit("b", owner.handler("b", 0))
    await until(lambda: owner.lanes.in_flight == 3)
    await owner.lanes.cancel()
    assert (owner.done["a"], owner.done["b"], owner.errors) == ([], [0], [])
    assert owner.lanes.in_flight == 0


async def test_work_queued_while_its_key_is_cancelled_is_no_failure() -> None:
    owner, gate = Owner(), asyncio.Event()

    async def end_slowly() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await gate.wait()

    owner.lanes.submit("a", end_slowly)
    await asyncio.sleep(0)
    cancelling = asyncio.create_task(owner.lanes.cancel())
    await asyncio.sleep(0)
    for number in range(2):
        owner.lanes.submit("a", owner.handler("a", number))
    gate.set()
    await cancelling
    await until(lambda: not owner.lanes.in_flight)
    assert (owner.done["a"], owner.errors) == ([], [])


async def test_lane_cancelled_before_its_first_step_leaks_nothing() -> None:
    owner = Owner()
    owner.lanes.submit("a", owner.handler("a", 0))
    await owner.lanes.cancel()
    owner.lanes.submit("a", owner.handler("a", 1))
    await until(lambda: not owner.lanes.in_flight)
    assert owner.done["a"] == [1]


async def test_finished_lanes_leave_nothing() -> None:
    owner = Owner()
    for number in range(50):
        owner.lanes.submit(f"k{number}", owner.handler(f"k{number}", 0))
    await until(lambda: not owner.lanes.in_flight)
    assert not owner.lanes._last
