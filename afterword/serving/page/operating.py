"""Screens for operators: health, and dead letters to inspect, replay or discard."""

from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse, RedirectResponse

from afterword.operating.dlq import Action, Filters, NoSuchDeadLetter, open_queue
from afterword.schemas.dead_letters import DeadLetter
from afterword.serving.page.rendering import PageRoute, html_page, see_other
from afterword.serving.page.visitor import OperatingVisitor, ReadingVisitor, Submitted, field
from afterword.serving.problems import NotFound, RequestInvalid
from afterword.serving.requests import in_time, services_of
from afterword.streams.stores.episodes import UsageBy
from afterword.version import running_version

LISTED = 200
SHOWN_BYTES = 64 * 2**10
"""How much of a value is shown. The command line shows all of it."""
MOST_ROWS = 1000
"""Rows of the table of usage, which may have one for each user."""
WORK_SECONDS = 25.0
ACTIONS: dict[str, Action] = {"replay": "replayed", "discard": "discarded"}

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/health")
async def show_health(request: Request, principal: ReadingVisitor) -> HTMLResponse:
    """Show the screen. Its state refreshes itself."""
    return html_page(request, "health.html", principal, version=running_version())


@router.get("/health/state")
async def show_state(request: Request, principal: ReadingVisitor) -> HTMLResponse:
    services = services_of(request)
    database = await services.database_answers()
    return html_page(request, "health_state.html", principal, database=database, kafka=services.feed.running)


@router.get("/health/usage")
async def show_usage(request: Request, principal: OperatingVisitor, by: UsageBy = "day") -> HTMLResponse:
    """Show what the LLM used for the stored episodes."""
    services = services_of(request)
    found = await services.usage(by)
    rows = [(one, services.settings.llm.cost(*one[2:5])) for one in found[:MOST_ROWS]]
    return html_page(request, "health_usage.html", principal, by=by, rows=rows, left_out=len(found) - len(rows))


@router.post("/health/checks")
async def run_checks(request: Request, principal: OperatingVisitor, _: Submitted) -> HTMLResponse:
    """Run the checks, which contact every server and the LLM."""
    from afterword.operating.checks import check_all  # imports the engine, which nothing else here needs

    return html_page(request, "health_checks.html", principal, results=await check_all(services_of(request).settings))


@router.get("/dead-letters")
async def show_dead_letters(
    request: Request, principal: OperatingVisitor, done: Action | None = None, count: Annotated[int, Query(ge=0)] = 0
) -> HTMLResponse:
    """List the first dead letters that were neither replayed nor discarded.

    `done` and `count` are the outcome of the form that was just sent.
    """
    settings = services_of(request).settings

    async def listed() -> list[DeadLetter]:
        found: list[DeadLetter] = []
        async with open_queue(settings) as queue:
            for topic in await queue.topics():
                async with aclosing(queue.unresolved(topic, Filters())) as letters:
                    async for letter in letters:
                        found.append(letter)
                        if len(found) > LISTED:
                            return found
        return found

    letters = await in_time(settings.kafka, WORK_SECONDS, listed())
    given: dict[str, Any] = {"letters": letters[:LISTED], "more": len(letters) > LISTED, "done": done}
    return html_page(request, "dead_letters.html", principal, listed=LISTED, count=count, **given)


@router.get("/dead-letter")
async def show_dead_letter(
    request: Request, principal: OperatingVisitor, address: Annotated[str, Query(max_length=400)]
) -> HTMLResponse:
    """Show a dead letter: why it was rejected, its headers, and the beginning of its value."""
    settings = services_of(request).settings

    async def read() -> DeadLetter:
        async with open_queue(settings) as queue:
            try:
                return await queue.find(address)
            except NoSuchDeadLetter:
                raise NotFound(what="dead letter") from None

    letter = await in_time(settings.kafka, WORK_SECONDS, read())
    value = letter.value or b""
    given: dict[str, Any] = {
        "letter": letter,
        "value": value[:SHOWN_BYTES].decode(errors="replace"),
        "size": len(value),
        "headers": [(name, (said or b"").decode(errors="replace")) for name, said in letter.headers],
    }
    return html_page(request, "dead_letter.html", principal, **given)


@router.post("/dead-letters")
async def resolve_dead_letters(request: Request, _: OperatingVisitor, fields: Submitted) -> RedirectResponse:
    """Replay or discard the selected dead letters, each once."""
    action = ACTIONS.get(field(fields, "action"))
    addresses = frozenset(fields.get("address", ()))
    if action is None:
        raise RequestInvalid(problems=[("action", "must be replay or discard")])
    settings = services_of(request).settings
    topics = {address.rsplit("/", 2)[0] for address in addresses}

    async def resolve() -> int:
        async with open_queue(settings) as queue:
            done = [
                await queue.resolve(topic, lambda letter: letter.address in addresses, action)
                for topic in await queue.topics()
                if topic in topics
            ]
        return sum(counts.resolved for counts in done)

    count = await in_time(settings.kafka, WORK_SECONDS, resolve()) if addresses else 0
    return see_other("/dead-letters", done=action, count=count)
