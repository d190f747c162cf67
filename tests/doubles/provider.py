"""A provider that plays a script, for tests."""

import asyncio
from collections import deque
from collections.abc import Iterable

from afterword.schemas import Quality, Usage
from afterword.streams.errors import ProviderError
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from afterword_text.extractive import condense
from tests.samples import some_calls


class ScriptedProvider:
    """Returns or raises the next step of its script. After the last one, summaries only contain ids."""

    name = "scripted"

    def __init__(self, script: Iterable[Summary | ProviderError] = (), delay_seconds: float = 0.0) -> None:
        self.script = deque(script)
        self.delay_seconds = delay_seconds
        self.repeats = False
        """True if a summary repeats everything that was said."""
        self.outage: ProviderError | None = None
        """While this is set, every call raises it."""
        self.requests: list[SummaryRequest] = []
        self.running = 0
        self.most_running = 0

    async def summarize(self, request: SummaryRequest) -> Summary:
        """Summarize. Raises: the next step of the script if it is a ProviderError."""
        self.requests.append(request)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self.delay_seconds)
            return self._next(request)
        finally:
            self.running -= 1

    async def check(self) -> None:
        """Raises: the outage."""
        if self.outage is not None:
            raise self.outage

    async def close(self) -> None:
        """Do nothing: it holds no connection."""

    def _next(self, request: SummaryRequest) -> Summary:
        step = self.outage or (self.script.popleft() if self.script else self._answer(request))
        request.calls.extend(getattr(step, "calls", ()))
        if isinstance(step, ProviderError):
            raise step
        return step

    def _answer(self, request: SummaryRequest) -> Summary:
        episode = request.episode
        said = " ".join(message.content for message in episode.messages) if self.repeats else ""
        told = f"Episode {episode.ordinal} has {len(episode.messages)} messages.{said}"
        return Summary(
            title=f"Episode {episode.ordinal}",
            short_summary=told,
            long_summary=f"{told} It ran from {episode.started_at:%H:%M} to {episode.ended_at:%H:%M}.",
            rolling_summary=condense(f"{request.previous_rolling}\n{told}", request.rolling_tokens),
            quality=Quality(source="llm"),
            model=self.name,
            calls=some_calls(Usage(prompt_tokens=len(episode.messages), completion_tokens=1)),
        )
