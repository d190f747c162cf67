"""Templates of the page. Whatever is shown is foreign: it is escaped, and its control characters are made visible."""

import hashlib
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import nh3
from aiokafka.errors import KafkaError
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse

from afterword.context import ANYONE
from afterword.schemas import SummaryCreated
from afterword.schemas.base import rfc3339
from afterword.schemas.summaries import RevisionReason
from afterword.serving.principal import Principal
from afterword.serving.problems import AWAY, RETRY_SECONDS, STATUS, TITLES, RequestInvalid, Unauthenticated
from afterword.serving.services import Services
from afterword.streams.errors import AfterwordError
from afterword.streams.stores.episodes import Revision, revisions_until
from afterword.streams.summarizer.summary import EXTRACTIVE
from afterword.streams.text.visible import many, printable, shown

STATIC = Path(__file__).parent / "static"
SIGN_IN = "/sign-in"
HEADERS = {
    # `no-referrer` would take the origin from our own forms, and this is what they are checked by
    "Referrer-Policy": "same-origin",
}
SHOWN_CHARACTERS = 4000
"""Characters of a text that are shown at first."""
TAGS = set(
    "p br strong em s code pre blockquote ul ol li h1 h2 h3 h4 h5 h6 hr table thead tbody tr th td a".split()  # noqa: SIM905 – easier to read
)
ATTRIBUTES = {"a": {"href", "title"}, "ol": {"start"}}
SCHEMES = {"http", "https", "mailto"}
"""What of a message's Markdown is shown: nothing that loads anything, and no attribute that does something."""
TONES = 6
"""Colours of episodes, which take turns."""
ERRORS = (AfterwordError, RequestValidationError, HTTPException, KafkaError)
REASONS: Mapping[RevisionReason | None, str] = {
    "edited": "a message was edited",
    "deleted": "a message was deleted",
    "redone": "redone on request",
    None: "in place of a fallback",
}
"""Words for the reason of a revision."""
MESSAGES = {
    403: "Your key does not permit this.",
    404: "There is no such thing here, or your key may not see it.",
    408: "The request came too slowly.",
    413: "That is too large.",
    422: "The request cannot be taken.",
    429: "Too many requests. Try again in a minute.",
}


