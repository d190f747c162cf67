"""Summaries by an LLM behind a chat endpoint: asks until the answer can be used, each time saying what was wrong."""

from collections.abc import Callable
from typing import Protocol

from afterword.schemas import Quality
from afterword.streams.settings import Llm
from afterword.streams.summarizer.answer import Answer
from afterword.streams.summarizer.prompt import EPISODIC, Template
from afterword.streams.summarizer.providers.asking import Asking
from afterword.streams.summarizer.providers.base import Summary, SummaryRequest
from afterword.streams.summarizer.providers.endpoint import ChatEndpoint, ChatRequest
from afterword.streams.summarizer.providers.plain import Plain
from afterword.streams.summarizer.providers.structured import Structured


class Method(Protocol):
    """How the texts of a summary are asked for."""

    version: str
    """Of what is asked."""

    async def answer(self, request: SummaryRequest, asking: Asking) -> Answer:
        """Raises: ProviderError."""
        ...

    def longest(self, request: SummaryRequest) -> list[ChatRequest]:
        """The questions that are asked of the episode's messages."""
        ...


class ChatProvider:
    """A Provider on any chat endpoint."""

    def __init__(
        self,
        endpoint: ChatEndpoint,
        llm: Llm,
        template: Template = EPISODIC,
        retried: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`retried` is told the error type whenever a question is put again."""
        self.name = endpoint.name
        self._endpoint = endpoint
        self._llm = llm
        self._retried = retried
        self._method: Method = Plain(template, llm) if template.is_plain else Structured(template, llm)

    async def summarize(self, request: SummaryRequest) -> Summary:
        """Raises: ProviderError; an AnswerInvalid carries the `usage` of the calls that were made."""
        asking = Asking(self._endpoint, self._llm, fresh=request.fresh, retried=self._retried)
        answer = await self._method.answer(request, asking)
        return Summary(
            title=answer.title,
            short_summary=answer.short_summary,
            long_summary=answer.long_summary,
            rolling_summary=answer.rolling_summary,
            quality=Quality(source="llm"),
            model=self._llm.model or self.name,
            usage=asking.used,
            prompt_version=self._method.version,
        )

    def room(self, request: SummaryRequest) -> int:
        """Tokens, by our tokenizer, that the request may still grow by; negative: as many as it has too many."""
        return min(question.room(self._llm.context_tokens) for question in self._method.longest(request))

    async def check(self) -> None:
        await self._endpoint.check()

    async def close(self) -> None:
        await self._endpoint.close()
