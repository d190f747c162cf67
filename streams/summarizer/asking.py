"""Questions for the texts of one summary: all as one JSON object, or each as plain text."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import structlog

from afterword.streams.errors import ProviderError
from afterword.streams.settings import Llm
from afterword.streams.summarizer.answer import TITLE_CHARACTERS, Answer, Limits, read_answer, read_plain
from afterword.streams.summarizer.extractive import condense
from afterword.streams.summarizer.llm.chat import ChatRequest
from afterword.streams.summarizer.llm.client import STAGE, Asking
from afterword.streams.summarizer.prompt import FIELDS, Messages, Template, build_prompt, plain, schema_of, structured
from afterword.streams.summarizer.prompt.structured import WORDS_PER_TOKEN
from afterword.streams.summarizer.summary import SummaryRequest
from afterword.streams.text.sentences import cut_at_word

JSON_TOKENS = 250
"""Tokens of a JSON answer besides its long texts: title, short summary, field names, quotation marks."""
FACTS_TOKENS = 400
"""Tokens of its facts, about as many as it may have."""
CHARACTERS_PER_TOKEN = 4
"""The average in English. Other languages use the margin of the rolling summary, whose words are limited more
tightly."""
PLAIN_TOKENS = 500
"""Most tokens of a plain-text answer, unless the settings say otherwise."""
SHORT_SENTENCES = 2

Prompt = Callable[[str | None], Messages]
"""Makes a prompt, given what was wrong with the previous answer."""

log = structlog.get_logger()


class Questions(Protocol):
    """A way to ask for the texts of a summary."""

    version: str
    """Version of everything that is asked."""
    schema: dict[str, Any] | None
    """JSON schema of answers with all texts; None if they are plain text."""

    async def ask(self, request: SummaryRequest, asking: Asking) -> Answer:
        """Ask for all texts. Raises: ProviderError."""
        ...

    def longest(self, request: SummaryRequest) -> list[ChatRequest]:
        """Return the questions that contain the episode's messages."""
        ...


class StructuredQuestions:
    """One question, answered as a JSON object, and another for the title if there is a model for titles."""

    schema: dict[str, Any] | None = schema_of(FIELDS)

    def __init__(self, template: Template, llm: Llm) -> None:
        self.version = template.version(structured.FRAME + (plain.FRAME if llm.title_model else ""))
        self._template = template
        self._llm = llm
        self._measured: tuple[SummaryRequest, ChatRequest] | None = None
        """The question that was measured last, which is probably the next one to be asked."""

    async def ask(self, request: SummaryRequest, asking: Asking) -> Answer:
        fields = _fields(request)
        limits = Limits(request.rolling_tokens, request.max_summary_length)
        read = partial(read_answer, limits=limits, fields=fields)
        answer = await asking.until_usable(partial(self._question, request, fields), read, request.problem)
        if not request.wants_rolling:
            answer = replace(answer, rolling_summary=condense(request.previous_rolling, request.rolling_tokens))
        if not self._llm.title_model:
            return answer
        return replace(answer, title=await ask_for_title(request, answer, asking, self._llm))

    def longest(self, request: SummaryRequest) -> list[ChatRequest]:
        question = self._question(request, _fields(request), request.problem)
        self._measured = request, question
        return [question]

    def _question(self, request: SummaryRequest, fields: tuple[str, ...], problem: str | None) -> ChatRequest:
        measured, self._measured = self._measured, None
        if measured and measured[0] is request and problem == request.problem:
            return measured[1]
        messages = build_prompt(
            request.episode,
            request.previous_rolling,
            request.rolling_tokens,
            problem,
            template=self._template,
            fields=fields,
            max_summary_length=request.max_summary_length,
        )
        return ChatRequest(messages, self._llm.max_output_tokens or json_tokens(request), schema_of(fields))


class PlainQuestions:
    """One question per text, answered in plain text, for models that cannot write JSON.

    Sentences beyond the limit are left out, because such models cannot count them.
    """

    schema: dict[str, Any] | None = None

    def __init__(self, template: Template, llm: Llm) -> None:
        self.version = template.version(plain.FRAME)
        self._template = template
        self._llm = llm
        self._max_tokens = llm.max_output_tokens or PLAIN_TOKENS

    async def ask(self, request: SummaryRequest, asking: Asking) -> Answer:
        ask = partial(self._text, request, asking)
        long = await ask("long_summary", self._long_prompt(request), self._template.max_sentences)
        short = await ask("short_summary", partial(plain.short_prompt, request.episode, long), SHORT_SENTENCES)
        if request.wants_rolling and request.previous_rolling:
            rolling = await ask("rolling_summary", self._rolling_prompt(request))
        else:
            rolling = condense(request.previous_rolling or long, request.rolling_tokens)
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
        return partial(plain.long_prompt, self._template, request.episode, request.previous_rolling)

    def _rolling_prompt(self, request: SummaryRequest) -> Prompt:
        words = int(min(request.rolling_tokens, self._max_tokens) * WORDS_PER_TOKEN)
        return partial(plain.rolling_prompt, request.episode, request.previous_rolling, words)


async def ask_for_title(request: SummaryRequest, answer: Answer, asking: Asking, llm: Llm) -> str:
    """Ask for a title for the answer's long summary; keep the answer's own title if no usable one comes.

    A missing title is no reason to fall back.
    """

    def question(problem: str | None) -> ChatRequest:
        messages = plain.title_prompt(request.episode, answer.long_summary, problem)
        return ChatRequest(messages, llm.max_output_tokens or PLAIN_TOKENS, model=llm.title_model)

    try:
        return await asking.until_usable(
            question, partial(read_plain, field="title", limits=Limits(request.rolling_tokens))
        )
    except ProviderError as error:
        log.warning("title_fell_back", stage=STAGE, error_type=error.error_type, problem=str(error))
        return answer.title


def json_tokens(request: SummaryRequest) -> int:
    """Return the number of tokens that a JSON answer may need."""
    rolling = request.rolling_tokens * 5 // 4 if request.wants_rolling else 0
    return JSON_TOKENS + FACTS_TOKENS + request.max_summary_length // CHARACTERS_PER_TOKEN + rolling


def _fields(request: SummaryRequest) -> tuple[str, ...]:
    return FIELDS if request.wants_rolling else structured.WITHOUT_ROLLING
