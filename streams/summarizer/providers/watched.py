"""Tells an observer of every question and its end."""

from collections.abc import Sequence

from afterword.streams.summarizer.observer import Observer
from afterword.streams.summarizer.providers.endpoint import ChatEndpoint, ChatRequest, Reply


class Watched:
    """A ChatEndpoint, as the one within."""

    def __init__(self, endpoint: ChatEndpoint, observer: Observer, model: str | None) -> None:
        """`model`: of requests that name none."""
        self.name = endpoint.name
        self._endpoint = endpoint
        self._observer = observer
        self._model = model

    async def chat(self, request: ChatRequest) -> Reply:
        """Raises: ProviderError."""
        with self._observer.question(self.name, request.model or self._model) as answered:
            reply = await self._endpoint.chat(request)
            answered(reply)
        return reply

    async def forget(self, requests: Sequence[ChatRequest]) -> None:
        await self._endpoint.forget(requests)

    async def check(self) -> None:
        await self._endpoint.check()

    async def close(self) -> None:
        await self._endpoint.close()
