"""The programs that are compared, each in its own process: python -m benchmarks.programs NAME [ARGUMENT …]

Programs that read a topic find it in their environment, and run until they are stopped. Libraries are imported where
they are used: no virtual environment has them all.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import orjson

MAX_BATCH = 2000
TABLES = ("conversations", "messages")
RECENT_MESSAGES, RECENT_EPISODES = 6, 5
QUIX_COMMIT_SECONDS = 1.0
"""The default of 5 seconds would give a round too few commits to be timed."""


class Bench(NamedTuple):
    bootstrap: str
    prefix: str
    group: str
    source: str
    """The topic to read."""
    episodes: str
    state: Path
    partitions: int


def bench() -> Bench:
    env = os.environ
    return Bench(
        env["BENCH_BOOTSTRAP"],
        env["BENCH_PREFIX"],
        env["BENCH_GROUP"],
        env["BENCH_SOURCE"],
        env["BENCH_EPISODES"],
        Path(env["BENCH_STATE"]),
        int(env["BENCH_PARTITIONS"]),
    )


class Record(NamedTuple):
    """A Kafka record in the form that the segmenter reads."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


def segmenter_of(to: Bench, conversations: Any, messages: Any) -> Any:
    """Return the segmenter with all its default rules, which every program calls."""
    from afterword.streams.segmenter.processor import Segmenter
    from afterword.streams.settings import Episodes
    from afterword_text.tokens import count_tokens

    return Segmenter(
        limits=Episodes(),
        episodes_topic=to.episodes,
        dead_letters_topic=f"{to.source}.dlq",
        conversations=conversations,
        messages=messages,
        count_tokens=count_tokens,
    )


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def added(total: bytes | None, value: bytes) -> bytes:
    return b"%d" % (int(total or 0) + orjson.loads(value)["amount"])


# Ours


def counter() -> None:
    """Run a counter per key on our engine, written as in its README."""
    from afterword.streams import logs
    from afterword.streams.settings import Logs
    from faust_eos.app import App, run
    from faust_eos.batch import Batches, Tick
    from faust_eos.options import Options

    to = bench()
    app = App(to.group, brokers=to.bootstrap, engine=Options(), datadir=to.state)
    totals = app.Table("totals")

    @app.agent(app.topic(to.source, schema=Batches()))
    async def count(stream: AsyncIterable[Any]) -> None:
        async for batch in stream:
            for record in () if isinstance(batch, Tick) else batch:
                totals[record.key] = added(totals.get(record.key), record.value)

    logs.configure(Logs())
    asyncio.run(run(app))


def segmenter() -> None:
    """Run the segmenter as `afterword worker segmenter` does."""
    from afterword.streams import logs
    from afterword.streams.app import run_worker
    from afterword.streams.settings import Logs, load_settings

    to = bench()
    kafka = {"bootstrap_servers": to.bootstrap, "prefix": to.prefix, "messages_topic": to.source}
    logs.configure(Logs())
    asyncio.run(run_worker("segmenter", load_settings(state_dir=to.state, kafka=kafka, health={"port": 0})))


def ingest() -> None:
    """Run ingest as `afterword worker ingest` does, with the mapping in the environment."""
    from afterword.streams import logs
    from afterword.streams.app import run_worker
    from afterword.streams.settings import Logs, load_settings

    to = bench()
    file = to.state.with_suffix(".toml")
    file.write_text(os.environ["BENCH_MAPPING"])
    kafka = {"bootstrap_servers": to.bootstrap, "prefix": to.prefix, "messages_topic": to.episodes}
    logs.configure(Logs())
    asyncio.run(
        run_worker("ingest", load_settings(state_dir=to.state, kafka=kafka, health={"port": 0}, ingest={"file": file}))
    )


# By hand: aiokafka, rocksdict and a changelog, without transactions, so a crash repeats work


class Rows:
    """A table of one partition: RocksDB, with the writes of the current batch on top."""

    def __init__(self, path: Path) -> None:
        from rocksdict import Options, Rdict

        options = Options(raw_mode=True)
        options.create_if_missing(True)
        path.mkdir(parents=True, exist_ok=True)
        self._db = Rdict(str(path), options)
        self._changed: dict[bytes, bytes | None] = {}

    def get(self, key: bytes, /) -> bytes | None:
        return self._changed[key] if key in self._changed else self._db.get(key)

    def __setitem__(self, key: bytes, value: bytes, /) -> None:
        self._changed[key] = value

    def __delitem__(self, key: bytes, /) -> None:
        self._changed[key] = None

    def changes(self) -> Iterator[tuple[bytes, bytes | None]]:
        return iter(self._changed.items())

    def write(self) -> None:
        from rocksdict import WriteBatch

        batch = WriteBatch(raw_mode=True)
        for key, value in self._changed.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        self._db.write(batch)
        self._changed = {}


