"""`/metrics` and `/status`, for the health server."""

from collections.abc import Mapping

import orjson
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from afterword.streams.runtime.health import Handler
from afterword.streams.telemetry.metrics import Metrics
from afterword.streams.telemetry.status import Status


def views(metrics: Metrics, status: Status) -> Mapping[str, Handler]:
    """By path. Neither asks another server: what is shown is what the worker knows."""

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def show_status(_: web.Request) -> web.Response:
        return web.Response(body=orjson.dumps(status.as_dict()), content_type="application/json")

    return {"/metrics": show_metrics, "/status": show_status}
