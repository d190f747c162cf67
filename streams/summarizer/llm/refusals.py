"""Telling a server that refuses one request from a server that refuses them all."""

import asyncio
from collections.abc import Awaitable, Callable
from math import inf

from afterword.streams.errors import AnswerInvalid, ProviderError


class PromptRefusals:
    """Judges the refusals of one server, model and key.

    A status such as 403 does not say whose fault it is: a moderation filter or a firewall uses it for the text of one
    request, a gateway for a wrong key. What tells them apart is whether the server answers anybody else.
    """

    def __init__(self, ask_something_harmless: Callable[[], Awaitable[object]]) -> None:
        """`ask_something_harmless`: raises AnswerInvalid for an odd answer, another ProviderError for none."""
        self._probe = ask_something_harmless
        self._answered_at = -inf
        self._probing = asyncio.Lock()

    def answered(self) -> None:
        """Note that the server has just answered a request."""
        self._answered_at = _now()

    async def concern_one_request(self, asked_at: float) -> bool:
        """Tell whether the server has answered another request since `asked_at` (loop time), or answers one now."""
        async with self._probing:  # of many refused requests only the first puts the question
            if self._answered_at > asked_at:
                return True
            try:
                await self._probe()
            except AnswerInvalid:
                pass  # it did answer
            except ProviderError:
                return False
            self.answered()
            return True


def _now() -> float:
    return asyncio.get_running_loop().time()