Handle = Callable[[Sequence[Any]], Iterable[Any]]
"""Handles the records of a partition, and returns the outputs to send."""


def counter_by_hand() -> None:
    def handle(rows: Mapping[str, Rows]) -> Handle:
        totals = rows["totals"]

        def count(records: Sequence[Any]) -> tuple[()]:
            for record in records:
                totals[record.key] = added(totals.get(record.key), record.value)
            return ()

        return count

    asyncio.run(run_by_hand(bench(), ["totals"], handle))


def segmenter_by_hand() -> None:
    to = bench()

    def handle(rows: Mapping[str, Rows]) -> Handle:
        rules = segmenter_of(to, rows["conversations"], rows["messages"])
        return lambda records: rules.process(records, now_ms()).outgoing

    asyncio.run(run_by_hand(to, TABLES, handle))


async def run_by_hand(to: Bench, tables: Sequence[str], make_handle: Callable[[Mapping[str, Rows]], Handle]) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    consumer = AIOKafkaConsumer(
        to.source,
        bootstrap_servers=to.bootstrap,
        group_id=to.group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    producer = AIOKafkaProducer(bootstrap_servers=to.bootstrap, acks="all", linger_ms=5, max_batch_size=1 << 18)
    stores = [{name: Rows(to.state / f"{name}-{number}") for name in tables} for number in range(to.partitions)]
    handles = [make_handle(rows) for rows in stores]
    async with consumer, producer:
        while True:
            for source, records in (await consumer.getmany(timeout_ms=200, max_records=MAX_BATCH)).items():
                outgoing, rows = handles[source.partition](records), stores[source.partition]
                sent = [
                    await producer.send(f"{to.group}-{name}-changelog", value, key, partition=source.partition)
                    for name, table in rows.items()
                    for key, value in table.changes()
                ]
                sent += [await producer.send(one.topic, one.value, one.key, headers=one.headers) for one in outgoing]
                await asyncio.gather(*sent)
                for table in rows.values():
                    table.write()
                await consumer.commit({source: records[-1].offset + 1})


# Stock Faust, at least once


def counter_faust() -> None:
    app, to = faust_app()
    totals = app.Table("totals", partitions=to.partitions, **RAW)

    @app.agent(app.topic(to.source, **RAW, **SERIALIZERS))
    async def count(stream: Any) -> None:
        async for key, value in stream.items():
            totals[key] = added(totals.get(key), value)

    run_faust(app)


def segmenter_faust() -> None:
    app, to = faust_app()
    tables = {name: app.Table(name, partitions=to.partitions, **RAW) for name in TABLES}
    episodes = app.topic(to.episodes, **RAW, **SERIALIZERS)
    rules = segmenter_of(to, tables["conversations"], tables["messages"])

    @app.agent(app.topic(to.source, **RAW, **SERIALIZERS))
    async def segment(stream: Any) -> None:
        async for event in stream.events():
            m = event.message
            record = Record(m.topic, m.partition, m.offset, int(m.timestamp * 1000), m.key, m.value)
            for one in rules.process([record], now_ms()).outgoing:
                await episodes.send(key=one.key, value=one.value, headers=dict(one.headers))

    run_faust(app)


RAW = {"key_type": bytes, "value_type": bytes}
SERIALIZERS = {"key_serializer": "raw", "value_serializer": "raw"}


def faust_app() -> tuple[Any, Bench]:
    """Return a Faust app with RocksDB, fewer commits, larger buffers and no leader topic, and defaults otherwise."""
    import faust

    to = bench()
    app = faust.App(
        to.group,
        broker=f"kafka://{to.bootstrap}",
        store="rocksdb://?driver=rocksdict",
        datadir=to.state,
        topic_partitions=to.partitions,
        topic_disable_leader=True,
        consumer_auto_offset_reset="earliest",
        broker_commit_interval=0.5,
        stream_buffer_maxsize=16384,
        producer_linger=0.005,
        web_enabled=False,
    )
    return app, to


def run_faust(app: Any) -> None:
    import faust

    faust.Worker(app, loglevel="WARNING").execute_from_commandline()


# quixstreams, exactly once, as its guide shows it


def counter_quix() -> None:
    def add(message: dict[str, Any], state: Any) -> None:
        state.set("total", state.get("total", 0) + message["amount"])

    app, to = quix_app()
    app.dataframe(app.topic(to.source)).update(add, stateful=True)
    app.run()


def segmenter_quix() -> None:
    from quixstreams import message_context

    app, to = quix_app()
    conversations, messages = QuixRows("c"), QuixRows("m")
    rules = segmenter_of(to, conversations, messages)

    def segment(value: bytes, key: bytes, timestamp: int, _: Any, state: Any) -> list[bytes]:
        conversations.state = messages.state = state
        at = message_context()
        record = Record(at.topic, at.partition, at.offset, timestamp, key, value)
        return [sent.value for sent in rules.process([record], now_ms()).outgoing if sent.value is not None]

    raw = {"value_deserializer": "bytes", "key_deserializer": "bytes", "value_serializer": "bytes"}
    frame = app.dataframe(app.topic(to.source, **raw)).apply(segment, stateful=True, metadata=True, expand=True)
    frame.to_topic(app.topic(to.episodes, **raw))
    app.run()


@dataclass
class QuixRows:
    """A table in the state of the current message, whose keys must be strings."""

    name: str
    state: Any = field(init=False)

    def get(self, key: bytes, /) -> bytes | None:
        return self.state.get_bytes(self._key(key))

    def __setitem__(self, key: bytes, value: bytes, /) -> None:
        self.state.set_bytes(self._key(key), value)

    def __delitem__(self, key: bytes, /) -> None:
        self.state.delete(self._key(key))

    def _key(self, key: bytes) -> str:
        return self.name + key.decode("latin-1")


def quix_app() -> tuple[Any, Bench]:
    """Return the application. As by default, state is in RocksDB with a changelog, and JSON is read by orjson."""
    from quixstreams import Application

    to = bench()
    app = Application(
        broker_address=to.bootstrap,
        consumer_group=to.group,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=QUIX_COMMIT_SECONDS,
        state_dir=to.state,
        loglevel="WARNING",
    )
    return app, to


# Others


def read_topics(bootstrap: str, partitions: str, *topics: str) -> None:
    """Read topics to their ends without handling the records. Print their number and the seconds as JSON."""
    asyncio.run(_read_topics(bootstrap, int(partitions), topics))


async def _read_topics(bootstrap: str, partitions: int, topics: Sequence[str]) -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=50,
        max_partition_fetch_bytes=1 << 20,  # like a recovery
    )
    sources = [TopicPartition(topic, number) for topic in topics for number in range(partitions)]
    async with consumer:
        began, records = time.monotonic(), 0
        consumer.assign(sources)
        ends = await consumer.end_offsets(sources)
        while any([await consumer.position(source) < ends[source] for source in sources]):
            records += sum(map(len, (await consumer.getmany(timeout_ms=200)).values()))
        print(json.dumps({"records": records, "seconds": time.monotonic() - began}))


