"""Exactly-once, micro-batching engine beneath faust-streaming, through Faust's own plug-in points.

    app = App("service", brokers="127.0.0.1:9092", engine=Options(), datadir=Path("state"))
    orders = app.topic("orders", schema=Batches())
    totals = app.Table("totals", key_type=bytes, value_type=bytes)

    @app.agent(orders)
    async def count(stream):
        async for batch in stream:          # a list of aiokafka records, or a Tick
            ...

One transactional producer for each source partition; a commit puts outputs, changelog and source offset into one Kafka
transaction. Whoever reads the outputs must use `isolation_level=read_committed`.
"""

from afterword.streams.runtime.app import App
from afterword.streams.runtime.batch import Tick
from afterword.streams.runtime.metrics import EngineMetrics
from afterword.streams.runtime.options import Options
from afterword.streams.runtime.schema import AtLeastOnce, Batches

__all__ = ["App", "AtLeastOnce", "Batches", "EngineMetrics", "Options", "Tick"]
