"""Completion of a batch, through a real Faust stream, because Faust acknowledges in many ways. The whole file runs a
second time without Faust's Cython code, which acknowledges in its own way.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faust.types.tuples import TP

from faust_eos.app import App
from faust_eos.at_least_once import ConcurrentMessage
from faust_eos.batch import Batch, BatchMessage, NotTaken, bound, current_batch, failing_batch
from faust_eos.errors import AgentFailed, BatchClosed
from faust_eos.options import Options
from faust_eos.transaction import Output

SOURCE = TP("in", 0)
SECONDS = 60.0
OUTPUT = Output("out", b"k", b"v")


class Agent:
    """The stream of an app without connections, and a task that iterates over it as an agent would."""

    def __init__(self, directory: Path) -> None:
        self.app = App("unit", brokers="127.0.0.1:1", engine=Options(), datadir=directory)
        self.app.finalize()
        self.app.topics.acking_topics.add(SOURCE.topic)
        self.app.flow_control.resume()
        self.channel = self.app.channel()
        self.stream = self.app.stream(self.channel)
        self.late: list[BatchClosed] = []

    def batch(self) -> Batch:
        return Batch("in-0", None, self.late.append)

    async def give(self, batch: Batch, *, generation: int | None = None) -> None:
        await self.put(partial(BatchMessage, batch), generation)

    async def put(self, make: Any, generation: int | None = None) -> None:
        generation = self.app.consumer_generation_id if generation is None else generation
        message = make(SOURCE, 7, 1.0, ["a record"], generation)
        message.incref()
        await self.channel.put(self.app.create_event(None, message.value, None, message))

    def run(self, handle: Any) -> "asyncio.Task[None]":
        async def agent() -> None:
            async for work in self.stream:
                await handle(work)

        return asyncio.create_task(agent())


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


async def nothing(_: Any) -> None: ...


async def ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, ValueError):
        await task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 – no event is set when it holds
            await asyncio.sleep(0.001)


async def within(future: Any) -> None:
    async with asyncio.timeout(SECONDS):
        await asyncio.shield(future)


async def test_batch_is_done_once_the_agent_asks_for_another(agent: Agent) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handle(_: Any) -> None:
        begun.set()
        await go_on.wait()

    batch = agent.batch()
    task = agent.run(handle)
    await agent.give(batch)
    await within(begun.wait())
    assert not batch.done.done()
    assert batch.open
    go_on.set()
    await within(batch.done)
    assert not batch.open
    await ended(task)


async def test_agent_that_raises_leaves_its_batch_unfinished(agent: Agent) -> None:
    async def handle(_: Any) -> None:
        raise ValueError

    batch = agent.batch()
    task = agent.run(handle)
    await agent.give(batch)
    with contextlib.suppress(ValueError):
        await task
    del task
    with pytest.raises(AgentFailed) as failure:
        await within(batch.done)
    assert isinstance(failure.value.cause, GeneratorExit)


async def test_agent_that_leaves_its_loop_leaves_its_batch_unfinished(agent: Agent) -> None:
    batch = agent.batch()
    await agent.give(batch)

    async def first_only() -> None:
        async for _ in agent.stream:
            return

    await first_only()
    with pytest.raises(AgentFailed):
        await within(batch.done)


async def test_cancelled_agent_leaves_its_batch_unfinished(agent: Agent) -> None:
    begun = asyncio.Event()

    async def handle(_: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    batch = agent.batch()
    task = agent.run(handle)
    await agent.give(batch)
    await within(begun.wait())
    await ended(task)
    del task
    with pytest.raises(AgentFailed):
        await within(batch.done)


@pytest.mark.parametrize("why", ["generation", "flow"])
async def test_batch_skipped_by_faust_is_never_done(agent: Agent, why: str) -> None:
    """Faust's Cython code does not acknowledge such a batch; its Python code does."""
    skipped, taken = agent.batch(), agent.batch()
    await agent.give(skipped, generation=99 if why == "generation" else None)
    if why == "flow":
        agent.app.flow_control.suspend()
    task = agent.run(nothing)
    await until(agent.stream.channel.queue.empty)
    await asyncio.sleep(0)
    agent.app.flow_control.resume()
    await agent.give(taken)
    await within(taken.done)
    if skipped.done.done():
        failure = skipped.done.exception()
        assert isinstance(failure, AgentFailed)
        assert isinstance(failure.cause, NotTaken)
    await ended(task)


async def test_at_least_once_records_have_no_failing_batch(agent: Agent) -> None:
    with bound(agent.batch()), pytest.raises(LookupError), failing_batch():
        raise AssertionError("nobody would hear of it")


async def test_single_record_skipped_by_faust_is_not_done(agent: Agent) -> None:
    done: list[int] = []

    def message(*about: Any) -> ConcurrentMessage:
        return ConcurrentMessage(lambda finished: done.append(finished.offset), agent.batch(), *about)

    taken = agent.batch()
    task = agent.run(nothing)
    await agent.put(message, 99)
    await agent.give(taken)
    await within(taken.done)
    assert done == []
    await agent.put(message)
    second = agent.batch()
    await agent.give(second)
    await within(second.done)
    assert done == [] or done == [7]
    await ended(task)


async def test_task_that_outlives_its_event_fails_on_every_write(agent: Agent) -> None:
    tasks: list[asyncio.Task[None]] = []
    write = asyncio.Event()

    async def late() -> None:
        await write.wait()
        batch = current_batch()
        assert batch is not None
        batch.send(OUTPUT)

    async def handle(_: Any) -> None:
        tasks.append(asyncio.create_task(late()))

    first, second = agent.batch(), agent.batch()
    task = agent.run(handle)
    await agent.give(first)
    await within(first.done)
    await agent.give(second)
    await within(second.done)
    del first, second
    write.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [BatchClosed, BatchClosed]
    assert len(agent.late) == 2
    await ended(task)


async def test_write_raises_after_close_and_is_dropped_after_abandonment(agent: Agent) -> None:
    closed = agent.batch()
    closed.finish()
    with pytest.raises(BatchClosed, match="topic out"):
        closed.send(OUTPUT)
    abandoned = agent.batch()
    abandoned.abandon()
    abandoned.send(OUTPUT)
    assert abandoned.outputs == closed.outputs == []
    assert len(agent.late) == 1


async def test_messages_sent_by_the_agent_join_its_batch(agent: Agent) -> None:
    async def handle(_: Any) -> None:
        await agent.app.producer.send("out", b"k", b"v", 3, 1.5, {"a": b"b"})

    batch = agent.batch()
    task = agent.run(handle)
    await agent.give(batch)
    await within(batch.done)
    assert batch.outputs == [Output("out", b"k", b"v", headers=[("a", b"b")], partition=3, timestamp_ms=1500)]
    await ended(task)


@pytest.mark.nightly
@pytest.mark.skipif("NO_CYTHON" in os.environ, reason="this is the second run")
def test_batches_behave_the_same_without_the_cython_extension() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        command, env={**os.environ, "NO_CYTHON": "1"}, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout
