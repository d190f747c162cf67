"""Routes that write, and that erase users.

A write becomes a record of the topic `messages`, and is answered once Kafka acknowledges it.
"""

from collections import Counter
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Response
from pydantic import ConfigDict, Field

from afterword.operating.person import Person, Receipt
from afterword.schemas import (
    ConversationAssigned,
    ConversationDeleted,
    ConversationFlush,
    InputEvent,
    MessageCreated,
    MessageDeleted,
    MessageEdited,
)
from afterword.schemas.base import ANYONE, Id, Model, Owner, PartyId, Time
from afterword.schemas.messages import ConversationChange, MessageChanges
from afterword.serving.outbox import WrittenAnswer, require_own, write_change, write_events
from afterword.serving.problems import (
    MAX_PROBLEMS_NAMED,
    ChangedRepeat,
    NotFound,
    NotPermitted,
    RequestInvalid,
    responses,
)
from afterword.serving.requests import (
    MOST_BYTES,
    Caller,
    ConversationId,
    ErasureId,
    MayErase,
    MayWrite,
    MessageId,
    Parameters,
    Principal,
    UserId,
    Wanted,
    body_of,
)
from afterword.streams.stores.bookkeeping import Erasure
from afterword.streams.tasks import paced

MOST_MESSAGES = 1000
REASON_CHARACTERS = 1000

router = APIRouter(prefix="/v1", tags=["changes"])
erasures = APIRouter(prefix="/v1", tags=["erasures"])


class NewMessage(MessageCreated):
    """A message as on the topic, except that unknown fields and more than 64 kB of metadata are rejected."""

    model_config = ConfigDict(extra="forbid")

    user_id: PartyId = ""
    """User of the conversation, also on assistant messages. If the key is bound to one, it may be empty or absent."""


class MessagesBody(Model):
    """The messages to send. Messages of one conversation keep their order."""

    model_config = ConfigDict(extra="forbid")

    messages: Annotated[tuple[NewMessage, ...], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]
    """1 to 1,000 messages. Tenant and user default to those the key is bound to."""


class ChangeBody(MessageChanges):
    """The fields of a message to replace, at least one. Absent fields are unchanged."""

    # in place of the precise rule, which makes generators give up the type
    model_config = ConfigDict(extra="forbid", json_schema_extra={"minProperties": 1})

    tenant_id: PartyId | None = None
    """Tenant of the message. Defaults to the key's tenant if it is bound to one."""


class MergeBody(Model):
    """Details about a merge of two users."""

    model_config = ConfigDict(extra="forbid")

    tenant_id: PartyId | None = None
    """Tenant of what is changed. Defaults to the key's tenant if it is bound to one."""
    reason: Annotated[str, Field(max_length=REASON_CHARACTERS)] | None = None
    """Free-text reason."""


class FlushBody(MergeBody):
    """Which pending messages of a conversation to close."""

    agent_id: PartyId | None = None
    """If episodes are kept per agent, the agent whose pending messages to close; null for all agents."""


class AssignBody(MergeBody):
    """Whose messages of a conversation to give to whom."""

    from_user_id: Id
    """User whose messages are given away."""
    user_id: Id
    """User to whom they belong from now on."""


class DeletionQuery(Parameters):
    tenant_id: PartyId | None = None
    """Tenant of the conversation. Defaults to the key's tenant if it is bound to one."""
    reason: str | None = Field(None, max_length=REASON_CHARACTERS)
    """Free-text reason."""


Change = ChangeBody | MergeBody | DeletionQuery


