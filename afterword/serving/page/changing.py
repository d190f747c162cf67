"""Edits, deletions and erasures on the page: forms that call the API's own functions."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field, ValidationError
from starlette.responses import HTMLResponse, RedirectResponse

from afterword.schemas.base import Id
from afterword.serving.page.conversation import MessageQuery, WholeQuery, seen_conversation, seen_message
from afterword.serving.page.rendering import PageRoute, html_page, see_other
from afterword.serving.page.visitor import ErasingVisitor, Submitted, WritingVisitor, field
from afterword.serving.problems import RequestInvalid, existing, problems_of
from afterword.serving.reading import OwnedParameters, Parameters
from afterword.serving.requests import MOST_CHARACTERS
from afterword.serving.writing import (
    ChangeBody,
    DeletionQuery,
    ErasureBody,
    FlushBody,
    delete_conversation,
    delete_message,
    edit_message,
    flush_conversation,
    request_erasure,
    show_erasure,
)

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/conversation/edit")
async def show_editor(
    request: Request, principal: WritingVisitor, wanted: Annotated[MessageQuery, Query()]
) -> HTMLResponse:
    message = await seen_message(request, principal, wanted)
    return html_page(request, "message_editor.html", principal, message=message, agent_id=wanted.agent_id)


class ChangeQuery(WholeQuery):
    message_id: Id | None = None
    """The message to change; absent for the conversation."""


@router.post("/conversation")
async def change_conversation(
    request: Request, principal: WritingVisitor, wanted: Annotated[ChangeQuery, Query()], fields: Submitted
) -> RedirectResponse:
    """Carry out the submitted button's action. Deleting a conversation deletes it for all agents."""
    details = await seen_conversation(request, principal, wanted.id, wanted.agent_id)
    deletion = DeletionQuery(tenant_id=details.tenant_id, reason=None)
    match field(fields, "action"), wanted.message_id:
        case "save-message", str(message_id):
            change = ChangeBody(tenant_id=details.tenant_id, content=field(fields, "content"))
            await edit_message(request, principal, wanted.id, message_id, change)
        case "delete-message", str(message_id):
            await delete_message(request, principal, wanted.id, message_id, deletion)
        case "close-episode", None:
            flush = FlushBody(agent_id=wanted.agent_id, tenant_id=details.tenant_id)
            await flush_conversation(request, principal, wanted.id, flush)
        case "delete-conversation", None:
            await delete_conversation(request, principal, wanted.id, deletion)
            return see_other("/conversations")
        case _:
            expected = "save-message or delete-message with message_id, close-episode or delete-conversation without it"
            raise RequestInvalid(problems=[("action", f"must be {expected}")])
    return see_other("/conversation", id=wanted.id, agent_id=wanted.agent_id, sent="1")


class ErasureQuery(Parameters):
    id: str = Field(min_length=1, max_length=MOST_CHARACTERS)
    part: bool = False
    """Whether to show only the part that refreshes itself."""


@router.get("/erasures")
async def show_erasure_form(
    request: Request, principal: ErasingVisitor, wanted: Annotated[OwnedParameters, Query()]
) -> HTMLResponse:
    """Show two forms: one for a new erasure, one to look up another by its id."""
    return html_page(request, "erasures.html", principal, **wanted.model_dump())


@router.post("/erasures")
async def ask_for_erasure(request: Request, principal: ErasingVisitor, fields: Submitted) -> RedirectResponse:
    names = [name for name in ErasureBody.model_fields if fields.get(name, [""]) != [""]]
    try:
        body = ErasureBody.model_validate({name: field(fields, name) for name in names})
    except ValidationError as error:
        raise RequestInvalid(problems=problems_of(error, "form")) from None
    asked = await request_erasure(request, Response(), principal, body)
    return see_other("/erasure", id=asked.erasure_id)


@router.get("/erasure")
async def watch_erasure(
    request: Request, principal: ErasingVisitor, wanted: Annotated[ErasureQuery, Query()]
) -> HTMLResponse:
    """Show an erasure. Its state refreshes itself until it is done."""
    found = await show_erasure(request, principal, wanted.id)
    return html_page(request, "erasure_state.html" if wanted.part else "erasure.html", principal, erasure=found)


@router.get("/erasure/receipt")
async def send_receipt(
    request: Request, principal: ErasingVisitor, wanted: Annotated[ErasureQuery, Query()]
) -> Response:
    """Send the receipt as a file that `afterword erase verify` can read."""
    receipt = existing("receipt", (await show_erasure(request, principal, wanted.id)).receipt)
    content = receipt.model_dump_json(indent=2) + "\n"
    headers = {"Content-Disposition": 'attachment; filename="receipt.json"'}
    return Response(content, media_type="application/json", headers=headers)
