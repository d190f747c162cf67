"""OpenAI's chat completions, as OpenAI, vLLM, llama.cpp, LiteLLM and many others serve them."""

from collections.abc import Callable, Sequence
from typing import Any

from afterword.schemas import Usage
from afterword.streams.errors import AnswerInvalid, ProviderError, ProviderMisconfigured
from afterword.streams.settings import Llm
from afterword.streams.summarizer.providers.chatml import STOP, chatml
from afterword.streams.summarizer.providers.endpoint import ChatRequest, Reply, count
from afterword.streams.summarizer.providers.http import Endpoint

DEFAULT_URL = "https://api.openai.com/v1"
REPLACEMENTS = {"max_tokens": "max_completion_tokens"}
"""Reasoning models know the new name only, most other servers the old one only."""
CHECKED_TOKENS = 64
OPTIONAL = {"max_tokens", "temperature", "response_format"}


class OpenAiChat:
    """`POST {base_url}/chat/completions`, or `/completions` with one ChatML prompt."""

    name = "openai"

    def __init__(self, llm: Llm, took: Callable[[float], None] = lambda _: None) -> None:
        """Raises: ConfigurationError."""
        self._llm = llm
        self._endpoint = Endpoint(llm, DEFAULT_URL, took)
        self._chatml = llm.chat_format == "chatml"
        self._path = "/completions" if self._chatml else "/chat/completions"
        self._refused: set[str] = set()

    async def chat(self, request: ChatRequest) -> Reply:
        """Fields that the server turns out not to take are left out from then on. Raises: ProviderError."""
        while True:
            body = self._body(request)
            try:
                return read_reply(await self._endpoint.post(self._path, body))
            except ProviderError as error:
                parameter = vars(error).get("refused_parameter")
                if parameter not in OPTIONAL or parameter not in body:
                    raise
                self._refused.add(parameter)

    async def forget(self, requests: Sequence[ChatRequest]) -> None:
        """Nothing is kept here."""

    async def check(self) -> None:
        """Models that the server does not list may still be served under an alias: then one short call tells.

        Raises: ProviderError.
        """
        listed = await self._listed_models()
        for model in {self._llm.model, self._llm.title_model or self._llm.model} - listed:
            await self.chat(ChatRequest([{"role": "user", "content": "Answer with yes."}], CHECKED_TOKENS, model=model))

    async def close(self) -> None:
        await self._endpoint.close()

    async def _listed_models(self) -> set[object]:
        try:
            listed = (await self._endpoint.get("/models")).get("data")
        except (ProviderMisconfigured, AnswerInvalid):  # not every server has the list
            return set()
        return {model.get("id") for model in listed if isinstance(model, dict)} if isinstance(listed, list) else set()

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        options: dict[str, Any] = {"temperature": self._llm.temperature, "max_tokens": request.max_tokens}
        if request.schema and not self._chatml:  # of /completions it is no part
            options["response_format"] = _json_of(request.schema)
        taken = {self._name(option): value for option, value in options.items() if self._name(option)}
        asked = {"prompt": chatml(request.messages), "stop": STOP} if self._chatml else {"messages": request.messages}
        return {"model": request.model or self._llm.model, **asked, **taken}

    def _name(self, option: str) -> str:
        return option if option not in self._refused else REPLACEMENTS.get(option, "")


def _json_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "summary", "strict": True, "schema": schema}}


def read_reply(data: dict[str, Any]) -> Reply:
    """Raises: AnswerInvalid when the response is no completion."""
    try:
        choice = data["choices"][0]
        message = choice["message"] if "message" in choice else {"content": choice["text"]}
        text, finished, refusal = message.get("content"), choice.get("finish_reason"), message.get("refusal")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise AnswerInvalid(problem="the response was not a chat completion") from None
    used = data.get("usage")
    usage = used if isinstance(used, dict) else {}
    return Reply(
        text=text if isinstance(text, str) else "",
        usage=Usage(
            prompt_tokens=count(usage.get("prompt_tokens")), completion_tokens=count(usage.get("completion_tokens"))
        ),
        cut_off=finished == "length",
        refused=bool(refusal) or finished == "content_filter",
    )
