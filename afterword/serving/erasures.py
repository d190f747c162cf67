"""Routes of erasures: request one, and watch it until its receipt is there."""

from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from pydantic import ConfigDict, Field

from afterword.operating.erasing.person import Person
from afterword.operating.erasing.receipt import Receipt
from afterword.reading.context import ANYONE, Owner
from afterword.schemas.base import Id, Model, PartyId, Time
from afterword.serving.principal import MayErase
from afterword.serving.problems import NotFound
from afterword.serving.requests import SMALL_BYTES, ErasureId, body_of, described_body
from afterword.serving.services import services_of
from afterword.streams.stores.bookkeeping import Erasure

ErasureState = Literal["waiting", "running", "done"]

router = APIRouter(prefix="/v1", tags=["erasures"])


class ErasureBody(Model):
    """The person to erase."""

    model_config = ConfigDict(extra="forbid")

    user_id: PartyId | None = None
    """The user, matched exactly. Defaults to the key's user if it is bound to one."""
    tenant_id: PartyId | None = None
    """The tenant. Defaults to the key's tenant if it is bound to one; otherwise null means data without a tenant."""
    conversation_id: Id | None = None
    """Erase only in this conversation; null for all of them."""
    asked_by: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Name of the person who requests the erasure, recorded in the receipt."""


class ErasureStep(Model):
    """The step that an erasure is waiting for."""

    stage: str
    """Name of the step."""
    left: int
    """Number of items left in the step."""


class ErasureProblem(Model):
    """Why the last attempt failed. The next one starts within a minute."""

    error_type: str
    """Stable name of the error."""
    detail: str
    """Explanation for people; empty if it would name servers."""


class ErasureAnswer(Model):
    """The current state of an erasure."""

    erasure_id: str
    """The erasure's id, which is also the receipt's."""
    state: ErasureState
    """`running`: a server is carrying it out. `waiting`: it will be tried, or retried. `done`: there is a receipt."""
    asked_at: Time
    """When the erasure was requested."""
    asked_by: str | None
    """Name of the person who requested it."""
    progress: ErasureStep | None = None
    """What it was waiting for when last checked; null if it has not started waiting or is done."""
    problem: ErasureProblem | None = None
    """Why it is waiting, if an attempt failed."""
    receipt: Receipt | None = None
    """The receipt, as read by `afterword erase verify`; null until the erasure is done."""


@router.post("/erasures", status_code=202, openapi_extra=described_body(ErasureBody))
async def request_erasure(
    request: Request,
    response: Response,
    principal: MayErase,
    given: Annotated[ErasureBody, body_of(ErasureBody, SMALL_BYTES)],
) -> ErasureAnswer:
    """Request the erasure of a user. The answer comes once the request is stored; servers then carry it out.

    Repeating the request while it is in progress returns the same erasure. After it is done, another request starts a
    new erasure of what the user has written since.
    """
    person = Person(principal.user(given.user_id), principal.tenant(given.tenant_id), given.conversation_id)
    asked = await services_of(request).erasures.ask(person, given.asked_by)
    response.headers["Location"] = f"/v1/erasures/{asked.erasure_id}"
    return shown_erasure(asked)


@router.get("/erasures/{erasure_id}")
async def show_erasure(request: Request, principal: MayErase, erasure_id: ErasureId) -> ErasureAnswer:
    """Show an erasure: its state, what it is waiting for, and finally its receipt."""
    found = await services_of(request).erasures.find(erasure_id)
    if found is None or not is_of(found, principal.owner):
        raise NotFound(what="erasure")
    return shown_erasure(found)


def is_of(erasure: Erasure, owner: Owner) -> bool:
    """Return whether an erasure belongs to the owner. Once done, the user is only known by the receipt's digest."""
    user = owner.user_id
    if erasure.receipt is None or not isinstance(user, str):
        return owner.has(erasure.user_id or "", erasure.tenant_id)
    receipt = Receipt.model_validate_json(erasure.receipt)
    return owner.tenant_id in (ANYONE, erasure.tenant_id) and receipt.is_of(Person(user, erasure.tenant_id))


def shown_erasure(erasure: Erasure) -> ErasureAnswer:
    receipt = Receipt.model_validate_json(erasure.receipt) if erasure.receipt else None
    return ErasureAnswer(
        erasure_id=erasure.erasure_id,
        state="done" if receipt else "running" if erasure.is_running else "waiting",
        asked_at=receipt.asked_at if receipt else erasure.asked_at,
        asked_by=receipt.asked_by if receipt else erasure.asked_by,
        progress=ErasureStep(stage=erasure.stage, left=erasure.left) if erasure.stage else None,
        problem=ErasureProblem(error_type=erasure.problem, detail=erasure.detail) if erasure.problem else None,
        receipt=receipt,
    )