@router.post("/messages", status_code=202, responses=responses(409))
async def send_messages(
    caller: MayWrite, given: Annotated[MessagesBody, body_of(MessagesBody, MOST_BYTES)]
) -> WrittenAnswer:
    """Send messages, and answer once Kafka has all of them.

    After 429, 5xx or no answer, some of them may have been written. Send all of them again: a message with a known id
    and the same text is dropped as a duplicate. One with another text edits the earlier message or, with
    `AFTERWORD_EPISODES__ON_CHANGED_REPEAT=reject`, is refused with 409.

    To stream an answer, send its text so far under the same id, in a request of its own, as often as you like. At most
    one text a second is passed on, and the last one always.
    """
    services = caller.services
    if caller.user_id is ANYONE:
        problem = "is required, because the key is not bound to a user"
        nameless = (at for at, message in enumerate(given.messages) if "user_id" not in message.model_fields_set)
        if problems := [(f"body.messages.{at}.user_id", problem) for at in nameless]:
            raise RequestInvalid(problems=problems[:MAX_PROBLEMS_NAMED])
    # if a batch is sent again, all of it must still be in the dedupe window, even if others wrote as much meanwhile
    most = max(1, services.settings.episodes.dedupe_window // 2)
    messages = [owned_message(message, caller) async for message in paced(given.messages)]
    conversations = Counter(message.conversation_id for message in messages)
    if (number := max(conversations.values())) > most:
        problem = f"has {number:,} messages of one conversation; at most {most:,} can be recognized if sent again"
        raise RequestInvalid(problems=[("body.messages", problem)])
    unknown = await require_own(services.memory, caller.owner, conversations, new=True)
    write, first = partial(write_events, services.outbox, messages, caller.owner, unknown), messages[0]
    if services.settings.episodes.on_changed_repeat == "reject":
        if services.settings.redaction.where != "everywhere":  # the archive has other texts, so the segmenter rejects
            problem = "has the id of an earlier message with another text, role, user or agent"
            if changed := await services.memory.changed_repeats(messages):
                raise ChangedRepeat(problems=[(f"body.messages.{at}", problem) for at in changed[:MAX_PROBLEMS_NAMED]])
    elif len(messages) == 1:
        return await services.pace.write((first.conversation_id, first.tenant_id, first.id), write)
    return await write()


@router.post("/conversations/{conversation_id}/flush", name="flush", status_code=202)
async def flush_conversation(
    caller: MayWrite, conversation_id: ConversationId, given: Annotated[FlushBody, body_of(FlushBody)]
) -> WrittenAnswer:
    """Close a conversation's pending messages now."""
    return await _change(caller, ConversationFlush, given, conversation_id=conversation_id)


@router.patch("/conversations/{conversation_id}/messages/{message_id}", status_code=202)
async def edit_message(
    caller: MayWrite,
    conversation_id: ConversationId,
    message_id: MessageId,
    given: Annotated[ChangeBody, body_of(ChangeBody, MOST_BYTES)],
) -> WrittenAnswer:
    """Replace fields of a message in the archive, its episode and its summary."""
    return await _change(caller, MessageEdited, given, conversation_id=conversation_id, id=message_id)


@router.delete("/conversations/{conversation_id}/messages/{message_id}", status_code=202)
async def delete_message(
    caller: MayWrite, conversation_id: ConversationId, message_id: MessageId, wanted: Wanted[DeletionQuery]
) -> WrittenAnswer:
    """Delete a message from the archive, its episode, its summary and the index."""
    return await _change(caller, MessageDeleted, wanted, conversation_id=conversation_id, id=message_id)


@router.delete("/conversations/{conversation_id}", status_code=202)
async def delete_conversation(
    caller: MayWrite, conversation_id: ConversationId, wanted: Wanted[DeletionQuery]
) -> WrittenAnswer:
    """Delete all messages of a conversation so far, from everywhere."""
    return await _change(caller, ConversationDeleted, wanted, conversation_id=conversation_id)


@router.post("/conversations/{conversation_id}/assign", name="assign", status_code=202)
async def assign_conversation(
    caller: MayWrite, conversation_id: ConversationId, given: Annotated[AssignBody, body_of(AssignBody)]
) -> WrittenAnswer:
    """Give one user's messages in a conversation, also later ones, to another user. The key must not be bound to one.

    Episodes, facts and recall follow.
    """
    _require_two_users(caller, given.from_user_id, given.user_id)
    return await _change(caller, ConversationAssigned, given, conversation_id=conversation_id)


@router.post("/users/{user_id}/merge-into/{into}", name="merge_users", status_code=202)
async def merge_users(
    caller: MayWrite, user_id: UserId, into: UserId, given: Annotated[MergeBody, body_of(MergeBody)]
) -> WrittenAnswer:
    """Give all of a user's messages to another user, such as a guest's who has signed in. The key must not be bound.

    There is one record for each conversation of the user, and none if there are no conversations. One that another
    server or a Kafka producer began a moment ago may not be known yet; name it in a request of its own.
    """
    services, tenant_id = caller.services, caller.tenant(given.tenant_id)
    _require_two_users(caller, user_id, into)
    names = await services.memory.conversation_ids(user_id=user_id, tenant_id=tenant_id)
    names = sorted({*names, *services.outbox.begun.of(user_id, tenant_id)})
    users = {"from_user_id": user_id, "user_id": into}
    events = [_event(caller, ConversationAssigned, given, conversation_id=name, **users) for name in names]
    return await write_events(services.outbox, events, caller.owner, ())


def _require_two_users(principal: Principal, from_user_id: str, user_id: str) -> None:
    """Raises: NotPermitted if the key is bound to one of the users; RequestInvalid if they are the same."""
    if principal.user_id is not ANYONE:
        raise NotPermitted(problem="the key is bound to a user, and may not act for two")
    if from_user_id == user_id:
        raise RequestInvalid(problems=[("user_id", "must be another user")])


def _event(principal: Principal, model: type[ConversationChange], given: Change, **ids: str) -> InputEvent:
    """Return the event for a change, with the fields that the request gives."""
    fields = {name: getattr(given, name) for name in given.model_fields_set}
    return model(**{**fields, **ids, "tenant_id": principal.tenant(given.tenant_id)})  # type: ignore[return-value]


async def _change(caller: Caller, model: type[ConversationChange], given: Change, **ids: str) -> WrittenAnswer:
    event = _event(caller, model, given, **ids)
    return await write_change(caller.memory, caller.services.outbox, caller.owner, event)


def owned_message(message: NewMessage, principal: Principal) -> MessageCreated:
    """Return the message with the key's tenant and user. Raises: NotPermitted if it names others."""
    user_id = message.user_id if principal.user_id is ANYONE else principal.user(message.user_id or None)
    owner = {"tenant_id": principal.tenant(message.tenant_id), "user_id": user_id}
    return MessageCreated.model_construct(**{**dict(message), **owner})


ErasureState = Literal["waiting", "running", "done"]


class ErasureBody(Model):
    """The person to erase."""

    model_config = ConfigDict(extra="forbid")

    user_id: PartyId | None = None
    """The user, matched exactly. If the key is bound to one, it may be null or absent."""
    tenant_id: PartyId | None = None
    """The tenant. Defaults to the key's tenant if it is bound to one; otherwise null means data without a tenant."""
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


@erasures.post("/erasures", name="erase", status_code=202)
async def request_erasure(
    caller: MayErase, response: Response, given: Annotated[ErasureBody, body_of(ErasureBody)]
) -> ErasureAnswer:
    """Request the erasure of a user. The answer comes once the request is stored; servers then carry it out.

    Repeating the request while it is in progress returns the same erasure. After it is done, another request starts a
    new erasure of what the user has written since.
    """
    person = Person(caller.user(given.user_id), caller.tenant(given.tenant_id))
    services = caller.services
    asked = await services.erasures.ask(person, given.asked_by, caller.key_id)
    services.outbox.begun.forget(*person)
    response.headers["Location"] = f"/v1/erasures/{asked.erasure_id}"
    return shown_erasure(asked)


@erasures.get("/erasures/{erasure_id}", name="get_erasure")
async def show_erasure(caller: MayErase, erasure_id: ErasureId) -> ErasureAnswer:
    """Show an erasure: its state, what it is waiting for, and finally its receipt."""
    erasure = await caller.services.erasures.find(erasure_id)
    if erasure is None or not is_of(erasure, caller.owner):
        raise NotFound(what="erasure")
    return shown_erasure(erasure)


def is_of(erasure: Erasure, owner: Owner) -> bool:
    """Return whether an erasure belongs to the owner. Once it is done, only the receipt's digest names the user."""
    user = owner.user_id
    if erasure.receipt is None or not isinstance(user, str):
        return owner.has(erasure.user_id or "", erasure.tenant_id)
    receipt = Receipt.model_validate_json(erasure.receipt)
    return owner.tenant_id in (ANYONE, erasure.tenant_id) and receipt.is_of(Person(user, erasure.tenant_id))


def shown_erasure(erasure: Erasure) -> ErasureAnswer:
    receipt = Receipt.model_validate_json(erasure.receipt) if erasure.receipt else None
    return ErasureAnswer(
        erasure_id=erasure.erasure_id,
        state="done" if receipt else "running" if erasure.stage else "waiting",
        asked_at=receipt.asked_at if receipt else erasure.asked_at,
        asked_by=receipt.asked_by if receipt else erasure.asked_by,
        progress=ErasureStep(stage=erasure.stage, left=erasure.left) if erasure.stage else None,
        problem=ErasureProblem(error_type=erasure.problem, detail=erasure.detail) if erasure.problem else None,
        receipt=receipt,
    )
