"""Summaries by an LLM behind a chat endpoint: asks until the answer can be used, each time saying what was wrong."""

from dataclasses import dataclass
from functools import partial
from typing import Protocol

from schemas import Quality, Usage
from streams.errors import AnswerInvalid
from streams.settings import Llm
from streams.summarizer.answer import Answer, read_answer
from streams.summarizer.prompt import Messages, build_prompt
from streams.summarizer.providers.base import Summary, SummaryRequest
from streams.summarizer.providers.retrying import Budget, retrying

STAGE = "summarize"


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

    async def chat(self, messages: Messages) -> Reply:
        """One call. Raises: ProviderError."""
        ...

    async def check(self) -> None:
        """Raises: ProviderError."""
        ...

    async def close(self) -> None: ...


class ChatProvider:
    """A Provider on any chat endpoint."""

    def __init__(self, endpoint: ChatEndpoint, llm: Llm) -> None:
        self.name = endpoint.name
        self._endpoint = endpoint
        self._llm = llm

    async def summarize(self, request: SummaryRequest) -> Summary:
        """Raises: ProviderError; an AnswerInvalid carries the `usage` of the calls that were made."""
        budget = Budget(self._llm.retry_budget_seconds)
        used, problem = Usage(), request.problem
        for _ in range(self._llm.json_attempts):
            prompt = build_prompt(request.episode, request.previous_rolling, request.rolling_tokens, problem)
            try:
                reply = await retrying(STAGE, partial(self._endpoint.chat, prompt), self._llm.attempts, budget)
                used = total(used, reply.usage)
                return self._summary(usable(reply, request.rolling_tokens), used)
            except AnswerInvalid as error:
                problem = str(vars(error)["problem"])
        raise AnswerInvalid(problem=problem, usage=used)

    async def check(self) -> None:
        await self._endpoint.check()

    async def close(self) -> None:
        await self._endpoint.close()

    def _summary(self, answer: Answer, usage: Usage) -> Summary:
        return Summary(
            title=answer.title,
            short_summary=answer.short_summary,
            long_summary=answer.long_summary,
            rolling_summary=answer.rolling_summary,
            quality=Quality(source="llm"),
            model=self._llm.model or self.name,
            usage=usage,
        )


def usable(reply: Reply, rolling_tokens: int) -> Answer:
    """Raises: AnswerInvalid."""
    if reply.refused:
        raise AnswerInvalid(problem="it was a refusal")
    if reply.cut_off:
        raise AnswerInvalid(problem="it was cut off at the token limit: be shorter")
    return read_answer(reply.text, rolling_tokens)


def total(one: Usage, other: Usage) -> Usage:
    return Usage(
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        completion_tokens=one.completion_tokens + other.completion_tokens,
    )


def count(value: object) -> int:
    """A number of tokens as a server reports it; 0 where it reports none, or nonsense."""
    return value if isinstance(value, int) and value > 0 else 0
