"""A summary by one question for each of its texts, answered in plain text: for models that cannot write JSON."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from afterword.streams.settings import Llm
from afterword.streams.summarizer.answer import TITLE_CHARACTERS, Answer, Limits
from afterword.streams.summarizer.extractive import condense
from afterword.streams.summarizer.plain_answer import read_plain
from afterword.streams.summarizer.prompt import Messages, Template, plain
from afterword.streams.summarizer.prompt.structured import WORDS_PER_TOKEN
from afterword.streams.summarizer.providers.asking import Asking
from afterword.streams.summarizer.providers.base import SummaryRequest
from afterword.streams.summarizer.providers.endpoint import ChatRequest
from afterword.streams.summarizer.providers.titles import PLAIN_TOKENS, ask_for_title
from afterword.streams.summarizer.sentences import cut_at_word

SHORT_SENTENCES = 2

Prompt = Callable[[str | None], Messages]
"""Of what was wrong with the answer before."""


class Plain:
    """A Method. What a model that cannot count its sentences writes too much is left out."""

    def __init__(self, template: Template, llm: Llm) -> None:
        self.version = template.version(plain.FRAME)
        self._template = template
        self._llm = llm
        self._max_tokens = llm.max_output_tokens or PLAIN_TOKENS

    async def answer(self, request: SummaryRequest, asking: Asking) -> Answer:
        ask = Questions(request, asking, self._max_tokens)
        long = await ask("long_summary", self._long_prompt(request), self._template.max_sentences)
        short = await ask("short_summary", partial(plain.short_prompt, request.episode, long), SHORT_SENTENCES)
        answer = Answer(
            title=cut_at_word(short, TITLE_CHARACTERS),
            short_summary=short,
            long_summary=long,
            rolling_summary=await self._rolling(request, long, ask),
        )
        return replace(answer, title=await ask_for_title(request, answer, asking, self._llm))

    def longest(self, request: SummaryRequest) -> list[ChatRequest]:
        prompts = [self._long_prompt(request), self._rolling_prompt(request)]
        return [ChatRequest(prompt(request.problem), self._max_tokens) for prompt in prompts]

    async def _rolling(self, request: SummaryRequest, long: str, ask: "Questions") -> str:
        if request.wants_rolling and request.previous_rolling:
            return await ask("rolling_summary", self._rolling_prompt(request))
        return condense(request.previous_rolling or long, request.rolling_tokens)

    def _long_prompt(self, request: SummaryRequest) -> Prompt:
        return partial(plain.long_prompt, self._template, request.episode, request.previous_rolling)

    def _rolling_prompt(self, request: SummaryRequest) -> Prompt:
        words = int(min(request.rolling_tokens, self._max_tokens) * WORDS_PER_TOKEN)
        return partial(plain.rolling_prompt, request.episode, request.previous_rolling, words)


class Questions:
    """For the texts of one summary."""

    def __init__(self, request: SummaryRequest, asking: Asking, max_tokens: int) -> None:
        self._limits = Limits(request.rolling_tokens, request.max_summary_length)
        self._problem = request.problem
        self._asking = asking
        self._max_tokens = max_tokens

    async def __call__(self, field: str, prompt: Prompt, max_sentences: int | None = None) -> str:
        """Raises: ProviderError."""
        read = partial(read_plain, field=field, limits=self._limits, max_sentences=max_sentences)
        return await self._asking.until_usable(
            lambda problem: ChatRequest(prompt(problem), self._max_tokens), read, self._problem
        )
