"""A summary by one question, answered as a JSON object; its title by another model, where there is one for titles."""

from dataclasses import replace
from functools import partial

from afterword.streams.settings import Llm
from afterword.streams.summarizer.answer import Answer, Limits, read_answer
from afterword.streams.summarizer.extractive import condense
from afterword.streams.summarizer.prompt import FIELDS, Template, build_prompt, plain, schema_of, structured
from afterword.streams.summarizer.providers.asking import Asking
from afterword.streams.summarizer.providers.base import SummaryRequest
from afterword.streams.summarizer.providers.endpoint import ChatRequest
from afterword.streams.summarizer.providers.titles import ask_for_title

TOKENS_AROUND = 250
"""Of an answer: title, short summary, names of the fields, quotation marks."""
CHARACTERS_PER_TOKEN = 4
"""In English; the rest is in the rolling summary's margin, whose words are bounded more tightly than its tokens."""


class Structured:
    """A Method."""

    def __init__(self, template: Template, llm: Llm) -> None:
        self.version = template.version(structured.FRAME + (plain.FRAME if llm.title_model else ""))
        self._template = template
        self._llm = llm

    async def answer(self, request: SummaryRequest, asking: Asking) -> Answer:
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
        return [self._question(request, _fields(request), request.problem)]

    def _question(self, request: SummaryRequest, fields: tuple[str, ...], problem: str | None) -> ChatRequest:
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


def _fields(request: SummaryRequest) -> tuple[str, ...]:
    return FIELDS if request.wants_rolling else structured.WITHOUT_ROLLING


def json_tokens(request: SummaryRequest) -> int:
    """What the answer may need."""
    rolling = request.rolling_tokens * 5 // 4 if request.wants_rolling else 0
    return TOKENS_AROUND + request.max_summary_length // CHARACTERS_PER_TOKEN + rolling
