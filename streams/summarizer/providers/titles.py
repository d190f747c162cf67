"""A title by a question of its own, from the summary: a small model can do that."""

from functools import partial

import structlog

from afterword.streams.errors import ProviderError, ProviderMisconfigured
from afterword.streams.settings import Llm
from afterword.streams.summarizer.answer import Answer, Limits
from afterword.streams.summarizer.plain_answer import read_plain
from afterword.streams.summarizer.prompt import plain
from afterword.streams.summarizer.providers.asking import STAGE, Asking
from afterword.streams.summarizer.providers.base import SummaryRequest
from afterword.streams.summarizer.providers.endpoint import ChatRequest

PLAIN_TOKENS = 500
"""Of a plain-text answer, unless the settings say otherwise."""

log = structlog.get_logger()


async def ask_for_title(request: SummaryRequest, answer: Answer, asking: Asking, llm: Llm) -> str:
    """A title for the answer's long summary; the answer's own one where none can be had: it is no reason to fall back.

    Raises: ProviderMisconfigured.
    """

    def question(problem: str | None) -> ChatRequest:
        messages = plain.title_prompt(request.episode, answer.long_summary, problem)
        return ChatRequest(messages, llm.max_output_tokens or PLAIN_TOKENS, model=llm.title_model)

    try:
        return await asking.until_usable(
            question, partial(read_plain, field="title", limits=Limits(request.rolling_tokens))
        )
    except ProviderMisconfigured:
        raise
    except ProviderError as error:
        log.warning("title falls back", stage=STAGE, error_type=error.error_type, problem=str(error))
        return answer.title