def visible_text(value: object) -> object:
    """Make control characters, and those that hide or reverse text, visible in what a template shows."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return printable(value.replace("\r\n", "\n"))


def link(path: str, **ids: object) -> Markup:
    """Make an address of the page; None is left out. Ids are parameters, for a path cannot hold `..`."""
    given: dict[str, Any] = {name: value for name, value in ids.items() if value is not None}
    return Markup.escape(f"{path}?{urlencode(given, errors='replace')}" if given else path)


def cut_off(text: str, most: int = SHOWN_CHARACTERS) -> str:
    return text if len(text) <= most else text[:most] + "…"


def rendered(text: str) -> Markup:
    """Render the Markdown of a message, without pictures and with links to sites and mailboxes alone.

    A longer text than is shown at first stays as it is: to render it would hold up other requests.
    """
    if len(text) > SHOWN_CHARACTERS + 1:
        return Markup('<pre class="code">{}</pre>').format(visible_text(text))
    return _rendered(str(visible_text(text)))


@lru_cache(maxsize=1024)
def _rendered(text: str) -> Markup:
    return Markup(nh3.clean(_markdown().render(text), tags=TAGS, attributes=ATTRIBUTES, url_schemes=SCHEMES))  # noqa: S704 – it is sanitised


@cache
def _markdown() -> MarkdownIt:
    """Make the renderer: HTML in a message stays text, and a line break is one."""
    made = MarkdownIt("commonmark", {"html": False, "breaks": True})
    return made.enable(["table", "strikethrough"]).disable("image")


def anchor(message_id: str) -> str:
    """Make the id of a message's element: any text can be a message's own id."""
    return "m-" + hashlib.blake2b(message_id.encode(errors="replace"), digest_size=6).hexdigest()


def short_time(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M}" if moment else "–"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def revised(summary: SummaryCreated | Revision) -> str:
    """Say why there is this revision of an episode."""
    if summary.revision == 1:
        return "as it closed"
    return REASONS[summary.reason]


@cache
def static_version() -> str:
    """Hash all static files: their addresses change with them."""
    contents = hashlib.sha256()
    for path in sorted(STATIC.iterdir()):
        contents.update(path.read_bytes())
    return contents.hexdigest()[:12]


@cache
def templates() -> Environment:
    made = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=visible_text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(line=shown, cut=cut_off, markdown=rendered, time=short_time, rfc3339=rfc3339)
    made.filters.update(percent=percent, many=many, revised=revised, revisions=revisions_until)
    made.globals.update(
        link=link,
        anchor=anchor,
        static=f"/static/{static_version()}",
        tones=TONES,
        shown_characters=SHOWN_CHARACTERS,
        extractive=EXTRACTIVE,
    )
    return made


def fragment(template: str, **values: Any) -> str:
    """Render a part of a page."""
    return templates().get_template(template).render(**values)


def html_page(
    request: Request, template: str, principal: Principal | None = None, status: int = 200, **values: Any
) -> HTMLResponse:
    """Render a page or a fragment for a principal."""
    services: Services = request.app.state.services
    given: dict[str, Any] = {
        "principal": principal,
        "operator": principal is not None and is_operator(principal),
        "path": request.scope["path"],
        "signed_in": services.settings.serve.auth != "none" and principal is not None,
    }
    return HTMLResponse(fragment(template, **given, **values), status, HEADERS)


def is_operator(principal: Principal) -> bool:
    """Tell whether the principal sees what has no tenant: dead letters, lag, checks.

    Those hold records of everybody, so a key that is bound to a tenant or a user is not enough, whatever its scopes.
    """
    unbound = principal.tenant_id in (ANYONE, None) and principal.user_id is ANYONE
    return principal.may("admin") and unbound


def from_htmx(request: Request) -> bool:
    return request.headers.get("hx-request") == "true"


class PageRoute(APIRoute):
    """Route whose errors are pages, too."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except ERRORS as error:
                return error_page(request, error)

        return handled


def error_page(request: Request, error: Exception) -> Response:
    """Show an error, without its text where that may name servers; one of servers that are away recovers by itself."""
    if isinstance(error, Unauthenticated):
        return _to_sign_in(request)
    status = status_of(error)
    said = str(error) if isinstance(error, RequestInvalid) else ""
    problems = error.problems if isinstance(error, RequestInvalid) else ()
    away = next((text for kind, text in AWAY.items() if isinstance(error, kind)), "Kafka cannot be reached")
    message = f"{away[0].upper()}{away[1:]}." if status == 503 else MESSAGES.get(status, "It failed.")
    given: dict[str, Any] = {"status": status, "title": TITLES.get(status, "Error"), "message": message, "said": said}
    again = request.method == "GET" and status == 503
    template = "problem_part.html" if from_htmx(request) and not request.headers.get("hx-boosted") else "problem.html"
    answer = html_page(request, template, code=status, problems=problems, again=again, **given)
    if status == 503:
        answer.headers["Retry-After"] = str(RETRY_SECONDS)
    return answer


def status_of(error: Exception) -> int:
    """Find the status of one of ERRORS."""
    match error:
        case HTTPException():
            return error.status_code
        case RequestValidationError():
            return 422
        case KafkaError():
            return 503
        case _:
            return next((status for kind, status in STATUS if isinstance(error, kind)), 500)


def _to_sign_in(request: Request) -> Response:
    if from_htmx(request) or request.method != "GET":
        return Response(status_code=401, headers={"HX-Redirect": SIGN_IN})
    return RedirectResponse(SIGN_IN, 303)
