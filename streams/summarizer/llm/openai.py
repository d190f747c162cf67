"""OpenAI's chat completions, as OpenAI, vLLM, llama.cpp, LiteLLM and many others serve them."""

from typing import Any

from afterword.schemas import Usage
from afterword.streams.http import HttpClient, no_answer, reported
from afterword.streams.settings import Llm
from afterword.streams.summarizer.llm.chat import (
    STOP,
    ChatRequest,
    Reply,
    chatml,
    is_complete,
    said_in,
    token_count,
)

OPTIONAL = frozenset({"max_tokens", "max_completion_tokens", "temperature", "response_format"})


class OpenAi:
    """`POST {base_url}/chat/completions`, or `/completions` with one ChatML prompt."""

    name = "openai"
    DEFAULT_URL = "https://api.openai.com/v1"

    def __init__(self, llm: Llm, http: HttpClient) -> None:
        self._llm = llm
        self._http = http
        self._chatml = llm.chat_format == "chatml"
        self._path = "/completions" if self._chatml else "/chat/completions"

    async def chat(self, request: ChatRequest) -> Reply:
        """Ask once. Raises: ProviderError."""
        body = self._body(request)
        return read_openai_reply(await self._http.post(self._path, body), body)

    def optional_fields(self, request: ChatRequest) -> frozenset[str]:
        """Return the optional fields that this question is sent with."""
        return OPTIONAL.intersection(self._body(request))

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        # reasoning models know only the limit's new name, most other servers only the old one
        limit = "max_completion_tokens" if "max_tokens" in request.left_out else "max_tokens"
        options: dict[str, Any] = {"temperature": self._llm.temperature, limit: request.max_tokens}
        if request.schema and not self._chatml:  # /completions has no such field
            options["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "summary", "strict": True, "schema": request.schema},
            }
        accepted = {name: value for name, value in options.items() if name not in request.left_out}
        asked = {"prompt": chatml(request.messages), "stop": STOP} if self._chatml else {"messages": request.messages}
        return {"model": request.model or self._llm.model, **asked, **accepted}


def cached_tokens(usage: dict[str, Any]) -> int:
    """Read the number of the prompt's tokens that came from a cache, as OpenAI or Anthropic names it."""
    details = usage.get("prompt_tokens_details")
    found = details.get("cached_tokens") if isinstance(details, dict) else None
    return token_count(found) or token_count(usage.get("cache_read_input_tokens"))


def read_openai_reply(data: dict[str, Any], body: dict[str, Any]) -> Reply:
    """Read a completion. Raises: ProviderUnavailable if the response is not one, or reports an error."""
    try:
        choice = data["choices"][0]
        message = choice["message"] if "message" in choice else {"content": choice["text"]}
        finished, error, refusal = choice.get("finish_reason"), choice.get("error"), message.get("refusal")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise no_answer("its response was not a chat completion") from None
    if error or finished == "error":
        raise reported(error or finished, body)
    used = data.get("usage")
    usage = used if isinstance(used, dict) else {}
    prompt_tokens = token_count(usage.get("prompt_tokens"))
    refused = bool(refusal) or finished == "content_filter"
    return Reply(
        text="" if refused else said_in(message, is_complete=is_complete(finished)),
        usage=Usage(
            prompt_tokens=prompt_tokens,
            cached_tokens=min(prompt_tokens, cached_tokens(usage)),
            completion_tokens=token_count(usage.get("completion_tokens")),
        ),
        cut_off=not is_complete(finished),
        refused=refused,
    )
