"""Metrics for Prometheus, OpenTelemetry traces, and the status of a worker.

Nothing is global: a worker's composition root makes one `Metrics` and one tracer, and passes them to its components.
What only workers need is in `worker.py`, which loads the engine.
"""

from afterword.streams.telemetry.metrics import Metrics

__all__ = ["Metrics"]
