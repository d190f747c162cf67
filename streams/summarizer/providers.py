"""Providers of summaries: an LLM, or the extractive method, which does not need one."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import structlog
from opentelemetry.trace import Tracer

from afterword.schemas import EpisodeClosed, EpisodeMessage, Quality
from afterword.schemas.messages import Role
from afterword.streams.errors import ProviderError
from afterword.streams.settings import Llm, Settings, SummarizerSettings
from afterword.streams.stores.bookkeeping import Records
from afterword.streams.summarizer.llm import STAGE, Asking, ChatRequest, LlmClient, make_client
from afterword.streams.summarizer.prompt import (
    EPISODIC,
    JSON_FRAME,
    PLAIN_FRAME,
    TEMPLATES,
    WORDS_PER_TOKEN,
    Template,
    json_prompt,
    long_prompt,
    rolling_prompt,
    schema_of,
    short_prompt,
    title_prompt,
)
from afterword.streams.summarizer.summary import DECIMALS, EXTRACTIVE, SHORT_SENTENCES, Summary, SummaryRequest
from afterword.streams.telemetry.metrics import Metrics
from afterword_text.answer import Answer, Limits, read_answer, read_plain
from afterword_text.extractive import summarize
from afterword_text.facts import grounded
from afterword_text.fences import Messages
from afterword_text.gate import share_of_pairs
from afterword_text.sentences import MAX_MESSAGE_CHARACTERS, cut_at_word
from afterword_text.statements import first_person
from afterword_text.texts import FIELDS, TITLE_CHARACTERS

JSON_TOKENS = 250
"""Tokens of a JSON answer besides its long texts: title, short summary, field names, quotation marks."""
FACTS_TOKENS = 400
"""Tokens of its facts, about as many as it may have."""
CHARACTERS_PER_TOKEN = 4
"""The average in English. Other languages use the margin of the rolling summary, whose words are limited more
tightly."""
PLAIN_TOKENS = 500
"""Maximum number of tokens of a plain-text answer, unless the settings say otherwise."""

CHECK_ROLLING_TOKENS = 200

Prompt = Callable[[str | None], Messages]
"""Makes a prompt, given what was wrong with the previous answer."""

log = structlog.get_logger()


class StructuredQuestions:
    """One question, answered as a JSON object, and another for the title if there is a model for titles."""

    schema: dict[str, Any] | None = schema_of(FIELDS)
    """JSON schema of answers with all texts; None if they are plain text."""

    def __init__(self, template: Template, llm: Llm) -> None:
        self.version = template.version(JSON_FRAME + (PLAIN_FRAME if llm.title_model else ""))
        self._template = template
        self._llm = llm

    async def ask(self, request: SummaryRequest, asking: Asking) -> Answer:
        limits = Limits(request.rolling_tokens, request.max_summary_length)
        read = partial(read_answer, limits=limits, fields=request.fields)
        answer = await asking.until_usable(partial(self._question, request), read, request.problem)
        if not self._llm.title_model:
            return answer
        return replace(answer, title=await ask_for_title(request, answer, asking, self._llm))

    def longest(self, request: SummaryRequest) -> list[ChatRequest]:
        """Return the questions that contain the episode's messages."""
        return [self._question(request, request.problem)]

    def _question(self, request: SummaryRequest, problem: str | None) -> ChatRequest:
        messages = json_prompt(request, problem, self._template)
        rolling = request.rolling_tokens * 5 // 4 if request.wants_rolling else 0
        most = JSON_TOKENS + FACTS_TOKENS + request.max_summary_length // CHARACTERS_PER_TOKEN + rolling
        return ChatRequest(messages, self._llm.max_output_tokens or most, schema_of(request.fields))


