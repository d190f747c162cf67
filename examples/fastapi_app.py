"""A chat service that remembers: uvicorn --app-dir examples fastapi_app:app

POST /chats/{chat_id} {"user_id": …, "text": …} returns the assistant's answer. It uses the workers' settings.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

from afterword import Memory, MessageCreated, Producer, hits_as_text


class Said(BaseModel):
    user_id: str  # in a service that others can reach, take it from your session or token
    text: str


class Answer(BaseModel):
    text: str


@asynccontextmanager
async def clients(app: FastAPI) -> AsyncIterator[None]:
    async with Memory.open() as app.state.memory, Producer.from_settings() as app.state.producer:
        yield


app = FastAPI(lifespan=clients)


async def ask_model(prompt: list[dict[str, str]]) -> str:
    """Stand-in for your LLM: it repeats what it was given to remember."""
    return "\n".join(message["content"] for message in prompt if message["role"] == "system") or "I know nothing yet."


@app.post("/chats/{chat_id}")
async def chat(chat_id: str, said: Said, request: Request) -> Answer:
    memory: Memory = request.app.state.memory
    whose: dict[str, Any] = {"user_id": said.user_id, "tenant_id": None}
    if await memory.owner(chat_id) not in (None, (said.user_id, None)):
        raise HTTPException(404)
    context = await memory.context(chat_id, max_tokens=2000, **whose)
    hits = await memory.recall(said.text, **whose)
    earlier = [{"role": "system", "content": hits_as_text(hits)}] if hits else []
    question = {"role": "user", "content": said.text}
    text = await ask_model([*earlier, *(context.as_messages() if context else []), question])
    producer: Producer = request.app.state.producer
    told = {"conversation_id": chat_id, "user_id": said.user_id}
    await producer.send(MessageCreated(id=str(uuid4()), role="user", content=said.text, **told))
    await producer.send(MessageCreated(id=str(uuid4()), role="assistant", content=text, **told))
    return Answer(text=text)
