"""Ollama's own chat protocol."""

from typing import Any

from schemas import Usage
from streams.errors import AnswerInvalid
from streams.settings import Llm
from streams.summarizer.prompt import Messages
from streams.summarizer.providers.endpoint import ChatRequest, Reply, count
from streams.summarizer.providers.http import Endpoint
from streams.tokens import count_tokens

DEFAULT_URL = "http://127.0.0.1:11434"
SMALLEST_CONTEXT = 8192
LARGEST_CONTEXT = 131_072
COUNTED_CHARACTERS = 900_000
"""More always needs the largest context, and the tokenizer takes at most a million."""
TOKENIZER_MARGIN = 1.3
"""Local models' tokenizers make up to that many times the tokens of ours."""


class OllamaChat:
    """`POST {base_url}/api/chat`."""

    name = "ollama"

    def __init__(self, llm: Llm) -> None:
        """Raises: ConfigurationError."""
        self._llm = llm
        self._endpoint = Endpoint(llm, DEFAULT_URL)

    async def chat(self, request: ChatRequest) -> Reply:
        """Raises: ProviderError."""
        return read_reply(await self._endpoint.post("/api/chat", self._body(request)))

    async def check(self) -> None:
        """Raises: ProviderError, a ProviderMisconfigured where the model was not pulled."""
        await self._endpoint.post("/api/show", {"model": self._llm.model})

    async def close(self) -> None:
        await self._endpoint.close()

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        options = {
            "temperature": self._llm.temperature,
            "num_predict": request.max_tokens,
            "num_ctx": context_tokens(request.messages, request.max_tokens),
        }
        form = {"format": request.schema} if request.schema else {}
        model = request.model or self._llm.model
        return {"model": model, "messages": request.messages, "stream": False, "options": options, **form}


def context_tokens(messages: Messages, output_tokens: int) -> int:
    """The context to ask for: Ollama's default is small, and it silently drops the beginning of what does not fit.

    Powers of two, because each change makes Ollama load the model again.
    """
    prompt_tokens = sum(count_tokens(message["content"][:COUNTED_CHARACTERS]) for message in messages)
    needed = TOKENIZER_MARGIN * prompt_tokens + output_tokens
    size = SMALLEST_CONTEXT
    while size < needed and size < LARGEST_CONTEXT:
        size *= 2
    return size


def read_reply(data: dict[str, Any]) -> Reply:
    """Raises: AnswerInvalid when the response is no chat response."""
    message = data.get("message")
    if not isinstance(message, dict) or not isinstance(message.get("content"), str):
        raise AnswerInvalid(problem="the response was not a chat response")
    return Reply(
        text=message["content"],
        usage=Usage(
            prompt_tokens=count(data.get("prompt_eval_count")), completion_tokens=count(data.get("eval_count"))
        ),
        cut_off=data.get("done_reason") == "length",
    )
