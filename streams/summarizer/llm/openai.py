"""OpenAI's chat completions, as OpenAI, vLLM, llama.cpp, LiteLLM and many others serve them."""

from typing import Any

from afterword.schemas import Usage
from afterword.streams.errors import AnswerInvalid, ProviderError, ProviderMisconfigured
from afterword.streams.settings import Llm
from afterword.streams.summarizer.llm.chat import STOP, ChatRequest, Reply, chatml, token_count
from afterword.streams.summarizer.llm.http import HttpClient

REPLACEMENTS = {"max_tokens": "max_completion_tokens"}
"""Reasoning models know only the new name, most other servers only the old one."""
CHECKED_TOKENS = 64
OPTIONAL = {"max_tokens", "temperature", "response_format"}


class OpenAi:
    """`POST {base_url}/chat/completions`, or `/completions` with one ChatML prompt."""

    name = "openai"
    DEFAULT_URL = "https://api.openai.com/v1"

    def __init__(self, llm: Llm, http: HttpClient) -> None:
        self._llm = llm
        self._http = http
        self._chatml = llm.chat_format == "chatml"
        self._path = "/completions" if self._chatml else "/chat/completions"
        self._rejected: set[str] = set()

    async def chat(self, request: ChatRequest) -> Reply:
        """Ask, and leave out, from then on, each field that the server turns out to reject. Raises: ProviderError."""
        while True:
            body = self._body(request)
            try:
                return read_openai_reply(await self._http.post(self._path, body))
            except ProviderError as error:
                parameter = error.refused_parameter
                if parameter not in OPTIONAL or parameter not in body:
                    raise
                self._rejected.add(parameter)

    async def check(self) -> None:
        """Look for the models in the server's list, and ask one that is not listed, perhaps an alias, a short question.

        Raises: ProviderError.
        """
        listed = await self._listed_models()
        for model in {self._llm.model, self._llm.title_model or self._llm.model} - listed:
            await self.chat(ChatRequest([{"role": "user", "content": "Answer with yes."}], CHECKED_TOKENS, model=model))

    async def _listed_models(self) -> set[str]:
        try:
            listed = (await self._http.get("/models")).get("data")
        except (ProviderMisconfigured, AnswerInvalid):  # not every server has the list
            return set()
        ids = (model.get("id") for model in listed if isinstance(model, dict)) if isinstance(listed, list) else ()
        return {name for name in ids if isinstance(name, str)}

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        options: dict[str, Any] = {"temperature": self._llm.temperature, "max_tokens": request.max_tokens}
        if request.schema and not self._chatml:  # /completions has no such field
            options["response_format"] = _response_format(request.schema)
        accepted = {self._name(option): value for option, value in options.items() if self._name(option)}
        asked = {"prompt": chatml(request.messages), "stop": STOP} if self._chatml else {"messages": request.messages}
        return {"model": request.model or self._llm.model, **asked, **accepted}

    def _name(self, option: str) -> str:
        return option if option not in self._rejected else REPLACEMENTS.get(option, "")


def _response_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "summary", "strict": True, "schema": schema}}


def read_openai_reply(data: dict[str, Any]) -> Reply:
    """Read a completion. Raises: AnswerInvalid when the response is none."""
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
            prompt_tokens=token_count(usage.get("prompt_tokens")),
            completion_tokens=token_count(usage.get("completion_tokens")),
        ),
        cut_off=finished == "length",
        refused=bool(refusal) or finished == "content_filter",
    )
