"""The same rules in a stock Faust agent with tables: one event at a time, Faust's own changelog and commits."""

import time
from collections.abc import AsyncIterable
from typing import Any

import faust

from benchmarks.programs.configuration import Configuration, from_environment
from benchmarks.programs.rules import Record, segmenter_of

RAW = {"key_type": bytes, "value_type": bytes}
SERIALIZERS = {"key_serializer": "raw", "value_serializer": "raw"}


def tuned(bench: Configuration) -> Any:
    """RocksDB, fewer commits, larger buffers, no leader topic; everything else as Faust has it."""
    return faust.App(
        bench.group,
        broker=f"kafka://{bench.bootstrap}",
        store="rocksdb://?driver=rocksdict",
        datadir=bench.state,
        topic_partitions=bench.partitions,
        topic_disable_leader=True,
        consumer_auto_offset_reset="earliest",
        broker_commit_interval=0.5,
        stream_buffer_maxsize=16384,
        producer_linger=0.005,
        web_enabled=False,
    )


def make_app() -> Any:
    bench = from_environment()
    app = tuned(bench)
    tables = {name: app.Table(name, partitions=bench.partitions, **RAW) for name in ("conversations", "messages")}
    episodes = app.topic(bench.episodes, **RAW, **SERIALIZERS)
    segmenter = segmenter_of(bench, tables["conversations"], tables["messages"])

    @app.agent(app.topic(bench.messages, **RAW, **SERIALIZERS))  # type: ignore[untyped-decorator]
    async def segment(stream: AsyncIterable[Any]) -> None:
        async for event in stream.events():  # type: ignore[attr-defined]
            m = event.message
            record = Record(m.topic, m.partition, m.offset, int(m.timestamp * 1000), m.key, m.value)
            outcome = segmenter.process([record], time.time_ns() // 1_000_000)
            for _, key, value, headers in outcome.outgoing:
                await episodes.send(key=key, value=value, headers=dict(headers))

    return app


if __name__ == "__main__":
    faust.Worker(make_app(), loglevel="WARNING").execute_from_commandline()
