"""Renders the page's templates. All content is foreign: it is escaped, and control characters are made visible."""

import hashlib
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from datetime import datetime
from functools import cache, lru_cache
from html import unescape
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
from markdown_it.rules_inline import StateInline, newline
from markupsafe import Markup
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.routing import Match
from starlette.types import Scope

from afterword.schemas.base import ANYONE, rfc3339
from afterword.serving.problems import RETRY_SECONDS, TITLES, RequestInvalid, Unauthenticated, explained
from afterword.serving.requests import Principal, services_of
from afterword.streams.errors import AfterwordError
from afterword.streams.settings import is_loopback
from afterword.streams.stores.episodes import revisions_until
from afterword.streams.stores.index import Recalled
from afterword.streams.summarizer.summary import EXTRACTIVE
from afterword_text.language import detect, plausible, query_words, search_words
from afterword_text.tokens import count_tokens
from afterword_text.visible import many, printable, shown

STATIC = Path(__file__).parent / "static"
"""Scripts and styles, which the server sends under `/static`."""
SIGN_IN = "/sign-in"
HEADERS = {
    # `no-referrer` would strip the `Origin` of our own forms, which the server checks
    "Referrer-Policy": "same-origin"
}
SHOWN_CHARACTERS = 4000
"""How much of a text is shown at first."""
TAGS = set(
    "p br strong em s code pre blockquote ul ol li h1 h2 h3 h4 h5 h6 hr table thead tbody tr th td a".split()  # noqa: SIM905 – easier to read
)
ATTRIBUTES = {"a": {"href", "title"}, "ol": {"start"}}
SCHEMES = {"http", "https", "mailto"}
"""Markdown in messages is limited to these: nothing that loads content, and no active attributes."""
LEAST_BUDGET, MOST_BUDGET = 50, 8000
"""Range of the sliders, in tokens."""
TONES = 6
"""Number of colours that episodes cycle through."""
ERRORS = (AfterwordError, RequestValidationError, HTTPException, KafkaError)
MARKS, MOST_MARKS = re.compile(r"[*_~`\[\]|<&!\\\n]"), 600
"""Characters that Markdown looks at, and how many of them a message may have to be rendered, in about 10 ms."""
TASK = re.compile(r"(<li>\s*(?:<p>)?)\[([ xX])\] ")
"""The box of a task in a list, as people write it in Markdown."""
TAGS_AND_TEXTS = re.compile(r'<(?:[^"<>]|"[^"]*")*>|[^<]+')
"""The parts of HTML as the sanitizer writes it, with attributes in double quotes."""
MATCHES = (0.6, "strong"), (0.3, "good"), (0.0, "weak")
"""A hit's score in words."""
TELLING = 0.1
"""What has a lower share in a match is not named."""
NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
COOKIE = "afterword_session"
WORD = re.compile(r"\w{1,100}")

FindWords = Callable[[str], list[tuple[int, int]]]
"""Finds words in a text. Returns the start and end of each."""


def visible_text(value: object) -> object:
    """Make control characters, and characters that hide or reverse text, visible in a template's values."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return printable(value.replace("\r\n", "\n"))


def address(path: str, **ids: object) -> str:
    """Build an address of the page, without ids that are None. Ids are parameters because a path cannot hold `..`."""
    given: dict[str, Any] = {name: value for name, value in ids.items() if value is not None}
    return f"{path}?{urlencode(given, errors='replace')}" if given else path


def see_other(path: str, **ids: object) -> RedirectResponse:
    """Redirect to an address of the page, for example after a form was sent."""
    return RedirectResponse(address(path, **ids), 303)


def cut_off(text: str, most: int = SHOWN_CHARACTERS) -> str:
    return text if len(text) <= most else text[:most] + "…"


def brief(text: str, most: int) -> str:
    """Show the beginning of a text in one line."""
    return shown(cut_off(" ".join(text[: 2 * most].split()), most))


def rendered(text: str) -> Markup:
    """Render a message's Markdown, without images and with links only to websites and mailboxes.

    The text of long messages that is hidden at first, and one with more than MOST_MARKS, is not rendered, because that
    would delay other requests.
    """
    if len(text) > SHOWN_CHARACTERS + 1 or len(MARKS.findall(text)) > MOST_MARKS:
        return Markup('<pre class="code">{}</pre>').format(visible_text(text))
    return _rendered(str(visible_text(text)))


@lru_cache(maxsize=1024)
def _rendered(text: str) -> Markup:
    html = nh3.clean(_markdown().render(text), tags=TAGS, attributes=ATTRIBUTES, url_schemes=SCHEMES)
    return Markup(TASK.sub(lambda task: task[1] + ("☐ " if task[2] == " " else "☑ "), html))  # noqa: S704 – it is sanitized


@cache
def _markdown() -> MarkdownIt:
    """Build the renderer. HTML in a message remains text, and a line break is kept."""
    made = MarkdownIt("commonmark", {"html": False, "breaks": True})
    made.inline.ruler.at("newline", _newline_with_indentation)
    return made.enable(["table", "strikethrough"]).disable("image")


def _newline_with_indentation(state: StateInline, silent: bool) -> bool:
    """Keep the indentation of a paragraph's lines, because code is often sent without a fence."""
    begin = state.pos + 1
    if not newline(state, silent):
        return False
    if not silent and state.pos > begin:
        state.push("text", "", 0).content = NO_BREAK_SPACE * len(state.src[begin : state.pos].expandtabs(4))
    return True


