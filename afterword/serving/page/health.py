"""Health screen: what is ready, and on request the checks of `afterword check`."""

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from afterword.serving.operating import READY_SECONDS
from afterword.serving.page.rendering import PageRoute, html_page
from afterword.serving.page.visitor import OperatingVisitor, ReadingVisitor, Submitted
from afterword.serving.services import Services
from afterword.streams.errors import StoreUnavailable
from afterword.version import running_version

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/health")
async def show_health(request: Request, principal: ReadingVisitor) -> HTMLResponse:
    """Show the screen; its state comes by itself, again and again."""
    return html_page(request, "health.html", principal, version=running_version())


@router.get("/health/state")
async def show_state(request: Request, principal: ReadingVisitor) -> HTMLResponse:
    """Show whether the database and the stream of events answer."""
    services: Services = request.app.state.services
    try:
        async with asyncio.timeout(READY_SECONDS):
            await services.ping_database()
        database = True
    except (StoreUnavailable, TimeoutError):
        database = False
    feed = services.feed
    return html_page(request, "health_state.html", principal, database=database, kafka=feed.running)


@router.post("/health/checks")
async def run_checks(request: Request, principal: OperatingVisitor, _: Submitted) -> HTMLResponse:
    """Run the checks, which ask every server, and the LLM."""
    from afterword.checks import check_all  # imports the engine, which only this needs

    services: Services = request.app.state.services
    return html_page(request, "health_checks.html", principal, results=await check_all(services.settings))
