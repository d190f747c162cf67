"""Summaries by an LLM behind a chat endpoint: asks until the answer can be used, each time saying what was wrong."""

from functools import partial

from schemas import Quality, Usage
from streams.errors import AnswerInvalid
from streams.settings import Llm
from streams.summarizer.answer import Answer, read_answer
from streams.summarizer.prompt import SCHEMA, build_prompt
from streams.summarizer.providers.base import Summary, SummaryRequest
from streams.summarizer.providers.endpoint import ChatEndpoint, ChatRequest, Reply, total
from streams.summarizer.providers.retrying import Budget, retrying

STAGE = "summarize"


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
            question = ChatRequest(prompt, self._llm.max_output_tokens, SCHEMA)
            try:
                reply = await retrying(STAGE, partial(self._endpoint.chat, question), self._llm.attempts, budget)
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
