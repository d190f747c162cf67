"""All that one worker tells of itself, put together."""

import os

from afterword.streams.runtime.health import Readiness
from afterword.streams.runtime.options import wall_clock_ms
from afterword.streams.settings import Settings, shown_as_dict
from afterword.streams.telemetry.metrics import Metrics
from afterword.streams.telemetry.status import Status
from afterword.streams.telemetry.tracing import close, tracer_of, tracing_from
from afterword.streams.telemetry.views import views
from afterword.version import running_version


class WorkerTelemetry:
    """`tracer`: None unless the standard variables name where spans go.

    `apart`: the health condition that is no stage at which work waits.
    `idle_seconds`: idle timeout of conversations, where there are pending ones; else None.
    """

    def __init__(
        self,
        role: str,
        settings: Settings,
        health: Readiness,
        *,
        apart: str,
        idle_seconds: float | None = None,
    ) -> None:
        """Raises: ConfigurationError when the variables ask for what is not spoken here."""
        self.metrics = Metrics(role, running_version())
        self._provider = tracing_from(os.environ, role, running_version())
        self.tracer = tracer_of(self._provider) if self._provider else None
        self.metrics.watch_readiness(lambda: health.reasons, apart)
        if idle_seconds is not None:
            self.metrics.watch_pending(idle_seconds, wall_clock_ms)
        status = Status(role, shown_as_dict(settings), lambda: health.reasons, lambda: self.metrics.engine.standings)
        self.views = views(self.metrics, status)

    async def aclose(self) -> None:
        """Sends the last spans."""
        if self._provider is not None:
            await close(self._provider)
