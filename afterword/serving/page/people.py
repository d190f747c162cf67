"""Screens about people: the list, one person's facts with their sources, and the forms to forget or erase them."""

import asyncio
import hashlib
from itertools import groupby
from typing import Any

from fastapi import APIRouter, Response
from pydantic import Field, TypeAdapter, ValidationError
from starlette.responses import HTMLResponse, RedirectResponse

from afterword.reading.profile import PROFILE_TOKENS, KnownFact
from afterword.schemas.base import ANYONE, Id
from afterword.serving.page.conversations import seen_conversation
from afterword.serving.page.rendering import PageRoute, html_page, see_other
from afterword.serving.page.visitor import (
    ErasingVisitor,
    ReadingVisitor,
    Submitted,
    SubmittedText,
    WritingVisitor,
    form_body,
    only_value,
)
from afterword.serving.problems import NotFound, RequestInvalid, existing
from afterword.serving.reading import MOST_CONTEXT_TOKENS, OwnedParameters, UsersQuery
from afterword.serving.requests import Parameters, Principal, Wanted
from afterword.serving.writing import (
    AssignBody,
    DeletionQuery,
    ErasureBody,
    delete_message,
    merge_users,
    request_erasure,
    show_erasure,
)

KNOWN_TOKENS = 10_000
"""Upper limit for the facts on a person's screen, in tokens."""
CONVERSATIONS = 10
"""Number of conversations on a person's screen."""
MESSAGE_CHOICE = TypeAdapter(tuple[Id, Id])
"""The value of a checkbox: the ids of a conversation and of a message in it, as JSON."""

router = APIRouter(route_class=PageRoute, include_in_schema=False)


class PersonQuery(OwnedParameters):
    after: str | None = Field(None, max_length=2000)
    sent: bool = False
    """Whether a change was just sent."""


class LoadedQuery(OwnedParameters):
    max_tokens: int = Field(PROFILE_TOKENS, ge=1, le=MOST_CONTEXT_TOKENS)


class FactQuery(OwnedParameters):
    fact: str = Field(max_length=64)
    """Digest of the fact. Addresses must not contain text from conversations."""


class ErasureQuery(Parameters):
    id: Id
    part: bool = False
    """Whether to show only the part that refreshes itself."""


@router.get("/people", response_model=None)
async def show_people(caller: ReadingVisitor, wanted: Wanted[UsersQuery]) -> HTMLResponse | RedirectResponse:
    """List a tenant's users for admins. Others must name a user, or are redirected to their key's only user."""
    tenant_id = caller.tenant(wanted.tenant_id or None)
    if caller.user_id is not ANYONE:
        return see_other("/person", user_id=caller.user(None), tenant_id=tenant_id)
    services = caller.services
    page = None
    if caller.may("admin"):
        page = await services.memory.users(tenant_id=tenant_id, after=wanted.after, prefix=wanted.prefix)
    given: dict[str, Any] = {"page": page, "tenant_id": tenant_id, "prefix": wanted.prefix, "user_id": ""}
    return html_page(caller.request, "people.html", llm=services.settings.llm, **given)


@router.get("/person")
async def show_person(caller: ReadingVisitor, wanted: Wanted[PersonQuery]) -> HTMLResponse:
    """Show what is known about a user, what has changed, and their conversations."""
    user_id, tenant_id = _person(caller, wanted)
    memory = caller.memory
    if caller.user_id is ANYONE and not wanted.sent and not await memory.knows_user(user_id, tenant_id):
        raise NotFound(what="user")
    profile, page = await asyncio.gather(
        memory.profile(user_id, tenant_id, KNOWN_TOKENS),
        memory.conversations(user_id=user_id, tenant_id=tenant_id, limit=CONVERSATIONS, after=wanted.after),
    )
    given: dict[str, Any] = {
        "profile": profile,
        "known": [(kind, list(facts)) for kind, facts in groupby(profile.facts, lambda fact: fact.kind)],
        "page": page,
        "sent": wanted.sent,
        "budget": PROFILE_TOKENS,
        "digest": digest_of,
    }
    return html_page(caller.request, "person.html", **given)


@router.get("/person/context")
async def show_loaded(caller: ReadingVisitor, wanted: Wanted[LoadedQuery]) -> HTMLResponse:
    """Show what an agent would load about a person within this many tokens."""
    profile = await caller.memory.profile(*_person(caller, wanted), wanted.max_tokens)
    return html_page(caller.request, "person_context.html", profile=profile, max_tokens=wanted.max_tokens)


