"""The questions that one summary takes."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from afterword.schemas import Usage
from afterword.streams.errors import AnswerInvalid
from afterword.streams.settings import Llm
from afterword.streams.summarizer.providers.endpoint import ChatEndpoint, ChatRequest, Reply, total
from afterword.streams.summarizer.providers.retrying import Budget, retrying

T = TypeVar("T")

STAGE = "summarize"
UNUSABLE = "answer_invalid"


class Asking:
    """Each question is put until its answer can be used, each time saying what was wrong; all in one time budget."""

    def __init__(
        self,
        endpoint: ChatEndpoint,
        llm: Llm,
        *,
        fresh: bool = False,
        retried: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`fresh`: what was answered before will not do. `retried` is told why a question is put again."""
        self.used = Usage()
        """Of all calls so far."""
        self._endpoint = endpoint
        self._llm = llm
        self._fresh = fresh
        self._retried = retried
        self._budget = Budget(llm.retry_budget_seconds)

    async def until_usable(
        self, question: Callable[[str | None], ChatRequest], read: Callable[[str], T], problem: str | None = None
    ) -> T:
        """What `read` made of an answer. `question` is given what was wrong with the answer before.

        Raises: ProviderError; an AnswerInvalid carries the `usage` of all calls that were made.
        """
        asked: list[ChatRequest] = []
        for attempt in range(self._llm.json_attempts):
            if attempt:
                self._retried(UNUSABLE)
            request = question(problem)
            if self._fresh or request in asked:  # the same thing went wrong again
                await self._endpoint.forget([request])
            asked.append(request)
            call = partial(self._endpoint.chat, request)
            try:
                reply = await retrying(STAGE, call, self._llm.attempts, self._budget, self._retried)
                self.used = total(self.used, reply.usage)
                return read(text_of(reply))
            except AnswerInvalid as error:
                problem = str(vars(error)["problem"])
        await self._endpoint.forget(asked)  # a later revision may get better ones
        raise AnswerInvalid(problem=problem, usage=self.used)


def text_of(reply: Reply) -> str:
    """Raises: AnswerInvalid."""
    if reply.refused:
        raise AnswerInvalid(problem="it was a refusal")
    if reply.cut_off:
        raise AnswerInvalid(problem="it was cut off at the token limit: be shorter")
    return reply.text
