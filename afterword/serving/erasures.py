"""Routes of erasures: asking for one, and looking at it until its receipt is there."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from pydantic import ConfigDict, Field

from afterword.context import ANYONE, Owner
from afterword.erasing.receipt import Receipt, salted_digest
from afterword.erasing.remains import Person
from afterword.erasing.requests import stored_time
from afterword.schemas.base import Id, Model, PartyId, Time
from afterword.serving.bodies import body_of, described_body
from afterword.serving.paths import ErasureId
from afterword.serving.principal import MayErase
from afterword.serving.problems import NotFound
from afterword.serving.services import Services
from afterword.streams.stores.erasures import ErasureRequest

ErasureState = Literal["waiting", "running", "done"]

router = APIRouter(prefix="/v1", tags=["erasures"])


class ErasureBody(Model):
    """The person to erase."""

    model_config = ConfigDict(extra="forbid")

    user_id: PartyId | None = None
    """The user, matched exactly; that of the key, where it is bound to one."""
    tenant_id: PartyId | None = None
    """The tenant; that of the key, where it is bound to one. Absent or null: only what has no tenant."""
    conversation_id: Id | None = None
    """Only what is in this conversation; null: all."""
    asked_by: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Name of the one who asks for it; the receipt says so."""


class ErasureStep(Model):
    """Things that an erasure waits for."""

    stage: str
    """Their name."""
    left: int
    """Their number."""


class ErasureProblem(Model):
    """Reason why the last attempt ended; the next one comes within a minute."""

    error_type: str
    """Stable name of the error."""
    detail: str
    """Explanation for people; empty where it would name servers."""


class ErasureAnswer(Model):
    """An erasure as it is now."""

    erasure_id: str
    """Its id, and that of its receipt."""
    state: ErasureState
    """`running`: a server is at it; `waiting`: none is now, and one will be; `done`: there is a receipt."""
    asked_at: Time
    """Time of the request."""
    asked_by: str | None
    """Name of the one who asked for it."""
    progress: ErasureStep | None = None
    """Things that were waited for at the last look; null: nothing yet, or it is done."""
    problem: ErasureProblem | None = None
    """Reason why it waits, if an attempt ended."""
    receipt: Receipt | None = None
    """The receipt, as `afterword erase verify` reads it; null until it is done."""


@router.post("/erasures", status_code=202, openapi_extra=described_body(ErasureBody))
async def request_erasure(
    request: Request, response: Response, principal: MayErase, given: Annotated[ErasureBody, body_of(ErasureBody)]
) -> ErasureAnswer:
    """Ask for the erasure of a user; answered once the request is stored, then servers carry it out.

    The same request, while it is under way, is answered with the same erasure. One that is done and is asked for again
    is a new erasure, of what the user has written since.
    """
    services: Services = request.app.state.services
    person = Person(principal.user(given.user_id), principal.tenant(given.tenant_id), given.conversation_id)
    asked = await services.erasures.ask(person, given.asked_by)
    response.headers["Location"] = f"/v1/erasures/{asked.request_id}"
    return shown_erasure(asked, stored_time())


@router.get("/erasures/{erasure_id}")
async def show_erasure(request: Request, principal: MayErase, erasure_id: ErasureId) -> ErasureAnswer:
    """Show an erasure: whether a server is at it, what it waits for, and at its end the receipt."""
    services: Services = request.app.state.services
    found = await services.erasures.find(erasure_id)
    if found is None or not is_of(found, principal.owner):
        raise NotFound(what="erasure")
    return shown_erasure(found, stored_time())


def is_of(request: ErasureRequest, owner: Owner) -> bool:
    """Tell whether an erasure is of the owner: once it has ended, only the receipt's digests tell."""
    if request.user_id is not None:
        return owner.has(request.user_id, request.tenant_id)
    receipt = _receipt(request)
    user, tenant = owner.user_id, owner.tenant_id
    is_users = user is ANYONE or (isinstance(user, str) and salted_digest(receipt.salt, "user", user) == receipt.user)
    of_tenant = salted_digest(receipt.salt, "tenant", tenant) if isinstance(tenant, str) else tenant
    return is_users and of_tenant in (ANYONE, receipt.tenant)


def shown_erasure(request: ErasureRequest, at: datetime) -> ErasureAnswer:
    """Show an erasure as of a moment."""
    if request.receipt is not None:
        receipt = _receipt(request)
        return ErasureAnswer(
            erasure_id=request.request_id,
            state="done",
            asked_at=receipt.asked_at,
            asked_by=receipt.asked_by,
            receipt=receipt,
        )
    is_held = request.holder is not None and request.held_until is not None and request.held_until > at
    problem = ErasureProblem(error_type=request.problem, detail=request.detail) if request.problem else None
    return ErasureAnswer(
        erasure_id=request.request_id,
        state="running" if is_held else "waiting",
        asked_at=request.asked_at,
        asked_by=request.asked_by,
        progress=ErasureStep(stage=request.stage, left=request.left) if request.stage else None,
        problem=None if is_held else problem,
    )


def _receipt(request: ErasureRequest) -> Receipt:
    return Receipt.model_validate_json(request.receipt or "")
