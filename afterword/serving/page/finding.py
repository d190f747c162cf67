"""The search screen: recall, with the matching words marked."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlencode

import orjson
from fastapi import APIRouter, Query, Request
from markupsafe import Markup
from pydantic import Field
from starlette.responses import HTMLResponse, RedirectResponse

from afterword.reading.context import ANYONE
from afterword.serving.page.rendering import FindWords, PageRoute, html_page, with_words, word_finder
from afterword.serving.page.visitor import ReadingVisitor, Seal, Submitted, field
from afterword.serving.principal import Principal
from afterword.serving.reading import Parameters
from afterword.serving.services import services_of
from afterword.streams.stores.index import MOST_QUERY_CHARACTERS, Match, Recalled

HITS = 10
SEARCH_FIELDS = ("query", "user_id", "tenant_id")
MEASURES = {
    "passage": "words in a passage",
    "message": "words in a message",
    "episode": "words in the episode",
    "cosine": "vector",
}

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@dataclass(frozen=True)
class ShownHit:
    """A hit, with marks."""

    hit: Recalled
    summary: Markup
    said: list[tuple[Match, Markup]]
    """The matching messages, each with its text."""
    scores: list[tuple[str, float]]
    """Labels and values of the score's components."""


def _seal(request: Request) -> Seal:
    """Keep what people search for out of addresses and logs. Any server with the same MongoDB can open the seal."""
    return Seal(services_of(request).settings.mongo.uri, seconds=None)


class SearchQuery(Parameters):
    s: str | None = Field(None, max_length=20_000)
    """A sealed search."""


@router.get("/search")
async def show_search(
    request: Request, principal: ReadingVisitor, wanted: Annotated[SearchQuery, Query()]
) -> HTMLResponse:
    """Show the form, and the hits of a search."""
    sealed = _seal(request).opened(wanted.s)
    asked = orjson.loads(sealed) if sealed else {}
    query, user_id, tenant_id = (asked.get(name, "") for name in SEARCH_FIELDS)
    hits = await _found(request, principal, query, user_id or None, tenant_id or None) if query else None
    given: dict[str, Any] = {"query": query, "user_id": user_id, "tenant_id": tenant_id, "hits": hits}
    return html_page(request, "search.html", principal, lost=bool(wanted.s) and not sealed, **given)


@router.post("/search")
async def search(request: Request, principal: ReadingVisitor, fields: Submitted) -> RedirectResponse:
    """Redirect to the address of the search, so that it can be bookmarked and revisited."""
    asked = {"query": field(fields, "query", MOST_QUERY_CHARACTERS).strip()}
    if principal.user_id is ANYONE:
        asked["user_id"] = principal.user(field(fields, "user_id", 256))
    if principal.tenant_id is ANYONE:
        asked["tenant_id"] = field(fields, "tenant_id", 256)
    return RedirectResponse(f"/search?{urlencode({'s': _seal(request).sealed(orjson.dumps(asked).decode())})}", 303)


async def _found(
    request: Request, principal: Principal, query: str, user_id: str | None, tenant_id: str | None
) -> list[ShownHit]:
    hits = await services_of(request).memory.recall(
        query, k=HITS, user_id=principal.user(user_id), tenant_id=principal.tenant(tenant_id), explain=True
    )

    def marked() -> list[ShownHit]:
        find = word_finder(query)
        return [_shown(hit, find) for hit in hits]

    # in a thread, because stemming long texts takes up to half a second
    return await asyncio.to_thread(marked)


def _shown(hit: Recalled, find: FindWords) -> ShownHit:
    said = [(match, with_words(match.content, find)) for match in hit.matches]
    measured = hit.scores.model_dump() if hit.scores else {}
    scores = [(label, measured[name]) for name, label in MEASURES.items() if measured.get(name) is not None]
    return ShownHit(hit, with_words(hit.short_summary, find), said, scores)