@router.get("/person/forget")
async def show_sources(caller: WritingVisitor, wanted: Wanted[FactQuery]) -> HTMLResponse:
    """Show the messages that state a fact, with a form that deletes them."""
    memory = caller.memory
    profile = await memory.profile(*_person(caller, wanted), KNOWN_TOKENS)
    facts = (fact for fact in (*profile.facts, *profile.superseded) if digest_of(fact) == wanted.fact)
    fact = existing("fact", next(facts, None))
    owner = caller.owner._asdict()
    named = [(source.conversation_id, message_id) for source in fact.sources for message_id in source.message_ids]
    seen = await asyncio.gather(*[memory.message(*each, 0, **owner) for each in named])
    messages = [each.message for each in seen if each]
    hidden = len(named) - len(messages)
    given: dict[str, Any] = {"fact": fact, "profile": profile, "messages": messages, "hidden": hidden}
    return html_page(
        caller.request,
        "person_forget.html",
        choice=lambda message: MESSAGE_CHOICE.dump_json((message.conversation_id, message.id)).decode(),
        **given,
    )


@router.post("/person/forget")
async def forget(caller: WritingVisitor, wanted: Wanted[OwnedParameters], fields: SubmittedText) -> RedirectResponse:
    user_id, tenant_id = _person(caller, wanted)
    try:
        chosen = [MESSAGE_CHOICE.validate_json(value) for value in fields.get("message", ())]
    except ValidationError:
        raise RequestInvalid(problems=[("message", "must be the ids of a conversation and a message")]) from None
    for conversation_id, message_id in chosen:
        details = await seen_conversation(caller, conversation_id)
        deletion = DeletionQuery(tenant_id=details.tenant_id, reason=None)
        await delete_message(caller, conversation_id, message_id, deletion)
    return see_other("/person", user_id=user_id, tenant_id=tenant_id, sent="1" if chosen else None)


@router.post("/person/hand-over")
async def hand_over(caller: WritingVisitor, wanted: Wanted[OwnedParameters], fields: SubmittedText) -> RedirectResponse:
    """Give all of a person's messages to another user."""
    user_id, tenant_id = _person(caller, wanted)
    given = form_body(AssignBody, from_user_id=user_id, user_id=only_value(fields, "to"), tenant_id=tenant_id)
    await merge_users(caller, user_id, given.user_id, given)
    return see_other("/person", user_id=given.user_id, tenant_id=tenant_id, sent="1")


def digest_of(fact: KnownFact) -> str:
    named = (fact.about, fact.attribute, fact.statement, fact.superseded_at)
    return hashlib.blake2b(repr(named).encode(errors="replace"), digest_size=16).hexdigest()


def _person(principal: Principal, wanted: OwnedParameters) -> tuple[str, str | None]:
    return principal.user(wanted.user_id), principal.tenant(wanted.tenant_id or None)


@router.get("/erasures")
async def show_erasure_form(caller: ErasingVisitor, wanted: Wanted[OwnedParameters]) -> HTMLResponse:
    """Show two forms: one for a new erasure, and one to look up an earlier erasure by its id."""
    return html_page(caller.request, "erasures.html", **wanted.model_dump())


@router.post("/erasures")
async def ask_for_erasure(caller: ErasingVisitor, fields: Submitted) -> RedirectResponse:
    names = [name for name in ErasureBody.model_fields if fields.get(name, [""]) != [""]]
    body = form_body(ErasureBody, **{name: only_value(fields, name) for name in names})
    asked = await request_erasure(caller, Response(), body)
    return see_other("/erasure", id=asked.erasure_id)


@router.get("/erasure")
async def watch_erasure(caller: ErasingVisitor, wanted: Wanted[ErasureQuery]) -> HTMLResponse:
    """Show an erasure. Its state refreshes itself until it is done."""
    erasure = await show_erasure(caller, wanted.id)
    return html_page(caller.request, "erasure_state.html" if wanted.part else "erasure.html", erasure=erasure)


@router.get("/erasure/receipt")
async def send_receipt(caller: ErasingVisitor, wanted: Wanted[ErasureQuery]) -> Response:
    """Send the receipt as a file that `afterword erase verify` can read."""
    receipt = existing("receipt", (await show_erasure(caller, wanted.id)).receipt)
    content = receipt.model_dump_json(indent=2) + "\n"
    headers = {"Content-Disposition": 'attachment; filename="receipt.json"'}
    return Response(content, media_type="application/json", headers=headers)
