"""A chat for trying the memory on a local server. Each answer shows what memory adds to it."""

import asyncio
import secrets
from datetime import UTC, datetime
from functools import partial
from typing import Any

from fastapi import APIRouter, Response
from opentelemetry.trace import NoOpTracer
from pydantic import Field
from starlette.responses import RedirectResponse

from afterword.reading.memory import MAX_TOKENS, Memory, hits_as_text
from afterword.schemas import MessageCreated
from afterword.schemas.base import Id, Owner
from afterword.schemas.messages import Role
from afterword.serving.outbox import write_events
from afterword.serving.page.rendering import PageRoute, address, fragment, html_page, refreshing_page, see_other
from afterword.serving.page.visitor import LocalVisitor, SubmittedText, only_value
from afterword.serving.problems import RequestInvalid
from afterword.serving.requests import Parameters, Services, Wanted
from afterword.serving.writing import FlushBody, flush_conversation
from afterword.streams.errors import ProviderError
from afterword.streams.settings import zone_of

INSTRUCTION = {"role": "system", "content": "You are a helpful assistant. Answer in a few sentences."}
HITS = 3
"""Maximum number of earlier episodes that the assistant is sent."""
KEEP_RECENT = 50
"""How many of the last messages it is sent, with memory and without, if the whole conversation is too long."""
MOST_MESSAGES = 200
MESSAGE_CHARACTERS = 4000
NAME_CHARACTERS = 60
ANSWER_TOKENS = 500
WITHOUT_MEMORY = "without_memory"
"""Name in an answer's metadata of what the answer would have been without memory, if that differs."""

router = APIRouter(route_class=PageRoute, include_in_schema=False)


class ByChat(Parameters):
    id: Id
    name: Id = Field("you", max_length=NAME_CHARACTERS)
    """Who speaks: the user."""


class ChatQuery(ByChat):
    id: Id | None = None  # type: ignore[assignment]  # absent to start a new conversation
    problem: str | None = Field(None, max_length=64)
    """Type of the error that kept the LLM from answering."""
    version: str | None = Field(None, max_length=64)
    """Version of the messages that the page is showing, in requests for them alone."""


@router.get("/chat")
async def show_chat(caller: LocalVisitor, wanted: Wanted[ChatQuery]) -> Response:
    """Show the messages, which refresh themselves, above the box to write the next one."""
    if wanted.id is None:
        return see_other("/chat", id=_new_id(), name=wanted.name)
    said = await _said(caller.memory, wanted.id)
    part = await asyncio.to_thread(fragment, "chat_thread.html", messages=said, id=wanted.id, name=wanted.name)
    given: dict[str, Any] = {"id": wanted.id, "name": wanted.name, "problem": wanted.problem}
    given |= {"has_llm": _has_llm(caller.services), "most": MESSAGE_CHARACTERS, "most_of_name": NAME_CHARACTERS}
    return refreshing_page(caller.request, "chat.html", "chat_part.html", part, wanted.version, **given)


@router.post("/chat")
async def say(caller: LocalVisitor, wanted: Wanted[ByChat], fields: SubmittedText) -> Response:
    """Send a message, or close the episode and start another conversation.

    Scripts ask for the answer next. Without them, it is sent before the page is shown again.
    """
    services, content = caller.services, only_value(fields, "content", MESSAGE_CHARACTERS).strip()
    name = only_value(fields, "name", NAME_CHARACTERS).strip() or wanted.name
    is_scripted = "hx-request" in caller.request.headers
    if "another" in fields:
        await flush_conversation(caller, wanted.id, FlushBody())
        path = address("/chat", id=_new_id(), name=name)
        return Response(headers={"HX-Redirect": path}) if is_scripted else RedirectResponse(path, 303)
    if not content:
        raise RequestInvalid(problems=[("content", "must not be empty")])
    message = await _send(services, wanted.id, name, "user", content)
    if is_scripted:
        return html_page(caller.request, "chat_said.html", message=message, name=name)
    problem = None
    try:
        await _answer(services, wanted.id, name, content)
    except ProviderError as error:
        problem = error.error_type
    return see_other("/chat", id=wanted.id, name=name, problem=problem)


@router.post("/chat/answer")
async def answer(caller: LocalVisitor, wanted: Wanted[ByChat], fields: SubmittedText) -> Response:
    """Send the answer to what was just said, and show it."""
    content = only_value(fields, "content", MESSAGE_CHARACTERS)
    try:
        message = await _answer(caller.services, wanted.id, wanted.name, content)
    except ProviderError as error:
        return html_page(caller.request, "chat_problem.html", problem=error.error_type)
    return html_page(caller.request, "chat_message.html", message=message)


@router.get("/chat/prompts")
async def show_prompts(caller: LocalVisitor, wanted: Wanted[ByChat]) -> Response:
    """Show what an LLM is sent, with memory and without."""
    memory = caller.memory
    said = await _said(memory, wanted.id)
    question = next((message.content for message in reversed(said) if message.role == "user"), "")
    sides = await prompts(memory, wanted.id, wanted.name, question)
    template = "chat_sides.html" if caller.request.headers.get("hx-request") else "chat_prompts.html"
    return html_page(caller.request, template, sides=sides, wanted=wanted)