class PlainQuestions:
    """One question per text, answered in plain text, for models that cannot write JSON.

    Sentences beyond the limit are left out, because such models cannot count them.
    """

    schema: dict[str, Any] | None = None

    def __init__(self, template: Template, llm: Llm) -> None:
        self.version = template.version(PLAIN_FRAME)
        self._template = template
        self._llm = llm
        self._max_tokens = llm.max_output_tokens or PLAIN_TOKENS

    async def ask(self, request: SummaryRequest, asking: Asking) -> Answer:
        ask = partial(self._text, request, asking)
        long = await ask("long_summary", self._long_prompt(request), self._template.max_sentences)
        short = await ask("short_summary", partial(short_prompt, request.episode, long), SHORT_SENTENCES)
        is_continued = request.wants_rolling and request.previous_rolling
        rolling = await ask("rolling_summary", self._rolling_prompt(request)) if is_continued else ""
        answer = Answer(cut_at_word(short, TITLE_CHARACTERS), short, long, rolling)
        return replace(answer, title=await ask_for_title(request, answer, asking, self._llm))

    def longest(self, request: SummaryRequest) -> list[ChatRequest]:
        prompts = [self._long_prompt(request), self._rolling_prompt(request)]
        return [ChatRequest(prompt(request.problem), self._max_tokens) for prompt in prompts]

    async def _text(
        self, request: SummaryRequest, asking: Asking, field: str, prompt: Prompt, max_sentences: int | None = None
    ) -> str:
        limits = Limits(request.rolling_tokens, request.max_summary_length)
        read = partial(read_plain, field=field, limits=limits, max_sentences=max_sentences)
        return await asking.until_usable(
            lambda problem: ChatRequest(prompt(problem), self._max_tokens), read, request.problem
        )

    def _long_prompt(self, request: SummaryRequest) -> Prompt:
        return partial(long_prompt, self._template, request.episode, request.previous_rolling)

    def _rolling_prompt(self, request: SummaryRequest) -> Prompt:
        words = int(min(request.rolling_tokens, self._max_tokens) * WORDS_PER_TOKEN)
        return partial(rolling_prompt, request.episode, request.previous_rolling, words)


Questions = StructuredQuestions | PlainQuestions


async def ask_for_title(request: SummaryRequest, answer: Answer, asking: Asking, llm: Llm) -> str:
    """Ask for a title for the answer's long summary; keep the answer's own title if no usable one comes.

    A missing title is no reason to fall back.
    """

    def question(problem: str | None) -> ChatRequest:
        messages = title_prompt(request.episode, answer.long_summary, problem)
        return ChatRequest(messages, llm.max_output_tokens or PLAIN_TOKENS, model=llm.title_model)

    try:
        return await asking.until_usable(
            question, partial(read_plain, field="title", limits=Limits(request.rolling_tokens))
        )
    except ProviderError as error:
        log.warning("title_fell_back", stage=STAGE, error_type=error.error_type, problem=str(error))
        return answer.title


class Maker(NamedTuple):
    """Model and prompt of a summary, as they are stored with it."""

    model: str
    prompt_version: str | None


class Provider:
    """Writes summaries; may be used for several episodes at a time."""

    async def summarize(self, request: SummaryRequest) -> Summary:
        """Write one summary. Raises: ProviderError."""
        raise NotImplementedError

    async def check(self) -> None:
        """Check that the provider answers. Raises: ProviderError."""

    async def try_out(self) -> None:
        """Check that summaries can be made of its answers. Raises: ProviderError."""

    async def close(self) -> None:
        """Close its connections; the provider cannot be used afterwards."""


