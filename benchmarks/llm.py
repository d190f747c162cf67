"""An OpenAI-compatible stand-in: it takes as long as it is told to, and notes who had a slot and when."""

import asyncio
import hashlib
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import orjson
from aiohttp import web

from afterword.schemas.base import rfc3339
from benchmarks.load import WORDS
from benchmarks.local_server import LocalServer

MODEL = "stand-in"
VECTOR_SIZE = 256
TEXTS = {
    "title": "Refund of the delivery fee",
    "short_summary": "The order arrived late and the customer wants a refund of the delivery fee.",
    "long_summary": (
        "The order arrived late. The customer asks for a refund of the delivery fee. "
        "The driver called twice but nobody answered, so the tracking number is checked again."
    ),
    "rolling_summary": "The customer of a late order asks for a refund of the delivery fee.",
}
"""Summary that is true of every conversation of `chat`: the quality check passes it."""
OPENING = "the order arrived late and the customer asks for a refund of the delivery fee"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
NAME = re.compile(r"account-\d+")

Seconds = Callable[[str], float]
"""Duration of the answer about a conversation."""


class Span(NamedTuple):
    """One request, in seconds of the monotonic clock."""

    conversation: str
    began: float
    ended: float


class StandIn(LocalServer):
    """LLM server."""

    def __init__(self, seconds: Seconds = lambda _: 0.0) -> None:
        super().__init__({"/v1/chat/completions": self._chat, "/v1/embeddings": _embed})
        self._seconds = seconds
        self.spans: list[Span] = []

    def environment(self, slots: int) -> dict[str, str]:
        """Variables that send a summarizer here."""
        return {
            "AFTERWORD_LLM__PROVIDER": "openai",
            "AFTERWORD_LLM__BASE_URL": f"{self.url}/v1",
            "AFTERWORD_LLM__MODEL": MODEL,
            "AFTERWORD_LLM__MAX_CONCURRENCY": str(slots),
        }

    async def _chat(self, request: web.Request) -> web.Response:
        began, conversation = time.monotonic(), conversation_of(await request.read())
        await asyncio.sleep(self._seconds(conversation))
        self.spans.append(Span(conversation, began, time.monotonic()))
        return web.Response(body=REPLY, content_type="application/json")


async def _embed(request: web.Request) -> web.Response:
    """Answer with a vector that is the same for the same text, and else any."""
    asked = orjson.loads(await request.read())
    texts = asked["input"] if isinstance(asked["input"], list) else [asked["input"]]
    data = [{"object": "embedding", "index": n, "embedding": vector_of(text)} for n, text in enumerate(texts)]
    usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
    answer = {"object": "list", "model": MODEL, "data": data, "usage": usage}
    return web.Response(body=orjson.dumps(answer), content_type="application/json")


def vector_of(text: str) -> list[float]:
    """VECTOR_SIZE numbers between -1 and 1."""
    hashed = hashlib.shake_256(text.encode()).digest(VECTOR_SIZE)
    return [byte / 127.5 - 1 for byte in hashed]


def conversation_of(body: bytes) -> str:
    """Conversation of `chat` that a request is about; empty for none."""
    found = NAME.search(body.decode())
    return found.group() if found else ""


def name_of(number: int) -> str:
    """A conversation's id, which its messages name."""
    return f"account-{number}"


def chat(conversation: str, first: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Ids and JSON of a conversation's messages `first`, `first` + 1 …, each of some 300 bytes."""
    for number in range(first, first + count):
        words = " ".join(WORDS[(number * 7 + at) % len(WORDS)] for at in range(12))
        message = {
            "id": f"{conversation}-{number}",
            "conversation_id": conversation,
            "user_id": f"user-of-{conversation}",
            "role": "user" if number % 2 == 0 else "assistant",
            "content": f"{conversation}: {OPENING}, {words}",
            "sent_at": rfc3339(BEGIN + timedelta(seconds=number)),
        }
        yield str(message["id"]), orjson.dumps(message)


REPLY = orjson.dumps(
    {
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": orjson.dumps(TEXTS).decode()},
            }
        ],
        "usage": {"prompt_tokens": 400, "completion_tokens": 100},
    }
)
