"""Erasures: asking for one, watching it, and its receipt, through the same functions as the API has."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field, ValidationError
from starlette.responses import HTMLResponse, RedirectResponse

from afterword.serving.erasures import ErasureAnswer, ErasureBody, request_erasure, show_erasure
from afterword.serving.page.conversation import choices
from afterword.serving.page.rendering import PageRoute, html_page
from afterword.serving.page.visitor import ErasingVisitor, FormFields, Submitted, field
from afterword.serving.paths import MOST_CHARACTERS
from afterword.serving.problems import NotFound, RequestInvalid, problems_of
from afterword.serving.reading import Parameters

router = APIRouter(route_class=PageRoute, include_in_schema=False)


class ErasureQuery(Parameters):
    id: str = Field(min_length=1, max_length=MOST_CHARACTERS)


@router.get("/erasures")
async def show_erasure_form(request: Request, principal: ErasingVisitor) -> HTMLResponse:
    """Show the forms: for a new erasure, and for the id of another."""
    given: dict[str, Any] = {"user_id": "", "tenant_id": ""}
    return html_page(request, "erasures.html", principal, **given, **choices(principal))


@router.post("/erasures")
async def ask_for_erasure(request: Request, principal: ErasingVisitor, fields: Submitted) -> RedirectResponse:
    """Ask for an erasure, and show it."""
    names = ("user_id", "tenant_id", "conversation_id", "asked_by")
    try:
        body = ErasureBody.model_validate({name: _given(fields, name) for name in names})
    except ValidationError as error:
        raise RequestInvalid(problems=problems_of(error, "form")) from None
    asked = await request_erasure(request, Response(), principal, body)
    return RedirectResponse(f"/erasure?id={asked.erasure_id}", 303)


def _given(fields: FormFields, name: str) -> str | None:
    """Return the value of a field; None for an empty one, and one that the form does not have."""
    return (field(fields, name) if name in fields else "") or None


@router.get("/erasure")
async def watch_erasure(
    request: Request, principal: ErasingVisitor, wanted: Annotated[ErasureQuery, Query()]
) -> HTMLResponse:
    """Show an erasure; its state renews itself until it is done."""
    found = await show_erasure(request, principal, wanted.id)
    return html_page(request, "erasure.html", principal, erasure=found)


@router.get("/erasure/state")
async def show_erasure_state(
    request: Request, principal: ErasingVisitor, wanted: Annotated[ErasureQuery, Query()]
) -> HTMLResponse:
    """Show the part that changes."""
    found = await show_erasure(request, principal, wanted.id)
    return html_page(request, "erasure_state.html", principal, erasure=found)


@router.get("/erasure/receipt")
async def send_receipt(
    request: Request, principal: ErasingVisitor, wanted: Annotated[ErasureQuery, Query()]
) -> Response:
    """Send the receipt as a file, which `afterword erase verify` reads."""
    found: ErasureAnswer = await show_erasure(request, principal, wanted.id)
    if found.receipt is None:
        raise NotFound(what="receipt")
    content = found.receipt.model_dump_json(indent=2) + "\n"
    headers = {"Content-Disposition": 'attachment; filename="receipt.json"'}
    return Response(content, media_type="application/json", headers=headers)
