"""Providers of summaries: an LLM, or the extractive method, which does not need one."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from opentelemetry.trace import Tracer

from afterword.schemas import EpisodeMessage, Fact, Quality, Usage
from afterword.streams.settings import Llm, Settings, SummarizerSettings
from afterword.streams.summarizer.answer import StatedFact
from afterword.streams.summarizer.asking import PlainQuestions, Questions, StructuredQuestions
from afterword.streams.summarizer.extractive import summarize
from afterword.streams.summarizer.extractive.first_person import first_person
from afterword.streams.summarizer.facts import grounded
from afterword.streams.summarizer.llm.client import Asking, LlmClient, make_client
from afterword.streams.summarizer.llm.retrying import RetryBudget
from afterword.streams.summarizer.prompt import EPISODIC, TEMPLATES, Template
from afterword.streams.summarizer.summary import EXTRACTIVE, Summary, SummaryRequest
from afterword.streams.telemetry import Metrics
from afterword.streams.text.prose import MAX_MESSAGE_CHARACTERS


class Maker(NamedTuple):
    """Model and prompt of a summary, as they are stored with it."""

    model: str
    prompt_version: str | None


class Provider(Protocol):
    """Writes summaries; may be used for several episodes at a time."""

    name: str

    async def summarize(self, request: SummaryRequest) -> Summary:
        """Write one summary. Raises: ProviderError."""
        ...

    async def check(self) -> None:
        """Check that the provider can be reached and is configured. Raises: ProviderError."""
        ...

    async def close(self) -> None:
        """Close its connections; the provider cannot be used afterwards."""
        ...


class LlmProvider:
    """Asks an LLM for a summary of what fits into its context."""

    def __init__(self, client: LlmClient, llm: Llm, template: Template = EPISODIC) -> None:
        self.name = client.name
        self._client = client
        self._llm = llm
        self._questions = questions_of(template, llm)

    async def summarize(self, request: SummaryRequest) -> Summary:
        """Ask until the answers are usable. Raises: ProviderError with the `usage` of all calls."""
        budget = RetryBudget(self._llm.retry_budget_seconds, request.deadline)
        asking = Asking(self._client, budget)
        answer = await self._questions.ask(request, asking)
        # in a thread, because it reads the messages
        facts = await asyncio.to_thread(facts_of, answer.facts, request.episode.messages)
        return Summary(
            title=answer.title,
            short_summary=answer.short_summary,
            long_summary=answer.long_summary,
            rolling_summary=answer.rolling_summary,
            quality=Quality(source="llm"),
            model=self._llm.model or self.name,
            usage=asking.used,
            prompt_version=self._questions.version,
            facts=facts,
        )

    def room(self, request: SummaryRequest) -> int:
        """Return how many of our tokens the request may grow by; negative if it is too long."""
        return min(question.room(self._llm.context_tokens) for question in self._questions.longest(request))

    async def check(self) -> None:
        """Ask something short, in the form of a summary's question. Raises: ProviderError."""
        await self._client.check(self._questions.schema)

    @property
    def left_out(self) -> frozenset[str]:
        """Optional fields of requests that the server turned out to refuse."""
        return self._client.refusals.left_out

    async def close(self) -> None:
        await self._client.close()


class ExtractiveProvider:
    """Selects sentences of the conversation. It never fails, and the same request always gives the same summary."""

    name = "extractive"

    async def summarize(self, request: SummaryRequest) -> Summary:
        # in a thread: a very long message takes some hundred milliseconds, in which other lanes continue
        texts = await asyncio.to_thread(
            summarize, request.episode, request.previous_rolling, request.rolling_tokens, request.max_summary_length
        )
        truncated = any(len(message.content) > MAX_MESSAGE_CHARACTERS for message in request.episode.messages)
        return Summary(
            title=texts.title,
            short_summary=texts.short_summary,
            long_summary=texts.long_summary,
            rolling_summary=texts.rolling_summary,
            quality=Quality(source="fallback", reason=EXTRACTIVE, truncated=truncated),
            model=self.name,
            usage=Usage(),
            facts=await asyncio.to_thread(first_person, request.episode.messages),
        )

    async def check(self) -> None:
        """Do nothing: it depends on nothing that could be missing."""

    async def close(self) -> None:
        """Do nothing: it has no connection."""


def facts_of(stated: Sequence[StatedFact] | None, messages: Sequence[EpisodeMessage]) -> tuple[Fact, ...]:
    """Return what an LLM has read in the messages, or what people say of themselves if it states no facts."""
    return first_person(messages) if stated is None else grounded(stated, messages)


def questions_of(template: Template, llm: Llm) -> Questions:
    return (PlainQuestions if template.is_plain else StructuredQuestions)(template, llm)


def maker_of(settings: Settings) -> Maker:
    """Return the model and prompt of summaries made with these settings."""
    llm = settings.llm
    if llm.provider == "extractive":
        return Maker(ExtractiveProvider.name, None)
    return Maker(llm.model or llm.provider, questions_of(template_of(settings.summarizer), llm).version)


def make_provider(settings: Settings, metrics: Metrics, tracer: Tracer) -> Provider:
    """Make the configured provider, which connects with its first question.

    Raises: ConfigurationError if the address, the key or the CA file cannot be used.
    """
    llm = settings.llm
    if llm.provider == "extractive":
        return ExtractiveProvider()
    client = make_client(llm, metrics, tracer)
    return LlmProvider(client, llm, template_of(settings.summarizer))


def template_of(summarizer: SummarizerSettings) -> Template:
    """Return the template in the settings, or else the preset's."""
    text = summarizer.template()
    return TEMPLATES[summarizer.preset] if text is None else Template(summarizer.preset, text, custom=True)