class LlmProvider(Provider):
    """Asks an LLM for a summary of what fits into its context."""

    def __init__(self, client: LlmClient, llm: Llm, template: Template = EPISODIC) -> None:
        self.client = client
        self._llm = llm
        self._questions = questions_of(template, llm)

    async def summarize(self, request: SummaryRequest) -> Summary:
        """Ask until the answers are usable. Raises: ProviderError."""
        asking = Asking(self.client, self._llm.retry_budget_seconds, request.deadline, request.calls)
        answer = await self._questions.ask(request, asking)
        # without facts of the LLM, people's own statements are used
        select = partial(first_person, before=request.episode.overlap)
        if answer.facts is not None:
            select = partial(grounded, answer.facts)
        facts = await request.read(lambda: select(request.episode.messages))
        return Summary.of(
            answer,
            facts,
            quality=Quality(source="llm"),
            model=self._llm.model or self._llm.provider,
            prompt_version=self._questions.version,
        )

    def room(self, request: SummaryRequest) -> int:
        """Return how many of our tokens the request may grow by; negative if it is too long."""
        return min(question.room(self._llm.context_tokens) for question in self._questions.longest(request))

    async def check(self) -> None:
        await self.client.check(self._questions.schema)

    async def try_out(self) -> None:
        await self.check()
        await self._questions.ask(a_small_request(), Asking(self.client, retry_seconds=0.0))

    async def close(self) -> None:
        await self.client.close()


class ExtractiveProvider(Provider):
    """Selects sentences of the conversation. It never fails, and the same request always gives the same summary."""

    name = "extractive"

    async def summarize(self, request: SummaryRequest) -> Summary:
        return await request.read(lambda: extracted(request))


def extracted(request: SummaryRequest) -> Summary:
    """Make a summary of the conversation's own sentences.

    Every sentence is quoted, so grounding only checks that each question is followed by its own answer.
    """
    messages = request.episode.messages
    texts = summarize(request.episode, request.previous_rolling, request.rolling_tokens, request.max_summary_length)
    said = [(message.role, message.content) for message in messages]
    paired = share_of_pairs((texts.short_summary, texts.long_summary), said)
    truncated = any(len(message.content) > MAX_MESSAGE_CHARACTERS for message in messages)
    return Summary.of(
        texts,
        first_person(messages, request.episode.overlap),
        quality=Quality(source="fallback", reason=EXTRACTIVE, grounding=round(paired, DECIMALS), truncated=truncated),
        model=ExtractiveProvider.name,
    )


def a_small_request() -> SummaryRequest:
    """Make a request that any model for summaries can answer."""
    now = datetime.now(UTC)
    said: dict[Role, str] = {
        "user": "Please cancel my order 4711.",
        "assistant": "It is cancelled. The refund takes three days.",
    }
    messages = tuple(
        EpisodeMessage(id=role, role=role, content=text, sent_at=now, user_id="check") for role, text in said.items()
    )
    fields: dict[str, Any] = {"messages": messages, "overlap": (), "started_at": now, "ended_at": now, "ordinal": 1}
    episode = EpisodeClosed.model_construct(episode_id="check:1", conversation_id="check", **fields)
    return SummaryRequest(episode, "", CHECK_ROLLING_TOKENS)


def questions_of(template: Template, llm: Llm) -> Questions:
    return (PlainQuestions if template.is_plain else StructuredQuestions)(template, llm)


def maker_of(settings: Settings) -> Maker:
    """Return the model and prompt of summaries made with these settings."""
    llm = settings.llm
    if llm.provider == "extractive":
        return Maker(ExtractiveProvider.name, None)
    return Maker(llm.model or llm.provider, questions_of(template_of(settings.summarizer), llm).version)


def make_provider(settings: Settings, metrics: Metrics, tracer: Tracer, records: Records | None = None) -> Provider:
    """Make the configured provider, which connects with its first question.

    Raises: ConfigurationError if the address, the key or the CA file cannot be used.
    """
    llm = settings.llm
    if llm.provider == "extractive":
        return ExtractiveProvider()
    return LlmProvider(make_client(llm, metrics, tracer, records), llm, template_of(settings.summarizer))


def template_of(summarizer: SummarizerSettings) -> Template:
    """Return the template in the settings, or else the preset's."""
    text = summarizer.template()
    return TEMPLATES[summarizer.preset] if text is None else Template(summarizer.preset, text, custom=True)
