"""A provider with a small context, which fails on a longer prompt and remembers everything that it has read."""

import asyncio

from afterword.schemas import EpisodeMessage, Quality, Usage
from afterword.streams.errors import ProviderError
from afterword.streams.summarizer.prompt import json_prompt
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from afterword_text.extractive import condense
from afterword_text.tokens import count_tokens
from tests.samples import some_calls

USAGE = Usage(prompt_tokens=10, completion_tokens=1)


class Reader:
    """A provider with room for a few real prompts."""

    name = "reader"

    def __init__(self, context_tokens: int, failing: tuple[int, ...] = (), message_tokens: int = 0) -> None:
        """`failing`: numbers of calls; `message_tokens`: what each message takes beside what one can see of it."""
        self.context_tokens = context_tokens
        self.message_tokens = message_tokens
        self.hangs = False
        """Calls that do not fail do not end either."""
        self.requests: list[SummaryRequest] = []
        self.most_running = 0
        self.called = asyncio.Event()
        self._failing = failing
        self.running = 0

    def room(self, request: SummaryRequest) -> int:
        hidden = self.message_tokens * len(request.episode.messages)
        return self.context_tokens - hidden - sum(count_tokens(message["content"]) for message in _prompt(request))

    async def summarize(self, request: SummaryRequest) -> Summary:
        self.requests.append(request)
        self.called.set()
        number = len(self.requests)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(0)
            if self.hangs and number not in self._failing:
                await asyncio.Event().wait()
            return self._summary(request, number)
        finally:
            self.running -= 1

    async def check(self) -> None: ...

    async def close(self) -> None: ...

    @property
    def read(self) -> list[EpisodeMessage]:
        """Messages of episodes, in the order in which they were asked about; what stands for parts is left out."""
        messages = (message for request in self.requests for message in request.episode.messages)
        return [message for message in messages if not message.id.startswith("part-")]

    def _summary(self, request: SummaryRequest, number: int) -> Summary:
        request.calls.extend(some_calls(USAGE))
        if self.room(request) < 0:
            raise ProviderError(problem="context_length_exceeded")
        if number in self._failing:
            raise ProviderError(problem="it failed")
        told = f"Told by call {number}: {' '.join(m.content[:250] for m in request.episode.messages)}"[:1000]
        rolling = condense(f"{request.previous_rolling}\n{told}", request.rolling_tokens)
        return Summary(
            title=f"Call {number}",
            short_summary=told[:400],
            long_summary=told,
            rolling_summary=rolling if request.wants_rolling else request.previous_rolling,
            quality=Quality(source="llm"),
            model=self.name,
        )


def _prompt(request: SummaryRequest) -> list[dict[str, str]]:
    return json_prompt(request, request.problem)
