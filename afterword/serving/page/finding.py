"""The search screen: recall, with the matching words marked."""

import asyncio
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import HTMLResponse, RedirectResponse

from afterword.reading.context import ANYONE
from afterword.serving.page.rendering import PageRoute, html_page, see_other, word_finder
from afterword.serving.page.visitor import ReadingVisitor, Submitted, field, seal_of
from afterword.serving.reading import Parameters
from afterword.serving.services import services_of
from afterword.streams.stores.index import MOST_QUERY_CHARACTERS

HITS = 10
SEARCH_FIELDS = ("query", "user_id", "tenant_id")
SEARCH = "search "
"""Distinguishes a sealed search from a sealed key, which has no space."""
router = APIRouter(route_class=PageRoute, include_in_schema=False)


class SearchQuery(Parameters):
    s: str | None = Field(None, max_length=20_000)
    """A sealed search."""


@router.get("/search")
async def show_search(
    request: Request, principal: ReadingVisitor, wanted: Annotated[SearchQuery, Query()]
) -> HTMLResponse:
    """Show the form, and the hits of a search."""
    found = seal_of(request).opened(wanted.s) or ""
    asked = orjson.loads(found.removeprefix(SEARCH)) if found.startswith(SEARCH) else {}
    query, user_id, tenant_id = (asked.get(name, "") for name in SEARCH_FIELDS)
    hits = None
    if query:
        owner: dict[str, Any] = {
            "user_id": principal.user(user_id or None),
            "tenant_id": principal.tenant(tenant_id or None),
        }
        hits = await services_of(request).memory.recall(query, k=HITS, **owner)
    given: dict[str, Any] = {"query": query, "user_id": user_id, "tenant_id": tenant_id, "hits": hits}

    def page() -> HTMLResponse:
        lost = bool(wanted.s) and not asked
        return html_page(request, "search.html", principal, lost=lost, find=word_finder(query), **given)

    # rendered in a thread, because stemming long texts takes up to half a second
    return await asyncio.to_thread(page)


@router.post("/search")
async def search(request: Request, principal: ReadingVisitor, fields: Submitted) -> RedirectResponse:
    """Redirect to the address of the search, which can be revisited for as long as a visitor stays signed in.

    What people search for is sealed, to keep it out of addresses and logs.
    """
    asked = {"query": field(fields, "query", MOST_QUERY_CHARACTERS).strip()}
    if principal.user_id is ANYONE:
        asked["user_id"] = principal.user(field(fields, "user_id", 256))
    if principal.tenant_id is ANYONE:
        asked["tenant_id"] = field(fields, "tenant_id", 256)
    return see_other("/search", s=seal_of(request).sealed(SEARCH + orjson.dumps(asked).decode()))
