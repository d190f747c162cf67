"""A worker for the tests of the engine: counts the records of each key, and misbehaves when a record asks for it.

Started as a process of its own; what it is told comes as JSON in the variable COUNTER (see `Told`).
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from afterword.streams import logs
from afterword.streams.settings import Logs
from faust_eos.app import App, run
from faust_eos.at_least_once import AtLeastOnce
from faust_eos.batch import Batches, Reject, Tick, failing_batch
from faust_eos.options import Options
from faust_eos.transaction import Output

VARIABLE = "COUNTER"
RAW = {"key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw"}


@dataclass(frozen=True)
class Told:
    app_id: str
    brokers: str
    source: str
    output: str
    state: str
    faults: str
    """A directory. A record that names a file in it fails as often as the number in that file says."""
    journal: str
    """A file with the records that at-least-once handlers began and finished."""
    instance: str | None = None
    at_least_once: bool = False
    ordered: bool = False
    """True if records with the same key are handled in order (at-least-once)."""
    session_seconds: float = 6.0
    rejects: bool = False
    """True if a record that keeps failing becomes a dead letter on the output topic."""
    lingers: bool = False
    """True if something keeps the process running after the worker has stopped."""
    options: dict[str, Any] = field(default_factory=dict)


def main() -> None:
    told = Told(**orjson.loads(os.environ[VARIABLE]))
    logs.configure(Logs(format="json"))
    app = make_app(told)
    if told.at_least_once:
        add_slow_agent(app, told)
    else:
        add_counter(app, told)
    asyncio.run(run(app))
    if told.lingers:
        time.sleep(3600)


def make_app(told: Told) -> App:
    return App(
        told.app_id,
        brokers=told.brokers,
        engine=Options(**told.options),
        datadir=Path(told.state),
        broker_session_timeout=told.session_seconds,
        broker_heartbeat_interval=1.0,
        broker_rebalance_timeout=15.0,
        broker_request_timeout=told.session_seconds + 4,
        consumer_group_instance_id=told.instance,
    )


def due_of(value: bytes) -> int | None:
    due: int | None = orjson.loads(value)["due"]
    return due


def rejection(told: Told) -> Reject | None:
    def reject(record: Any, error: Exception) -> Output:
        value = orjson.dumps({"rejected": orjson.loads(record.value)["i"], "problem": type(error).__name__})
        return Output(told.output, record.key, value, partition=record.partition)

    return reject if told.rejects else None


def refused_by_kafka(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with which an output is sent, so that Kafka refuses it if the record asks for that."""
    return {"timestamp": time.time() + asked.get("ahead_seconds", 0)} | ({"key": None} if "keyless" in asked else {})


def add_counter(app: App, told: Told) -> None:
    counter = Counter(app, told)

    @app.agent(app.topic(told.source, schema=Batches(reject=rejection(told))))
    async def agent(stream: AsyncIterable[Any]) -> None:
        async for work in stream:
            with failing_batch() if told.rejects else contextlib.nullcontext():
                await counter.handle(work)


class Counter:
    """Rows are {"n": records so far, "due": deadline or null}; for each record one output with the new n."""

    def __init__(self, app: App, told: Told) -> None:
        self._clock = app.engine.clock
        self._counts = app.Table("counts", deadline=due_of)
        self._output = app.topic(told.output, **RAW)
        self._faults = Path(told.faults)

    async def handle(self, work: Any) -> None:
        if isinstance(work, Tick):
            await self.tick(work)
            return
        for record in work:
            await self.count(record)

    async def count(self, record: Any) -> None:
        asked = orjson.loads(record.value)
        n = self._read(record.key) + 1
        self._write(record.key, n, self._clock() + asked["due_ms"] if "due_ms" in asked else None)
        value = orjson.dumps({"i": asked["i"], "n": n, "pid": os.getpid()})
        sent = {"key": record.key, "value": value, "partition": record.partition} | refused_by_kafka(asked)
        await self._output.send(**sent)
        await self._misbehave(asked)

    async def tick(self, work: Tick) -> None:
        for _, key in work.due:
            n = self._read(key)
            self._write(key, n, None)
            await self._output.send(
                key=key, value=orjson.dumps({"tick": key.decode(), "n": n}), partition=work.partition
            )

    async def _misbehave(self, asked: dict[str, Any]) -> None:
        if "only_if" not in asked or self._fails(asked["only_if"]):
            await asyncio.sleep(asked.get("sleep", 0))
        if self._fails(asked.get("fail")):
            raise ValueError("asked to fail")
        if self._fails(asked.get("cling")):
            await cling()

    def _fails(self, name: str | None) -> bool:
        file = self._faults / name if name else None
        left = int(file.read_text() or 0) if file and file.exists() else 0
        if file and left:
            file.write_text(str(left - 1))
        return left > 0

    def _read(self, key: bytes) -> int:
        return int(orjson.loads(self._counts.get(key) or b'{"n":0}')["n"])

    def _write(self, key: bytes, n: int, due: int | None) -> None:
        self._counts[key] = orjson.dumps({"n": n, "due": due})


async def cling() -> None:
    """Ignore cancellation."""
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


def add_slow_agent(app: App, told: Told) -> None:
    """Handle each record in its own task."""
    running: set[asyncio.Task[None]] = set()
    slowness = Slowness(told, app.topic(told.output, **RAW))
    order = (lambda record: record.key) if told.ordered else (lambda _: None)

    @app.agent(app.topic(told.source, schema=AtLeastOnce(order=order, reject=rejection(told))))
    async def agent(stream: Any) -> None:
        async for event in stream.noack().events():
            if orjson.loads(event.value.value).get("agent_fails"):
                raise ValueError("asked to fail")
            task = asyncio.create_task(slowness.handle(event))
            running.add(task)
            task.add_done_callback(running.discard)


class Slowness:
    """Handles a record for as long as it says, then sends it on."""

    def __init__(self, told: Told, output: Any) -> None:
        self._faults, self._journal = Path(told.faults), Path(told.journal)
        self._output = output

    async def handle(self, event: Any) -> None:
        record = event.value
        self._note("begun", record)
        asked = orjson.loads(record.value)
        await asyncio.sleep(asked.get("sleep", 0))
        if "until" in asked:
            await self._until(asked["until"])
        value = orjson.dumps({"i": asked["i"], "pid": os.getpid()})
        sent = {"key": record.key, "value": value, "partition": record.partition} | refused_by_kafka(asked)
        await self._output.send(**sent)
        self._note("done", record)
        event.ack()

    async def _until(self, file: str) -> None:
        while not (self._faults / file).exists():  # noqa: ASYNC110 – nobody sets an event for it
            await asyncio.sleep(0.02)

    def _note(self, what: str, record: Any) -> None:
        with self._journal.open("a") as journal:
            journal.write(f"{what} {record.partition} {record.offset} {os.getpid()}\n")


if __name__ == "__main__":
    main()
