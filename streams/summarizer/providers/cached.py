"""Whoever asks an LLM what it was asked before gets the answer that it gave."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from weakref import WeakValueDictionary

import orjson
import structlog

from afterword.schemas import Usage
from afterword.streams.errors import StoreUnavailable
from afterword.streams.settings import Llm
from afterword.streams.stores.replies import KeptReply, ReplyCache
from afterword.streams.summarizer.providers.endpoint import ChatEndpoint, ChatRequest, Reply

T = TypeVar("T")

STAGE = "llm_cache"
AWAY_SECONDS = 30.0
"""A store that could not be reached is not asked for so long: each try may take its whole timeout."""
MAX_CHARACTERS = 100_000
"""No model writes more; what a broken server may send is not worth keeping."""

log = structlog.get_logger()


class Cached:
    """A ChatEndpoint that keeps its replies. Where they cannot be kept, it is as if it were not there.

    What several ask at the same time is asked once, too.
    """

    def __init__(self, endpoint: ChatEndpoint, replies: ReplyCache, llm: Llm) -> None:
        self.name = endpoint.name
        self._endpoint = endpoint
        self._replies = replies
        self._llm = llm
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._away_until = 0.0

    async def chat(self, request: ChatRequest) -> Reply:
        """A kept reply has cost nothing this time. Raises: ProviderError."""
        key = key_of(request, self.name, self._llm)
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            kept = await self._if_possible(lambda: self._replies.get(key))
            return again(kept) if kept else await self._ask(key, request)

    async def forget(self, requests: Sequence[ChatRequest]) -> None:
        keys = [key_of(request, self.name, self._llm) for request in requests]
        await self._if_possible(lambda: self._replies.forget(keys))

    async def check(self) -> None:
        await self._endpoint.check()

    async def close(self) -> None:
        await self._endpoint.close()

    async def _ask(self, key: str, request: ChatRequest) -> Reply:
        reply = await self._endpoint.chat(request)
        if len(reply.text) <= MAX_CHARACTERS:
            expires_at = datetime.now(UTC) + timedelta(seconds=self._llm.cache_seconds)
            kept = KeptReply(reply.text, reply.usage, reply.cut_off, reply.refused)
            await self._if_possible(lambda: self._replies.put(key, kept, expires_at))
        return reply

    async def _if_possible(self, call: Callable[[], Awaitable[T]]) -> T | None:
        if time.monotonic() < self._away_until:
            return None
        try:
            return await call()
        except StoreUnavailable as error:
            self._away_until = time.monotonic() + AWAY_SECONDS
            log.warning("replies are not kept", stage=STAGE, error_type=error.error_type, problem=str(error))
            return None


def key_of(request: ChatRequest, endpoint: str, llm: Llm) -> str:
    """SHA-256, in hexadecimal, of all that an answer depends on; not of the server's address, which may change."""
    model = request.model or llm.model
    parameters = [endpoint, model, llm.temperature, llm.chat_format, request.max_tokens, request.schema]
    return hashlib.sha256(orjson.dumps([*parameters, request.messages], option=orjson.OPT_SORT_KEYS)).hexdigest()


def again(kept: KeptReply) -> Reply:
    return Reply(kept.text, Usage(), kept.cut_off, kept.refused)
