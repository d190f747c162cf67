"""What every LLM server offers, whatever its protocol."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from afterword.schemas import Usage
from afterword.streams.summarizer.prompt import Messages
from afterword.streams.tokens import TOKENIZER_MARGIN, count_tokens


@dataclass(frozen=True)
class ChatRequest:
    """One question; with the settings of the endpoint it is all that the answer depends on."""

    messages: Messages
    max_tokens: int
    """Of the answer."""
    schema: dict[str, Any] | None = None
    """JSON schema of the answer; None: plain text."""
    model: str | None = None
    """None: the one that the settings name."""

    def room(self, context_tokens: int) -> int:
        """Tokens, by our tokenizer, that the messages may grow by until they and the answer fill a model's context.

        Negative: as many as they have too many.
        """
        prompt_tokens = sum(count_tokens(message["content"]) for message in self.messages)
        return int((context_tokens - self.max_tokens) / TOKENIZER_MARGIN) - prompt_tokens


@dataclass(frozen=True)
class Reply:
    """What a chat endpoint answered."""

    text: str
    usage: Usage
    cut_off: bool = False
    """The model stopped at its token limit."""
    refused: bool = False
    """The endpoint itself says that the model declined, or that a filter did."""


class ChatEndpoint(Protocol):
    """The differences between one chat protocol and another."""

    name: str

    async def chat(self, request: ChatRequest) -> Reply:
        """One call. Raises: ProviderError."""
        ...

    async def forget(self, requests: Sequence[ChatRequest]) -> None:
        """Their replies were of no use: if they are asked once more, then for other answers."""
        ...

    async def check(self) -> None:
        """Raises: ProviderError."""
        ...

    async def close(self) -> None: ...


def total(one: Usage, other: Usage) -> Usage:
    return Usage(
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        completion_tokens=one.completion_tokens + other.completion_tokens,
    )


def count(value: object) -> int:
    """A number of tokens as a server reports it; 0 where it reports none, or nonsense."""
    return value if isinstance(value, int) and value > 0 else 0
