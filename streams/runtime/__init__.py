"""Exactly-once, micro-batching engine beneath faust-streaming, through Faust's own plug-in points: see README.md."""

from afterword.streams.runtime.app import App
from afterword.streams.runtime.at_least_once import AtLeastOnce, joining
from afterword.streams.runtime.batch import Batches, Output, Tick, failing_batch
from afterword.streams.runtime.breaker import Breaker
from afterword.streams.runtime.metrics import EngineMetrics
from afterword.streams.runtime.options import Options

__all__ = [
    "App",
    "AtLeastOnce",
    "Batches",
    "Breaker",
    "EngineMetrics",
    "Options",
    "Output",
    "Tick",
    "failing_batch",
    "joining",
]
