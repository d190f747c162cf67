"""One worker process: started, watched, drained on SIGTERM."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import structlog

from streams.runtime.app import App
from streams.runtime.health import Health

log = structlog.get_logger()

PARTITIONS = "partitions"
"""The health condition: the worker is in its group, and every partition that it was given is recovered."""
WATCH_SECONDS = 0.2


async def run(app: App, health: Health) -> None:
    """Until SIGTERM or SIGINT; then drains and returns. Raises: whatever made the app crash."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running(app):
        watcher = asyncio.create_task(_watch(app, health))
        try:
            await app.wait_first(stop)
        finally:
            watcher.cancel()
            health.not_ready(PARTITIONS, "stopping")
            log.info("draining", app=app.conf.id)
    log.info("stopped", app=app.conf.id)


@asynccontextmanager
async def running(app: App) -> AsyncIterator[App]:
    """The app between start and stop. Raises: whatever made it crash."""
    try:
        await app.start()
        yield app
    finally:
        await app.stop()
    if app.crashed:
        raise app.crash_reason


async def _watch(app: Any, health: Health) -> None:
    while True:
        if app.consumer.ready:
            health.ready(PARTITIONS)
        else:
            health.not_ready(PARTITIONS, "recovering")
        await asyncio.sleep(WATCH_SECONDS)