async def prompts(memory: Memory, conversation_id: str, user_id: str, question: str) -> dict[str, list[dict[str, str]]]:
    """Build a chat API's messages. With memory, there are all of those without, after what is remembered:

    the profile, hits in the user's other conversations, and a summary of this one if it is too long.
    """
    owner: dict[str, Any] = {"user_id": user_id, "tenant_id": None}
    known = await memory.profile(**owner)
    context = await memory.context(conversation_id, max_tokens=MAX_TOKENS)
    if context and not context.verbatim:
        context = await memory.context(conversation_id, KEEP_RECENT, MAX_TOKENS)
    wanted = {"k": HITS + 1, "current_conversation_id": conversation_id, **owner}
    hits = await memory.recall(question, **wanted) if question else []
    elsewhere = [hit for hit in hits if hit.conversation_id != conversation_id][:HITS]
    quoted = [known.as_text(), hits_as_text(elsewhere) if elsewhere else ""]
    remembered = [{"role": "system", "content": text} for text in quoted if text]
    nothing = {"title": "", "rolling_summary": "", "recent_summaries": ()}
    said = context.model_copy(update=nothing).as_messages() if context else []
    summarized = context.as_messages() if context else []
    if question and not (context and context.messages and context.messages[-1].content == question):
        asked = {"role": "user", "content": question}  # not archived yet
        said, summarized = [*said, asked], [*summarized, asked]
    return {"With memory": [INSTRUCTION, *remembered, *summarized], "Without memory": [INSTRUCTION, *said]}


async def _answer(services: Services, conversation_id: str, name: str, question: str) -> MessageCreated:
    """Send the answer with memory, and keep the one without beside it."""
    if _has_llm(services):
        sides = await prompts(services.memory, conversation_id, name, question)
        remembering, forgetful = await asyncio.gather(*[_asked(services, side) for side in sides.values()])
    else:
        remembering, forgetful = await _known(services, conversation_id, name, question)
    metadata = {WITHOUT_MEMORY: forgetful} if forgetful != remembering else {}
    # what only quotes the memory must not become a memory
    fields = {"metadata": metadata, "skip_summarization": not _has_llm(services)}
    return await _send(services, conversation_id, name, "assistant", remembering, **fields)


async def _known(services: Services, conversation_id: str, name: str, question: str) -> tuple[str, str]:
    """Answer in the words in which it was said, with memory and from this conversation alone."""
    # imported here because of the search's libraries, which only few requests need
    from afterword.reading.profile import profile
    from afterword.reading.search import EVERYTHING
    from afterword.serving.page import answers

    memory = services.memory
    owner: dict[str, Any] = {"user_id": name, "tenant_id": None}
    now = datetime.now(zone_of(services.settings.summarizer.time_zone))
    said = await _said(memory, conversation_id)
    if said and (said[-1].role, said[-1].content) == ("user", question):
        said.pop()
    known = await memory.profile(name, None, EVERYTHING)
    told = await asyncio.to_thread(answers.facts_in, said, name, now, known)
    known = await memory.profile(name, None, EVERYTHING, besides=told)
    known_here = profile(name, None, await asyncio.to_thread(answers.facts_in, said, name, now))
    if names_speaker := bool(answers.ASKS_WHO.match(question)):
        question = answers.without_who(question, said)
    if answers.ASKS_WHAT_CHANGED.match(question):
        changed = partial(answers.changes_in, now=now, names_speaker=names_speaker)
        return changed(known), changed(known_here)
    if not answers.asks_something(question):
        return answers.NOTED, answers.NOTED
    here = answers.said_here(question, said, known_here, now)
    own = await memory.recall(question, conversation_id=conversation_id, **owner)
    here += [each._replace(title="") for each in answers.said_in(question, own, known_here)]
    hits = await memory.recall(question, **owner)
    ids = {each.message_id for each in here}
    everything = [*here, *(each for each in answers.said_in(question, hits, known) if each.message_id not in ids)]
    here, everything = (
        answers.as_it_is_now(each, question, facts) for each, facts in ((here, known_here), (everything, known))
    )
    is_unsure = not here and hits and hits[0].score < answers.UNSURE_BELOW
    quoted = partial(answers.answer_of, asker=name, now=now, names_speaker=names_speaker)
    return (answers.UNSURE if is_unsure and everything else "") + quoted(everything), quoted(here)


async def _asked(services: Services, prompt: list[dict[str, str]]) -> str:
    # imported here because a server has no other use for the LLM's client
    from afterword.streams.summarizer.llm import Asking, ChatRequest, make_client
    from afterword.streams.summarizer.retrying import Deadline

    llm = services.settings.llm
    client, deadline = make_client(llm, services.metrics, NoOpTracer()), Deadline(llm.timeout_seconds)
    try:
        asking = Asking(client, llm.timeout_seconds, deadline)
        with deadline.running():
            return await asking.until_usable(lambda _: ChatRequest(prompt, ANSWER_TOKENS), str)
    finally:
        await client.close()


async def _said(memory: Memory, conversation_id: str) -> list[MessageCreated]:
    page = await memory.messages(conversation_id, MOST_MESSAGES)
    return list(page.messages[::-1]) if page else []


async def _send(
    services: Services, conversation_id: str, name: str, role: Role, content: str, **fields: Any
) -> MessageCreated:
    message = MessageCreated(
        id=secrets.token_hex(8),
        conversation_id=conversation_id,
        user_id=name,
        author=name if role == "user" else None,
        role=role,
        content=content,
        sent_at=datetime.now(UTC),
        **fields,
    )
    await write_events(services.outbox, [message], Owner(), ())
    return message


def _has_llm(services: Services) -> bool:
    return services.settings.llm.provider != "extractive"


def _new_id() -> str:
    return f"chat-{secrets.token_hex(4)}"