def serve(port: str) -> None:
    """Serve the rows that make up a context with FastAPI and apsw, without any checks."""
    import apsw
    import uvicorn
    from fastapi import FastAPI

    app = FastAPI()
    connection = apsw.Connection(os.environ["AFTERWORD_SQLITE__PATH"])
    connection.set_busy_timeout(10_000)
    of_it = {
        "conversation": "SELECT document FROM conversations WHERE id = ?",
        "rolling": "SELECT document FROM conversation_summaries WHERE conversation_id = ? ORDER BY row DESC LIMIT 1",
        "episodes": f"SELECT document FROM episodes WHERE scope = ? ORDER BY ordinal DESC LIMIT {RECENT_EPISODES}",
        "messages": f"""SELECT json_set(message, '$.content', content) FROM messages WHERE conversation_id = ?
            ORDER BY offset DESC LIMIT {RECENT_MESSAGES}""",
    }

    @app.get("/context/{conversation_id}")
    async def show_context(conversation_id: str) -> dict[str, Any]:
        found = {
            name: [orjson.loads(document) for (document,) in connection.execute(select, (conversation_id,))]
            for name, select in of_it.items()
        }
        return {
            "title": [one["title"] for one in found["conversation"]],
            "rolling_summary": [one["content"] for one in found["rolling"]],
            "summaries": [one["summary"]["short_summary"] for one in found["episodes"]],
            "messages": found["messages"][::-1],
        }

    uvicorn.run(app, port=int(port), access_log=False, http="h11")


PROGRAMS: Mapping[str, Callable[..., None]] = {
    "counter": counter,
    "counter-by-hand": counter_by_hand,
    "counter-faust": counter_faust,
    "counter-quix": counter_quix,
    "ingest": ingest,
    "segmenter": segmenter,
    "segmenter-by-hand": segmenter_by_hand,
    "segmenter-faust": segmenter_faust,
    "segmenter-quix": segmenter_quix,
    "read-topics": read_topics,
    "serve": serve,
}

if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    PROGRAMS[name](*arguments)
