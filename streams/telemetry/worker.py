"""The telemetry of one worker: its metrics, its tracer, and the views `/metrics` and `/status`."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web
from opentelemetry.trace import Tracer
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from afterword.installed import running_version
from afterword.streams.roles import names_of
from afterword.streams.settings import Settings, shown_as_dict
from afterword.streams.telemetry import Metrics
from afterword.streams.telemetry.tracing import LAST_EXPORT_SECONDS, tracer_from
from faust_eos.app import PARTITIONS
from faust_eos.health import Readiness, View

SHOWN_OF_PARTITION = ("topic", "partition", "ready", "lag_records", "lag_seconds", "state_bytes")


@dataclass(frozen=True)
class WorkerTelemetry:
    metrics: Metrics
    tracer: Tracer
    """Does nothing unless the standard variables name an endpoint."""
    views: Mapping[str, View]
    """Pages for the health server, by path."""


@asynccontextmanager
async def worker_telemetry(role: str, settings: Settings, readiness: Readiness) -> AsyncIterator[WorkerTelemetry]:
    """Make a worker's telemetry, and export its last spans at the end. The role may be `all`.

    Raises: ConfigurationError if the standard variables ask for an unsupported protocol.
    """
    first, *others = names_of(role)
    metrics = Metrics(first, running_version(), *others)
    metrics.watch_readiness(lambda: readiness.reasons, PARTITIONS)
    shown = shown_as_dict(settings)

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def show_status(_: web.Request) -> web.Response:
        body = orjson.dumps(status(role, metrics, readiness.reasons, shown))
        return web.Response(body=body, content_type="application/json")

    async with tracer_from(os.environ, role, running_version(), LAST_EXPORT_SECONDS) as tracer:
        yield WorkerTelemetry(metrics, tracer, {"/metrics": show_metrics, "/status": show_status})


def status(role: str, metrics: Metrics, reasons: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a worker. `reasons` say why it is not ready, and `settings` has no secrets."""
    return {
        "version": running_version(),
        "role": role,
        "ready": not reasons,
        "reasons": dict(reasons),
        "partitions": [
            {name: value for name in SHOWN_OF_PARTITION if (value := getattr(partition, name)) is not None}
            for partition in metrics.partition_statuses
        ],
        "settings": settings,
    }