def anchor(message_id: str) -> str:
    """Return the id of a message's HTML element. A message's own id may be any text."""
    return "m-" + hashlib.blake2b(message_id.encode(errors="replace"), digest_size=6).hexdigest()


def short_time(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M}" if moment else "–"


def fewer(share: float) -> str:
    """Say by how much something shrank; "" if it did not."""
    return f" ({share:.0%} fewer)" if share >= 0.005 else ""


def words(name: str) -> str:
    """Turn a snake_case name into words."""
    return shown(name).replace("_", " ")


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
    made.filters.update(brief=brief, fewer=fewer, many=many, revisions=revisions_until)
    made.filters.update(words=words, tokens=count_tokens, checked=with_unsupported, marked=with_words, matched=matched)
    made.globals.update(
        link=address,
        anchor=anchor,
        tones=TONES,
        shown_characters=SHOWN_CHARACTERS,
        least_budget=LEAST_BUDGET,
        most_budget=MOST_BUDGET,
        extractive=EXTRACTIVE,
    )
    return made


def fragment(template: str, **values: Any) -> str:
    return templates().get_template(template).render(**values)


def html_page(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Render a page or a fragment for the visitor, if one was admitted."""
    services, principal = services_of(request), getattr(request.state, "principal", None)
    given: dict[str, Any] = {
        "principal": principal,
        "operator": principal is not None and is_operator(principal),
        "path": request.scope["path"],
        "signed_in": services.settings.serve.auth != "none" and principal is not None,
        "local": services.settings.serve.auth == "none",
        "any_user": principal is not None and principal.user_id is ANYONE,
        "any_tenant": principal is not None and principal.tenant_id is ANYONE,
        "all_users": False,
    }
    return HTMLResponse(fragment(template, **(given | values)), status, HEADERS)


def refreshing_page(request: Request, whole: str, around: str, part: str, known: str | None, **values: Any) -> Response:
    """Render a page with an already rendered part that refreshes itself.

    If `known` is None, this renders the template `whole`. Otherwise the request is for the part alone: this renders the
    template `around`, or answers 204 if `known` is still the version of all that it shows.
    """
    values["part"] = Markup(part)  # noqa: S704 – rendered by a template
    shown = fragment(around, version="", is_part=True, **values)
    version = hashlib.blake2b(shown.encode(), digest_size=8).hexdigest()
    if version == known:
        return Response(status_code=204)
    values |= {"version": version, "is_part": known is not None}
    return html_page(request, whole if known is None else around, **values)


def is_operator(principal: Principal) -> bool:
    """Return whether the principal may see what belongs to no tenant: dead letters, lag and checks.

    These contain everybody's records, so a key that is bound to a tenant or a user is not enough, whatever its scopes.
    """
    unbound = principal.tenant_id in (ANYONE, None) and principal.user_id is ANYONE
    return principal.may("admin") and unbound


class PageRoute(APIRoute):
    """A route that shows its errors as pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                answer = await handle(request)
            except ERRORS as error:
                return error_page(request, error)
            if renewed := getattr(request.state, "renewed", None):
                keep_signed_in(request, answer, renewed)
            return answer

        return handled


class UnknownPageRoute(PageRoute):
    """A route for whatever a browser asks for. Programs do not get HTML."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        is_browser = "text/html" in Headers(scope=scope).get("accept", "")
        return super().matches(scope) if is_browser else (Match.NONE, {})


def keep_signed_in(request: Request, answer: Response, sealed: str) -> None:
    """Put the sealed key into a cookie that no script can read and no other site can send."""
    secure = not is_loopback(request.url.hostname or "")
    answer.set_cookie(COOKIE, sealed, httponly=True, samesite="strict", secure=secure)


def error_page(request: Request, error: Exception) -> Response:
    """Show an error, without its text if that may name servers.

    The page retries by itself if a server is unavailable.
    """
    is_part = request.headers.get("hx-request") == "true"
    if isinstance(error, Unauthenticated):
        if is_part or request.method != "GET":
            return Response(status_code=401, headers={"HX-Redirect": SIGN_IN})
        return see_other(SIGN_IN)
    status, detail = explained(error)
    given: dict[str, Any] = {
        "title": TITLES.get(status, "Error"),
        "message": f"{detail[0].upper()}{detail[1:]}.",
        "problems": error.problems if isinstance(error, RequestInvalid) else (),
        "again": request.method == "GET" and status == 503,
    }
    template = "problem_part.html" if is_part else "problem.html"
    answer = html_page(request, template, code=status, status=status, **given)
    if status == 503:
        answer.headers["Retry-After"] = str(RETRY_SECONDS)
    return answer


def with_unsupported(text: str, unsupported: Sequence[str]) -> Markup:
    """Underline the names and figures that occur in no message of the episode."""
    either = "|".join(map(re.escape, sorted({*unsupported} - {""}, key=len, reverse=True)))
    matches = re.finditer(rf"(?<!\w)(?:{either})(?!\w)", text) if either else ()
    return _marked(text, [match.span() for match in matches], UNSUPPORTED)


UNSUPPORTED = '<mark class="unsupported" title="This does not occur in any message of the episode">'


def word_finder(query: str) -> FindWords:
    """Build a function that finds the query's words in a text, in any form that the search treats as equal."""
    languages = plausible(query)
    wanted = {form for word in query_words(query) for form in word.forms}

    def find(text: str) -> list[tuple[int, int]]:
        # a short text's language may have been detected wrongly, so the query's languages are tried too
        return list(_words_of(text, wanted, [detect(text)])) or list(_words_of(text, wanted, languages))

    return find


def _words_of(text: str, wanted: set[str], languages: Sequence[str]) -> Iterator[tuple[int, int]]:
    either = "|".join(re.escape(form) for form in wanted if len(form) == 2) or "(?!)"
    pairs = re.compile(rf"(?:(?={either}).)+.")  # characters that each begin a pair, and the last pair's end
    for word in WORD.finditer(text[:SHOWN_CHARACTERS]):
        said = [[*search_words(word[0], language)] for language in languages]
        if len(said[0]) > 1:  # in a script without spaces, words are pairs of characters
            yield from (
                (word.start() + run.start(), word.start() + run.end()) for run in pairs.finditer(word[0].casefold())
            )
        elif any(not wanted.isdisjoint(one.forms) for words_found in said for one in words_found):
            yield word.span()


def with_words(text: str, find: FindWords) -> Markup:
    """Render a message's Markdown, and mark the words that were searched for."""
    parts = TAGS_AND_TEXTS.findall(rendered(cut_off(text)))
    texts = {part: unescape(part) for part in parts if not part.startswith("<")}
    shown = (_marked(texts[part], find(texts[part]), "<mark>") if part in texts else Markup(part) for part in parts)  # noqa: S704 – it is sanitized
    return Markup("").join(shown)


def matched(hit: Recalled) -> str:
    """Say in words how well a hit matches, and by what."""
    parts = hit.scores
    shares = {"words": max(parts.passage, parts.message, parts.episode), "meaning": parts.cosine or 0.0}
    by = [name for name, share in shares.items() if share >= TELLING]
    if not by:
        return "of the time or fact that is asked for"
    return f"{next(name for least, name in MATCHES if hit.score >= least)} match in {' and '.join(by)}"


def _marked(text: str, spans: Iterable[tuple[int, int]], opening: str) -> Markup:
    shown: list[Markup] = []
    last = 0
    for start, end in spans:
        shown += [_escaped(text[last:start]), Markup(opening), _escaped(text[start:end]), Markup("</mark>")]  # noqa: S704 – our own tags
        last = end
    return Markup("").join([*shown, _escaped(text[last:])])


def _escaped(text: str) -> Markup:
    return Markup.escape(visible_text(text))
