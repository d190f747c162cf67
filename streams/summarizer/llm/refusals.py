"""Finds out what an LLM's server refuses: one prompt, an optional field of every request, or everything."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import structlog

from afterword.streams.errors import (
    AnswerInvalid,
    PromptRefused,
    ProviderError,
    ProviderMisconfigured,
    ProviderUnavailable,
)

if TYPE_CHECKING:  # embedders do not need the rest of a chat
    from afterword.streams.summarizer.llm.chat import ChatProtocol, ChatRequest, Reply

HARMLESS_TOKENS = 256
"""Enough for the few words of an answer after a short thought."""

log = structlog.get_logger()


class PromptRefusals:
    """Judges the refusals of one server, model and key.

    A status such as 403 does not say what caused it: a moderation filter or a firewall uses it for the text of one
    request, a gateway for a wrong key. The two differ in whether the server answers any other request.
    """

    def __init__(self, ask_something_harmless: Callable[[], Awaitable[object]]) -> None:
        """`ask_something_harmless` raises AnswerInvalid for an odd answer, and another ProviderError if there is no
        answer.
        """
        self._probe = ask_something_harmless
        self._answered_at = self._failed_at = -inf
        self._probing = asyncio.Lock()

    def answered(self) -> None:
        """Note that the server has just answered a request."""
        self._answered_at = _now()

    async def concern_one_request(self, asked_at: float) -> bool:
        """Return whether the server has answered another request since `asked_at` (loop time), or answers one now."""
        async with self._probing:  # if many requests are refused, only the first asks the question
            if self._answered_at > asked_at:
                return True
            if self._failed_at > asked_at:
                return False
            try:
                await self._probe()
            except AnswerInvalid:
                pass  # it did answer
            except ProviderError:
                self._failed_at = _now()
                return False
            self.answered()
            return True


class Refusals:
    """Asks a server, and omits from then on the optional fields that it refuses in every request."""

    def __init__(self, protocol: "ChatProtocol") -> None:
        self._protocol = protocol
        self._of_prompts: dict[tuple[str | None, bool], PromptRefusals] = {}
        """The key is the model, and whether JSON is requested."""
        self._learning = asyncio.Lock()
        self.left_out: frozenset[str] = frozenset()

    async def chat(self, request: "ChatRequest") -> "Reply":
        """Ask once, and again without optional fields if that may help.

        Raises: ProviderError, which is a PromptRefused if the server refuses this request but answers others.
        """
        asked_at = _now()
        try:
            reply = await self._protocol.chat(self._accepted(request))
        except ProviderUnavailable as error:
            if not (error.named or isinstance(error, ProviderMisconfigured)):
                raise
            reply = await self._chat_without(self._accepted(request), error, asked_at)
        self._judge(request).answered()
        return reply

    async def concern_one_request(self, request: "ChatRequest", asked_at: float) -> bool:
        """Return whether the server answers other requests while it fails at this one, which was sent at `asked_at`."""
        return await self._judge(request).concern_one_request(asked_at)

    def _accepted(self, request: "ChatRequest") -> "ChatRequest":
        return replace(request, left_out=self.left_out) if self.left_out else request

    def _judge(self, request: "ChatRequest") -> PromptRefusals:
        shape = request.model, request.schema is None
        if shape not in self._of_prompts:
            question = harmless(request)
            self._of_prompts[shape] = PromptRefusals(lambda: self._protocol.chat(self._accepted(question)))
        return self._of_prompts[shape]

    async def _chat_without(self, request: "ChatRequest", first: ProviderUnavailable, asked_at: float) -> "Reply":
        """Omit the optional fields that an error names, or all of them if the server refuses every request."""
        error, refuses_all = first, False
        while True:
            fields = self._protocol.optional_fields(request)
            suspects = fields & error.named
            if not suspects:
                if not isinstance(error, ProviderMisconfigured):
                    raise first
                if not refuses_all and await self.concern_one_request(request, asked_at):
                    raise PromptRefused(problem=first.problem)
                refuses_all = True
                suspects = fields
            if not suspects:
                raise first
            request = replace(request, left_out=request.left_out | suspects)
            try:
                reply = await self._protocol.chat(request)
            except ProviderUnavailable as again:
                error = again
            else:
                await self._learn(harmless(request))
                return reply

    async def _learn(self, question: "ChatRequest") -> None:
        """Omit a field permanently only if the server refuses a harmless question because of it.

        A filter's error may name a field too, because it quotes the prompt.
        """
        async with self._learning:
            for field in sorted(question.left_out - self.left_out):
                try:
                    await self._protocol.chat(replace(question, left_out=question.left_out - {field}))
                except ProviderUnavailable as error:
                    if isinstance(error, ProviderMisconfigured) or field in error.named:
                        self.left_out |= {field}
                        log.warning("llm_field_left_out", stage="summarize", field=field, problem=error.problem)
                except ProviderError:
                    pass


def harmless(request: "ChatRequest") -> "ChatRequest":
    """Make a question that no filter refuses, in the form of another one."""
    return replace(request, messages=[{"role": "user", "content": "Answer with yes."}], max_tokens=HARMLESS_TOKENS)


def _now() -> float:
    return asyncio.get_running_loop().time()
