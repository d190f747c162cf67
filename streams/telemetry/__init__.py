"""Metrics for Prometheus, OpenTelemetry traces, and a worker's status.

Nothing is global: a worker's composition root makes one `Metrics` and one tracer, and passes them to its components.
`worker.py` contains the parts that only workers need, and loads the engine.
"""

from afterword.streams.telemetry import Metrics

__all__ = ["Metrics"]
