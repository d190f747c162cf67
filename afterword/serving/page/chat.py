"""A chat for trying the memory on a local server. It shows what an assistant receives with and without memory."""

import secrets
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from markupsafe import Markup
from opentelemetry.trace import NoOpTracer
from pydantic import Field
from starlette.responses import RedirectResponse

from afterword.reading.context import Owner
from afterword.reading.memory import MAX_TOKENS, Memory, hits_as_text
from afterword.schemas import MessageCreated
from afterword.schemas.base import Id
from afterword.schemas.messages import Role
from afterword.serving.page.conversations import ByConversation, ThreadQuery, seen_conversation, thread_of
from afterword.serving.page.rendering import PageRoute, fragment, refreshing_page, see_other
from afterword.serving.page.visitor import LocalVisitor, Submitted, SubmittedText, only_value
from afterword.serving.reading import Parameters
from afterword.serving.requests import Services, services_of
from afterword.serving.writing import FlushBody, flush_conversation, write_events
from afterword.streams.errors import ProviderError

USER: dict[str, Any] = {"user_id": "you", "tenant_id": None}
INSTRUCTION = {"role": "system", "content": "You are a helpful assistant. Answer in a few sentences."}
HITS = 3
"""Maximum number of earlier episodes that the assistant is sent."""
MOST_MESSAGES = 200
MESSAGE_CHARACTERS = 4000
ANSWER_TOKENS = 500

router = APIRouter(route_class=PageRoute, include_in_schema=False)


class ChatQuery(Parameters):
    id: Id | None = None
    """The conversation; absent to start a new one."""
    problem: str | None = Field(None, max_length=64)
    """Type of the error that kept the LLM from answering."""
    version: str | None = Field(None, max_length=64)
    """Version of the part that the page is showing, in requests for the part alone."""


@router.get("/chat")
async def show_chat(request: Request, principal: LocalVisitor, wanted: Annotated[ChatQuery, Query()]) -> Response:
    """Show the input box and, in a part that refreshes itself, messages, episodes and prompts."""
    if wanted.id is None:
        return see_other("/chat", id=_new_id())
    services = services_of(request)
    page = await services.memory.messages(wanted.id, MOST_MESSAGES)
    said = page.messages[::-1] if page else ()
    thread = ""
    if said:
        details = await seen_conversation(request, principal, wanted.id)
        thread = await thread_of(request, principal, details, ThreadQuery(id=wanted.id), may_write=False)
    question = next((message.content for message in reversed(said) if message.role == "user"), "")
    prompts = {
        "With memory": await with_memory(services.memory, wanted.id, question),
        "Without memory": [INSTRUCTION, *({"role": one.role, "content": one.content} for one in said)],
    }
    answers = services.settings.llm.provider != "extractive"
    part = fragment("chat_thread.html", thread=Markup(thread), prompts=prompts, answers=answers)  # noqa: S704 – rendered by a template
    given: dict[str, Any] = {"id": wanted.id, "most": MESSAGE_CHARACTERS, "problem": wanted.problem}
    return refreshing_page(request, "chat.html", "chat_part.html", principal, part, wanted.version, **given)


@router.post("/chat")
async def say(
    request: Request, _: LocalVisitor, wanted: Annotated[ByConversation, Query()], fields: SubmittedText
) -> RedirectResponse:
    """Send a message, and the LLM's answer if there is an LLM."""
    services, content = services_of(request), only_value(fields, "content", MESSAGE_CHARACTERS).strip()
    problem = None
    if content:
        await _send(services, wanted.id, "user", content)
        if services.settings.llm.provider != "extractive":
            try:
                await _send(services, wanted.id, "assistant", await _answer(services, wanted.id, content))
            except ProviderError as error:
                problem = error.error_type
    return see_other("/chat", id=wanted.id, problem=problem)


@router.post("/chat/close")
async def close(
    request: Request, principal: LocalVisitor, wanted: Annotated[ByConversation, Query()], fields: Submitted
) -> RedirectResponse:
    """Close the episode, and start another conversation if requested."""
    await flush_conversation(request, principal, wanted.id, FlushBody())
    return see_other("/chat", id=_new_id() if only_value(fields, "then") == "new" else wanted.id)


async def with_memory(memory: Memory, conversation_id: str, question: str) -> list[dict[str, str]]:
    """Build a chat API's messages from the profile, hits in the user's other conversations, and this conversation."""
    known = await memory.profile(**USER)
    hits = (
        await memory.recall(question, k=HITS + 1, current_conversation_id=conversation_id, **USER) if question else []
    )
    elsewhere = [hit for hit in hits if hit.conversation_id != conversation_id][:HITS]
    context = await memory.context(conversation_id, max_tokens=MAX_TOKENS)
    quoted = [known.as_text(), hits_as_text(elsewhere) if elsewhere else ""]
    remembered = [{"role": "system", "content": text} for text in quoted if text]
    return [INSTRUCTION, *remembered, *(context.as_messages() if context else [])]


async def _answer(services: Services, conversation_id: str, content: str) -> str:
    # imported here because a server has no other use for the LLM's client
    from afterword.streams.summarizer.llm import Asking, ChatRequest, make_client
    from afterword.streams.summarizer.retrying import Deadline

    asked = await with_memory(services.memory, conversation_id, content)
    question = {"role": "user", "content": content}
    if asked[-1] != question:  # the question is not archived yet
        asked.append(question)
    llm = services.settings.llm
    client, deadline = make_client(llm, services.metrics, NoOpTracer()), Deadline(llm.timeout_seconds)
    try:
        asking = Asking(client, llm.timeout_seconds, deadline)
        with deadline.running():
            return await asking.until_usable(lambda _: ChatRequest(asked, ANSWER_TOKENS), str)
    finally:
        await client.close()


async def _send(services: Services, conversation_id: str, role: Role, content: str) -> None:
    message = MessageCreated(
        id=secrets.token_hex(8), conversation_id=conversation_id, role=role, content=content, **USER
    )
    await write_events(services.outbox, [message], Owner(), ())


def _new_id() -> str:
    return f"chat-{secrets.token_hex(4)}"
