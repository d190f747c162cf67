"""The protocols of LLM servers: OpenAI's chat completions, which most servers have, and Ollama's own."""

from typing import Any

from afterword.schemas import Usage
from afterword.streams.http import HttpClient, no_answer, reported
from afterword.streams.settings import Llm
from afterword.streams.summarizer.llm.chat import (
    ChatRequest,
    Reply,
    is_complete,
    said_in,
    token_count,
)
from afterword.streams.text.tokens import TOKENIZER_MARGIN

OPTIONAL = frozenset({"max_tokens", "max_completion_tokens", "temperature", "response_format"})
SMALLEST_CONTEXT = 8192


class OpenAi:
    """`POST {base_url}/chat/completions`."""

    name = "openai"
    DEFAULT_URL = "https://api.openai.com/v1"

    def __init__(self, llm: Llm, http: HttpClient) -> None:
        self._llm = llm
        self._http = http

    async def chat(self, request: ChatRequest) -> Reply:
        """Ask once. Raises: ProviderError."""
        body = self._body(request)
        return read_openai_reply(await self._http.post("/chat/completions", body), body)

    def optional_fields(self, request: ChatRequest) -> frozenset[str]:
        """Return the optional fields that this question is sent with."""
        return OPTIONAL.intersection(self._body(request))

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        # reasoning models know only the limit's new name, most other servers only the old one
        limit = "max_completion_tokens" if "max_tokens" in request.left_out else "max_tokens"
        options: dict[str, Any] = {"temperature": self._llm.temperature, limit: request.max_tokens}
        if request.schema:
            options["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "summary", "strict": True, "schema": request.schema},
            }
        accepted = {name: value for name, value in options.items() if name not in request.left_out}
        return {"model": request.model or self._llm.model, "messages": request.messages, **accepted}


def read_openai_reply(data: dict[str, Any], body: dict[str, Any]) -> Reply:
    """Read a completion. Raises: ProviderUnavailable if the response is not one, or reports an error."""
    try:
        choice = data["choices"][0]
        message = choice["message"]
        finished, error, refusal = choice.get("finish_reason"), choice.get("error"), message.get("refusal")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise no_answer("its response was not a chat completion") from None
    if error or finished == "error":
        raise reported(error or finished, body)
    used = data.get("usage")
    usage = used if isinstance(used, dict) else {}
    prompt_tokens = token_count(usage.get("prompt_tokens"))
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    # the second name is Anthropic's
    cached_tokens = token_count(cached) or token_count(usage.get("cache_read_input_tokens"))
    refused = bool(refusal) or finished == "content_filter"
    return Reply(
        text="" if refused else said_in(message, is_complete=is_complete(finished)),
        usage=Usage(
            prompt_tokens=prompt_tokens,
            cached_tokens=min(prompt_tokens, cached_tokens),
            completion_tokens=token_count(usage.get("completion_tokens")),
        ),
        cut_off=not is_complete(finished),
        refused=refused,
    )


class Ollama:
    """`POST {base_url}/api/chat`."""

    name = "ollama"
    DEFAULT_URL = "http://127.0.0.1:11434"

    def __init__(self, llm: Llm, http: HttpClient) -> None:
        self._llm = llm
        self._http = http

    async def chat(self, request: ChatRequest) -> Reply:
        """Ask once. Raises: ProviderError."""
        return read_ollama_reply(await self._http.post("/api/chat", self._body(request)))

    def optional_fields(self, request: ChatRequest) -> frozenset[str]:
        """Return the optional fields that this question is sent with."""
        return frozenset({"format"} if request.schema else ()).difference(request.left_out)

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        options: dict[str, Any] = {
            "temperature": self._llm.temperature,
            "num_predict": request.max_tokens,
            "num_ctx": context_tokens(request, self._llm.context_tokens),
        }
        body = {"model": request.model or self._llm.model, "stream": False, "options": options}
        form = dict.fromkeys(self.optional_fields(request), request.schema)
        return {**body, "messages": request.messages, **form}


def context_tokens(request: ChatRequest, largest: int) -> int:
    """Choose the context size to request: Ollama's default is small, and it silently drops the start of longer prompts.

    Sizes are powers of two up to the model's `largest`, because each change makes Ollama load the model again.
    """
    needed = TOKENIZER_MARGIN * request.prompt_tokens + request.max_tokens
    size = SMALLEST_CONTEXT
    while size < needed and size < largest:
        size *= 2
    return min(size, largest)


def read_ollama_reply(data: dict[str, Any]) -> Reply:
    """Read a chat response. Raises: ProviderUnavailable if the response is not one."""
    message = data.get("message")
    if not isinstance(message, dict):
        raise no_answer("its response was not a chat response")
    complete = is_complete(data.get("done_reason")) and data.get("done") is not False
    return Reply(
        text=said_in(message, is_complete=complete),
        usage=Usage(
            prompt_tokens=token_count(data.get("prompt_eval_count")),
            completion_tokens=token_count(data.get("eval_count")),
        ),
        cut_off=not complete,
    )
