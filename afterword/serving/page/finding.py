"""Search screen: recall, with the words that were found marked."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from markupsafe import Markup
from starlette.responses import HTMLResponse

from afterword.context import ANYONE
from afterword.serving.page.conversation import choices
from afterword.serving.page.marking import FindWords, with_words, word_finder
from afterword.serving.page.rendering import PageRoute, html_page
from afterword.serving.page.visitor import ReadingVisitor, Submitted, field
from afterword.serving.principal import Principal
from afterword.serving.services import Services
from afterword.streams.stores.index import DENSE, MOST_QUERY_CHARACTERS, SUMMARY, TEXT, Match, Recalled

HITS = 10
RANKINGS = {
    "passages": "words in a passage",
    TEXT: "words in messages",
    SUMMARY: "words in summary",
    DENSE: "vector",
}

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@dataclass(frozen=True)
class ShownHit:
    """A hit, with marks."""

    hit: Recalled
    summary: Markup
    said: list[tuple[Match, Markup]]
    """The messages that match, each with its text."""
    scores: list[tuple[str, float]]
    """Label and score of each ranking that has the episode."""


@router.get("/search")
async def show_search(request: Request, principal: ReadingVisitor) -> HTMLResponse:
    """Show the form."""
    given: dict[str, Any] = {"query": "", "user_id": "", "tenant_id": "", "hits": None}
    return html_page(request, "search.html", principal, **given, **choices(principal))


@router.post("/search")
async def search(request: Request, principal: ReadingVisitor, fields: Submitted) -> HTMLResponse:
    """Show the hits. The query is in the body: what people look for is in no address and no log."""
    query = field(fields, "query", MOST_QUERY_CHARACTERS).strip()
    user_id = field(fields, "user_id", 256) if principal.user_id is ANYONE else None
    tenant_id = (field(fields, "tenant_id", 256) or None) if principal.tenant_id is ANYONE else None
    hits = await _found(request, principal, query, user_id, tenant_id) if query else []
    request.state.count = len(hits)
    given: dict[str, Any] = {"query": query, "user_id": user_id, "tenant_id": tenant_id, "hits": hits}
    return html_page(request, "search.html", principal, **given, **choices(principal))


async def _found(
    request: Request, principal: Principal, query: str, user_id: str | None, tenant_id: str | None
) -> list[ShownHit]:
    services: Services = request.app.state.services
    hits = await services.memory.recall(
        query, k=HITS, user_id=principal.user(user_id), tenant_id=principal.tenant(tenant_id), explain=True
    )
    # in a thread: to stem each word computes, up to half a second for long texts
    return await asyncio.to_thread(_marked, query, hits)


def _marked(query: str, hits: Sequence[Recalled]) -> list[ShownHit]:
    find = word_finder(query)
    return [_shown(hit, find) for hit in hits]


def _shown(hit: Recalled, find: FindWords) -> ShownHit:
    said = [(match, with_words(match.content, find)) for match in hit.matches]
    rankings = hit.scores.model_dump() if hit.scores else {}
    scores = [(label, rankings[name]) for name, label in RANKINGS.items() if rankings.get(name) is not None]
    return ShownHit(hit, with_words(hit.short_summary, find), said, scores)
