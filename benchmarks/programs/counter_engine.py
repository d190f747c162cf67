"""A counter per key on our engine: an ordinary Faust app, written as its README shows it."""

import asyncio
from collections.abc import AsyncIterable
from typing import Any

import orjson

from afterword.streams import logs
from afterword.streams.runtime import App, Batches, Options, Tick
from afterword.streams.runtime.worker import run
from afterword.streams.settings import Logs
from benchmarks.programs.configuration import from_environment


def make_app() -> App:
    bench = from_environment()
    app = App(bench.group, brokers=bench.bootstrap, engine=Options(), datadir=bench.state)
    totals = app.Table("totals", key_type=bytes, value_type=bytes)

    @app.agent(app.topic(bench.messages, schema=Batches()))  # type: ignore[untyped-decorator]
    async def count(stream: AsyncIterable[Any]) -> None:
        async for batch in stream:
            if isinstance(batch, Tick):
                continue
            for record in batch:
                amount = orjson.loads(record.value)["amount"]
                totals[record.key] = b"%d" % (int(totals.get(record.key) or 0) + amount)

    return app


if __name__ == "__main__":
    logs.configure(Logs())
    asyncio.run(run(make_app()))
