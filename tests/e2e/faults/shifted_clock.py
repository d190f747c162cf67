"""Runs a segmenter whose clock is ahead by the seconds that the file in CLOCK_AHEAD currently says."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

from opentelemetry.trace import NoOpTracer

from afterword.streams import logs
from afterword.streams.segmenter.agent import segmenter_app
from afterword.streams.settings import Settings, load_settings
from afterword.streams.telemetry import Metrics
from faust_eos.app import PARTITIONS, run
from faust_eos.health import HealthServer, Readiness
from faust_eos.options import wall_clock_ms


def main() -> None:
    settings = load_settings()
    logs.configure(settings.logs)
    asyncio.run(run_shifted(settings, Path(os.environ["CLOCK_AHEAD"])))


async def run_shifted(settings: Settings, ahead: Path) -> None:
    app = segmenter_app(settings, Metrics("segmenter", "0"), NoOpTracer())
    app.engine = replace(app.engine, clock=lambda: wall_clock_ms() + 1000 * int(ahead.read_text() or 0))
    health = Readiness(PARTITIONS)
    async with HealthServer(health, settings.health.host, settings.health.port):
        await run(app, health)


if __name__ == "__main__":
    main()
