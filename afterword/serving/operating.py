"""Routes for operators: liveness, readiness and metrics."""

import asyncio

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import JSONResponse

from afterword.serving.services import Services, services_of
from afterword.streams.errors import StoreUnavailable

READY_SECONDS = 3.0

router = APIRouter(tags=["operating"])


@router.get("/livez")
async def livez() -> dict[str, str]:
    """Answer 200 as long as the process is running."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """Answer 200 once the server is warmed up and the database answers, else 503."""
    services = services_of(request)
    if services.warming and not services.warming.done():
        return _unready("server", "is warming up")
    if not await database_answers(services):
        return _unready("stores", "cannot be reached")
    return JSONResponse({"status": "ok", "reasons": {}})


async def database_answers(services: Services) -> bool:
    try:
        async with asyncio.timeout(READY_SECONDS):
            await services.ping_database()
    except (StoreUnavailable, TimeoutError):
        return False
    return True


def _unready(what: str, why: str) -> Response:
    return JSONResponse({"status": "unavailable", "reasons": {what: why}}, 503)


@router.get("/metrics")
async def show_metrics(request: Request) -> Response:
    """Return the metrics of this process for Prometheus."""
    return Response(services_of(request).metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)
