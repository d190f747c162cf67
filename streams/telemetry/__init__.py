"""Metrics for Prometheus, OpenTelemetry traces, and the status of a worker.

Nothing is global: a worker's composition root makes one `Metrics` and one tracer, and passes them to its components.
"""

from afterword.streams.telemetry.metrics import Metrics
from afterword.streams.telemetry.worker import WorkerTelemetry, worker_telemetry

__all__ = ["Metrics", "WorkerTelemetry", "worker_telemetry"]
