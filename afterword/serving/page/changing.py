"""Edits and deletions on the page: forms, and the same functions behind them as the API has."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse, RedirectResponse

from afterword.schemas.base import Id
from afterword.serving.page.conversation import MessageQuery, seen_conversation, seen_message
from afterword.serving.page.rendering import PageRoute, html_page, link
from afterword.serving.page.visitor import Submitted, WritingVisitor, field
from afterword.serving.reading import ByAgent
from afterword.serving.writing import (
    ChangeBody,
    DeletionQuery,
    FlushBody,
    delete_conversation,
    delete_message,
    edit_message,
    flush_conversation,
)

router = APIRouter(route_class=PageRoute, include_in_schema=False)


class WholeQuery(ByAgent):
    id: Id


@router.get("/conversation/edit")
async def show_editor(
    request: Request, principal: WritingVisitor, wanted: Annotated[MessageQuery, Query()]
) -> HTMLResponse:
    """Show the form that edits a message."""
    message = await seen_message(request, principal, wanted)
    return html_page(request, "message_editor.html", principal, message=message, agent_id=wanted.agent_id)


@router.post("/conversation/edit")
async def save_message(
    request: Request, principal: WritingVisitor, wanted: Annotated[MessageQuery, Query()], fields: Submitted
) -> RedirectResponse:
    """Replace the content of a message."""
    details = await seen_conversation(request, principal, wanted.id, wanted.agent_id)
    change = ChangeBody(tenant_id=details.tenant_id, content=field(fields, "content"))
    await edit_message(request, principal, wanted.id, wanted.message_id, change)
    return _back(wanted.id, wanted.agent_id)


@router.post("/conversation/delete-message")
async def remove_message(
    request: Request, principal: WritingVisitor, wanted: Annotated[MessageQuery, Query()], _: Submitted
) -> RedirectResponse:
    """Delete a message."""
    details = await seen_conversation(request, principal, wanted.id, wanted.agent_id)
    await delete_message(
        request, principal, wanted.id, wanted.message_id, DeletionQuery(tenant_id=details.tenant_id, reason=None)
    )
    return _back(wanted.id, wanted.agent_id)


@router.post("/conversation/close")
async def close_pending(
    request: Request, principal: WritingVisitor, wanted: Annotated[WholeQuery, Query()], _: Submitted
) -> RedirectResponse:
    """Close the episode that is open."""
    details = await seen_conversation(request, principal, wanted.id, wanted.agent_id)
    await flush_conversation(
        request, principal, wanted.id, FlushBody(agent_id=wanted.agent_id, tenant_id=details.tenant_id)
    )
    return _back(wanted.id, wanted.agent_id)


@router.post("/conversation/delete")
async def remove_conversation(
    request: Request, principal: WritingVisitor, wanted: Annotated[WholeQuery, Query()], _: Submitted
) -> RedirectResponse:
    """Delete a conversation so far, of all agents."""
    details = await seen_conversation(request, principal, wanted.id, wanted.agent_id)
    await delete_conversation(request, principal, wanted.id, DeletionQuery(tenant_id=details.tenant_id, reason=None))
    return RedirectResponse("/conversations", 303)


def _back(conversation_id: str, agent_id: str | None) -> RedirectResponse:
    return RedirectResponse(
        str(link("/conversation", id=conversation_id, agent_id=agent_id, sent="1")).replace("&amp;", "&"), 303
    )
