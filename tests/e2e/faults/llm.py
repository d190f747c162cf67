"""An LLM server that can be stopped, slowed down or made to reset connections, and comes back at the same address."""

import contextlib
import logging
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from aiohttp import web

from tests.openai_server import LlmServer, Outcome, success

HOST = "127.0.0.1"
QUIET = logging.getLogger(__name__)
"""Silences the errors of clients that give up, which this server is made for."""
QUIET.setLevel(logging.CRITICAL)


CLOSINGS = ("Then some.", "Then more.", "Then all.")
"""Endings for an answer with few long words, because the quality gate requires three sentences about the same subject.
"""


class Llm(LlmServer):
    """Gives good answers unless told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self._outcome: Outcome | None = None
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self._port = 0

    @property
    def base_url(self) -> str:
        return f"http://{HOST}:{self._port}/v1"

    @contextlib.asynccontextmanager
    async def answering(self, outcome: Outcome) -> AsyncIterator[None]:
        """Answer all requests in this block with the given function."""
        self._outcome = outcome
        try:
            yield
        finally:
            self._outcome = None

    @contextlib.asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Close its port during the block."""
        await self._close()
        try:
            yield
        finally:
            await self._open()

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.requests.clear()  # a run may send many thousands of requests
        await request.read()
        return await (self._outcome or self.usual)(request)

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _open(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None, logger=QUIET)
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, self._port, reuse_address=True).start()
        self._port = self._runner.addresses[0][1]

    async def _close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()


async def faithful(request: web.Request) -> web.StreamResponse:
    """Return a good answer: some long words of each message."""
    asked = (await request.json())["messages"][-1]["content"]
    transcript = asked[asked.rindex("BEGIN TRANSCRIPT") :] if "BEGIN TRANSCRIPT" in asked else asked
    said = [line[:500].partition(": ")[2] for line in transcript.splitlines() if line.startswith("[")]
    words = [[word.lower() for word in text.split() if word.isalpha() and len(word) > 5][:3] for text in said]
    leads = ("First", "Then", "After", "Later", "Last")
    sentences = [f"{lead} {' and '.join(some)}." for lead, some in zip(leads, filter(None, words), strict=False)]
    sentences += CLOSINGS[len(sentences) :]
    first, long = sentences[0], " ".join(sentences)
    texts = {"title": first.split()[-1], "short_summary": first, "long_summary": long, "rolling_summary": long}
    return await success(texts)(request)
