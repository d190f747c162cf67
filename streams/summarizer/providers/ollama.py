"""Ollama's own protocol."""

from collections.abc import Callable, Sequence
from typing import Any

from afterword.schemas import Usage
from afterword.streams.errors import AnswerInvalid
from afterword.streams.settings import Llm
from afterword.streams.summarizer.prompt import Messages
from afterword.streams.summarizer.providers.chatml import STOP, chatml
from afterword.streams.summarizer.providers.endpoint import ChatRequest, Reply, count
from afterword.streams.summarizer.providers.http import Endpoint
from afterword.streams.tokens import TOKENIZER_MARGIN, count_tokens

DEFAULT_URL = "http://127.0.0.1:11434"
SMALLEST_CONTEXT = 8192


class OllamaChat:
    """`POST {base_url}/api/chat`, or `/api/generate` with one raw ChatML prompt."""

    name = "ollama"

    def __init__(self, llm: Llm, took: Callable[[float], None] = lambda _: None) -> None:
        """Raises: ConfigurationError."""
        self._llm = llm
        self._endpoint = Endpoint(llm, DEFAULT_URL, took)
        self._chatml = llm.chat_format == "chatml"
        self._path = "/api/generate" if self._chatml else "/api/chat"

    async def chat(self, request: ChatRequest) -> Reply:
        """Raises: ProviderError."""
        return read_reply(await self._endpoint.post(self._path, self._body(request)))

    async def forget(self, requests: Sequence[ChatRequest]) -> None:
        """Nothing is kept here."""

    async def check(self) -> None:
        """Raises: ProviderError, a ProviderMisconfigured where the model was not pulled."""
        for model in {self._llm.model, self._llm.title_model or self._llm.model}:
            await self._endpoint.post("/api/show", {"model": model})

    async def close(self) -> None:
        await self._endpoint.close()

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        options: dict[str, Any] = {
            "temperature": self._llm.temperature,
            "num_predict": request.max_tokens,
            "num_ctx": context_tokens(request.messages, request.max_tokens, self._llm.context_tokens),
        }
        body = {"model": request.model or self._llm.model, "stream": False, "options": options}
        form = {"format": request.schema} if request.schema else {}
        if self._chatml:
            options["stop"] = STOP
            return {**body, "prompt": chatml(request.messages), "raw": True, **form}
        return {**body, "messages": request.messages, **form}


def context_tokens(messages: Messages, output_tokens: int, largest: int) -> int:
    """The context to ask for: Ollama's default is small, and it silently drops the beginning of what does not fit.

    Powers of two up to the model's `largest`, because each change makes Ollama load the model again.
    """
    prompt_tokens = sum(count_tokens(message["content"]) for message in messages)
    needed = TOKENIZER_MARGIN * prompt_tokens + output_tokens
    size = SMALLEST_CONTEXT
    while size < needed and size < largest:
        size *= 2
    return min(size, largest)


def read_reply(data: dict[str, Any]) -> Reply:
    """Raises: AnswerInvalid when the response is no chat response."""
    message = data.get("message", {"content": data.get("response")})
    if not isinstance(message, dict) or not isinstance(message.get("content"), str):
        raise AnswerInvalid(problem="the response was not a chat response")
    return Reply(
        text=message["content"],
        usage=Usage(
            prompt_tokens=count(data.get("prompt_eval_count")), completion_tokens=count(data.get("eval_count"))
        ),
        cut_off=data.get("done_reason") == "length",
    )
