"""Reranking by the LLM that writes the summaries: it is asked for the order of the best ten."""

import re
from collections.abc import Sequence

from afterword.recalling.third_stage import RankedDocument, RankingQuestion
from afterword.streams.errors import AnswerInvalid, ProviderError
from afterword.streams.settings import Llm, RerankerSettings
from afterword.streams.summarizer.answer import without_thinking
from afterword.streams.summarizer.budget import TokenBudget
from afterword.streams.summarizer.llm.chat import ChatRequest
from afterword.streams.summarizer.llm.client import Asking, LlmClient
from afterword.streams.summarizer.llm.retrying import RetryBudget
from afterword.streams.summarizer.prompt.fences import FENCE_RULE, Messages, cleaned, fenced_prompt, indented

LLM_CANDIDATES = 10
ANSWER_TOKENS = 200
"""Tokens of an answer, unless `llm.max_output_tokens` says more: ten numbers, and a few words of a chatty model."""
LEAST_CHARACTERS = 100
"""Characters of a memory that are shown even where the model's context is too small for all."""

_SYSTEM = f"""\
You rank memories of a chat assistant by how well each answers a question. Answer with one JSON list of their numbers, \
all of them, the best first, such as [2, 1, 3], and with nothing else. Of memories that contradict each other, the \
newer one is better.
{FENCE_RULE}"""
_USER = """\
Question:
{question}

Memories, each as [number] date: text, its further lines indented:
{memories}

Answer with the JSON list of all {count} numbers only."""
_LIST = re.compile(r"\[[^\[\]]*\]")
_NUMBER = re.compile(r"(?<![\d.-])\d{1,3}(?!\d)", re.ASCII)


class LlmReranker:
    """Asks the LLM of the summaries; tokens count in its metrics, and in the hour's budget."""

    def __init__(self, client: LlmClient, settings: RerankerSettings, budget: TokenBudget | None) -> None:
        """`budget`: None for no limit."""
        self.candidates = min(LLM_CANDIDATES, settings.candidates)
        self.timeout_seconds = settings.llm_timeout_seconds
        self._client = client
        self._budget = budget

    async def order(self, question: RankingQuestion) -> list[int]:
        """Raises: ProviderError."""
        request, asking = ranking_request(question, self._client.llm), Asking(self._client, RetryBudget(0))
        count = len(question.documents)
        if self._budget is None:
            return await self._ask(request, count, asking)
        taken = await self._budget.take_tokens(request.prompt_tokens + request.max_tokens, question.tenant_id)
        try:
            order = await self._ask(request, count, asking)
        except ProviderError:
            await self._budget.settle(taken, asking.used)
            raise
        await self._budget.settle(taken, asking.used)
        return order

    async def _ask(self, request: ChatRequest, count: int, asking: Asking) -> list[int]:
        return await self._client.answer(request, lambda text: numbered_places(text, count), asking)

    async def check(self) -> str:
        """Raises: ProviderError."""
        await self._client.check()
        return f"llm {self._client.name} {self._client.llm.model}"

    async def close(self) -> None:
        await self._client.close()


def ranking_request(question: RankingQuestion, llm: Llm) -> ChatRequest:
    """Make the request, with documents cut until the model's context holds them, or to LEAST_CHARACTERS."""
    characters = max((len(document.text) for document in question.documents), default=0)
    while True:
        prompt = ranking_prompt(question.query, question.documents, characters)
        request = ChatRequest(prompt, llm.max_output_tokens or ANSWER_TOKENS)
        if characters <= LEAST_CHARACTERS or request.room(llm.context_tokens) >= 0:
            return request
        characters //= 2


def ranking_prompt(query: str, documents: Sequence[RankedDocument], characters: int) -> Messages:
    """Ask for the order of the documents, so many characters of each. Texts are fenced, as in a summary's prompt."""
    lines = [
        f"[{number}] {document.ended_at:%Y-%m-%d}: {indented(cleaned(document.text[:characters]))}"
        for number, document in enumerate(documents, 1)
    ]
    data = {"question": indented(cleaned(query)), "memories": "\n".join(lines)}
    return fenced_prompt(_SYSTEM, _USER, data, {"count": len(documents)})


def numbered_places(text: str, count: int) -> list[int]:
    """Read places from an answer with numbers from 1 to `count`, each once; others are ignored. Linear in the text.

    A list in brackets is read, of several the last of the longest; else all numbers that are in brackets, as in
    "[2] > [1]"; else all numbers of the text. Raises: AnswerInvalid for none.
    """
    text = without_thinking(text)
    lists = [found for each in _LIST.findall(text) if (found := _places(each, count))]
    longest = max((len(found) for found in lists), default=0)
    if longest > 1:
        return next(found for found in reversed(lists) if len(found) == longest)
    order = list(dict.fromkeys(place for found in lists for place in found)) or _places(text, count)
    if not order:
        raise AnswerInvalid(problem="it named no memory")
    return order


def _places(text: str, count: int) -> list[int]:
    numbers = (int(found) for found in _NUMBER.findall(text))
    return list(dict.fromkeys(number - 1 for number in numbers if 1 <= number <= count))
