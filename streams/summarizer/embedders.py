"""Dense vectors of texts, from an OpenAI-compatible server, from Ollama, or from a small model on this machine."""

import asyncio
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from afterword.streams.errors import ConfigurationError, ProviderError, ProviderMisconfigured, StoreUnavailable
from afterword.streams.settings import LOCAL_EMBEDDER, Llm, variable
from afterword.streams.settings import Embedder as EmbedderSettings
from afterword.streams.summarizer.providers.http import Endpoint
from afterword.streams.summarizer.providers.retrying import Budget, retrying

STORE = "embedder"
STAGE = "embed"
OPENAI_URL = "https://api.openai.com/v1"
OLLAMA_URL = "http://127.0.0.1:11434"
ATTEMPTS = 4
RETRY_BUDGET_SECONDS = 60.0
"""After that the episode waits, and is tried again from the embedder on."""

Vector = list[float]


class Embedder(Protocol):
    """Makes vectors that a search compares; may be used for several texts at a time."""

    model: str

    async def embed(self, text: str) -> Vector:
        """Raises: StoreUnavailable when it should be tried again, ConfigurationError when a setting is wrong."""
        ...

    async def close(self) -> None: ...


class HttpEmbedder:
    """Asks a server, with a few retries."""

    def __init__(self, endpoint: Endpoint, model: str, path: str, vector_in: Callable[[Any], Any]) -> None:
        self.model = model
        self._endpoint = endpoint
        self._path = path
        self._vector_in = vector_in

    async def embed(self, text: str) -> Vector:
        try:
            answer = await retrying(STAGE, lambda: self._ask(text), ATTEMPTS, Budget(RETRY_BUDGET_SECONDS))
        except ProviderMisconfigured as error:
            raise ConfigurationError(setting=variable(("embedder",)), problem=_problem(error)) from None
        except ProviderError as error:
            raise StoreUnavailable(store=STORE, problem=_problem(error)) from None
        return self._checked(answer)

    async def close(self) -> None:
        await self._endpoint.close()

    async def _ask(self, text: str) -> dict[str, Any]:
        return await self._endpoint.post(self._path, {"model": self.model, "input": text})

    def _checked(self, answer: dict[str, Any]) -> Vector:
        try:
            vector = [float(number) for number in self._vector_in(answer)]
        except (LookupError, TypeError, ValueError):
            vector = []
        if not vector:
            raise StoreUnavailable(store=STORE, problem="its answer holds no vector")
        return vector


class LocalEmbedder:
    """WordLlama: static embeddings of 256 dimensions, its weights inside its wheel, no network."""

    model = LOCAL_EMBEDDER

    async def embed(self, text: str) -> Vector:
        return await asyncio.to_thread(_local_vector, text)

    async def close(self) -> None:
        """Nothing to let go of."""


def make_embedder(settings: EmbedderSettings) -> Embedder | None:
    """The configured embedder; None for no dense vectors. Raises: ConfigurationError."""
    if settings.provider == "openai":
        endpoint = _endpoint(settings, OPENAI_URL)
        return HttpEmbedder(endpoint, str(settings.model), "/embeddings", lambda a: a["data"][0]["embedding"])
    if settings.provider == "ollama":
        endpoint = _endpoint(settings, OLLAMA_URL)
        return HttpEmbedder(endpoint, str(settings.model), "/api/embed", lambda a: a["embeddings"][0])
    if settings.provider == "local":
        _local_model()
        return LocalEmbedder()
    return None


def _endpoint(settings: EmbedderSettings, default_url: str) -> Endpoint:
    llm = Llm(**settings.model_dump(include={"base_url", "api_key", "ca_file", "timeout_seconds"}))
    try:
        return Endpoint(llm, default_url)
    except ConfigurationError as error:  # it names the LLM's setting, with whose client the embedder is asked
        setting = variable(("embedder", str(vars(error)["setting"]).rpartition("__")[2]))
        raise ConfigurationError(setting=setting, problem=vars(error)["problem"]) from None


def _problem(error: ProviderError) -> str:
    return str(vars(error).get("problem", error.error_type))


def _local_vector(text: str) -> Vector:
    vector: Vector = _local_model().embed(text, norm=True)[0].tolist()
    return vector


@cache
def _local_model() -> Any:
    try:
        import wordllama
    except ImportError:
        problem = "local needs: pip install 'afterword[local-embeddings]'"
        raise ConfigurationError(setting=variable(("embedder", "provider")), problem=problem) from None
    # it looks for its bundled tokenizer below the cache directory, not below its own
    return wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
