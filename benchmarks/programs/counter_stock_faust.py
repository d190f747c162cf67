"""A counter per key in a stock Faust agent with a table: Faust's own changelog and commits, at least once."""

from collections.abc import AsyncIterable
from typing import Any

import faust
import orjson

from benchmarks.programs.configuration import from_environment
from benchmarks.programs.stock_faust import RAW, SERIALIZERS, tuned


def make_app() -> Any:
    bench = from_environment()
    app = tuned(bench)
    totals = app.Table("totals", partitions=bench.partitions, **RAW)

    @app.agent(app.topic(bench.messages, **RAW, **SERIALIZERS))  # type: ignore[untyped-decorator]
    async def count(stream: AsyncIterable[Any]) -> None:
        async for key, value in stream.items():  # type: ignore[attr-defined]
            totals[key] = b"%d" % (int(totals.get(key) or 0) + orjson.loads(value)["amount"])

    return app


if __name__ == "__main__":
    faust.Worker(make_app(), loglevel="WARNING").execute_from_commandline()
