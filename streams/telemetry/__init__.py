"""What a worker tells of itself: metrics for Prometheus and its status.

Nothing here is global: a worker's composition root makes one `Metrics` and hands it to whoever has something to count.
"""

from afterword.streams.telemetry.metrics import Metrics
from afterword.streams.telemetry.worker import WorkerTelemetry

__all__ = ["Metrics", "WorkerTelemetry"]
