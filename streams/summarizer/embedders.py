"""Embedders: dense vectors of texts, from an OpenAI-compatible server, from Ollama, or from a small local model."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import orjson
import structlog

from afterword.streams.errors import (
    ConfigurationError,
    ContextExceeded,
    PromptRefused,
    ProviderError,
    ProviderMisconfigured,
    StoreUnavailable,
)
from afterword.streams.settings import LOCAL_EMBEDDER, EmbedderSettings, Redaction, variable
from afterword.streams.stores.index import Dense
from afterword.streams.stores.packing import unit
from afterword.streams.summarizer.retrying import PromptRefusals, retrying
from afterword.streams.tasks import gather_or_cancel

if TYPE_CHECKING:
    from afterword.streams.http import HttpClient

STORE = "embedder"
STAGE = "embed"
QUERY_STAGE = "recall"
OPENAI_URL = "https://api.openai.com/v1"
OLLAMA_URL = "http://127.0.0.1:11434"
ATTEMPTS = 4
RETRY_BUDGET_SECONDS = 60.0
"""Time for the retries of one call; after that, its step is retried with backoff."""
VECTOR_CHARACTERS = 300
"""Maximum number of characters of a message that go into its vector: people say what matters first."""
MARGIN_CHARACTERS = 4000
"""A text is redacted with this many characters beyond its limit, because half a card number is not recognized."""
LARGEST_COORDINATE = 3.4e38
"""Largest 32-bit float, which is what vector stores use for coordinates."""

Vector = list[float]

log = structlog.get_logger(__name__)


class Embedder(Protocol):
    """Makes the vectors that a search compares. Calls may be concurrent."""

    model: str

    async def embed(self, texts: Sequence[str], most: int | None = None) -> list[Vector | None]:
        """Return the vectors of texts, or of their first `most` characters.

        It is None for a text that the server refuses although it accepts others.

        Raises: StoreUnavailable, to be retried; ConfigurationError for a wrong setting.
        """
        ...

    async def close(self) -> None: ...


class HttpEmbedder:
    """Embeds on a server, with a few retries."""

    def __init__(
        self, http: "HttpClient", model: str, path: str, vector_in: Callable[[Any], Any], shown: Callable[[str], str]
    ) -> None:
        """`shown` redacts a text for the server."""
        self._shown = shown
        self.model = model
        self._http = http
        self._path = path
        self._vector_in = vector_in
        self._refusals = PromptRefusals()

    async def embed(self, texts: Sequence[str], most: int | None = None) -> list[Vector | None]:
        # in a thread, because redaction takes milliseconds per message
        shown = await asyncio.to_thread(lambda: [self._redacted(text, most) for text in texts])
        return await gather_or_cancel(*map(self._vector, shown))

    async def close(self) -> None:
        await self._http.close()

    def _redacted(self, text: str, most: int | None) -> str:
        if most is None or len(text) <= most + MARGIN_CHARACTERS:
            return self._shown(text)[:most]
        return self._shown(text[: most + MARGIN_CHARACTERS])[:-MARGIN_CHARACTERS][:most]

    async def _vector(self, text: str) -> Vector | None:
        try:
            answer = await retrying(STAGE, lambda: self._ask(text), ATTEMPTS, RETRY_BUDGET_SECONDS)
        except (PromptRefused, ContextExceeded) as error:
            log.warning("text_not_embedded", stage=STAGE, error_type=error.error_type, problem=error.problem)
            return None
        except ProviderMisconfigured as error:
            raise ConfigurationError(
                setting=variable(("embedder",)), problem=error.problem or error.error_type
            ) from None
        except ProviderError as error:
            raise StoreUnavailable(store=STORE, problem=error.problem or error.error_type) from None
        return self._checked(answer)

    async def _ask(self, text: str) -> dict[str, Any]:
        asked_at = asyncio.get_running_loop().time()
        try:
            answer = await self._post(text)
        except ProviderMisconfigured as error:
            if await self._refusals.concern_one_request(asked_at, lambda: self._post("yes")):
                raise PromptRefused(problem=error.problem) from None
            raise
        self._refusals.answered()
        return answer

    async def _post(self, text: str) -> dict[str, Any]:
        return await self._http.post(self._path, {"model": self.model, "input": text})

    def _checked(self, answer: dict[str, Any]) -> Vector:
        try:
            vector = self._vector_in(answer)
        except (LookupError, TypeError):
            vector = None
        is_list = isinstance(vector, list) and bool(vector)
        if not (is_list and all(type(one) in (int, float) and abs(one) <= LARGEST_COORDINATE for one in vector)):
            raise StoreUnavailable(store=STORE, problem="its answer has no vector")
        return [float(number) for number in vector]


class LocalEmbedder:
    """WordLlama: static embeddings of 256 dimensions, with weights inside its wheel and no network."""

    model = LOCAL_EMBEDDER

    async def embed(self, texts: Sequence[str], most: int | None = None) -> list[Vector | None]:
        return await asyncio.to_thread(_local_vectors, [text[:most] for text in texts])

    async def close(self) -> None:
        """Do nothing: the process shares the model."""


SERVERS: Mapping[str, tuple[str, str, Callable[[Any], Any]]] = {
    "openai": (OPENAI_URL, "/embeddings", lambda answer: answer["data"][0]["embedding"]),
    "ollama": (OLLAMA_URL, "/api/embed", lambda answer: answer["embeddings"][0]),
}
"""Default address, path, and place of the vector in the answer, by `embedder.provider`."""


def make_embedder(settings: EmbedderSettings, redaction: Redaction) -> Embedder | None:
    """Make the configured embedder; None without dense vectors. A server is shown redacted texts.

    Raises: ConfigurationError, ExtraMissing.
    """
    if server := SERVERS.get(settings.provider):
        # imported here because httpx takes a tenth of a second, and the local model does not need it
        from afterword.streams.http import HttpClient

        default_url, path, vector_in = server
        http, shown = HttpClient(settings, "embedder", default_url), redaction.shown()
        return HttpEmbedder(http, str(settings.model), path, vector_in, shown)
    if settings.provider == "local":
        _local_model()
        return LocalEmbedder()
    return None


async def embed_messages(embedder: Embedder, texts: Mapping[str, str]) -> dict[str, Vector]:
    """Embed the beginnings of messages, given by their ids; messages that the server refuses are left out.

    Raises: StoreUnavailable, ConfigurationError.
    """
    told = {one: text for one, text in texts.items() if text.strip()}
    vectors = await embedder.embed(list(told.values()), VECTOR_CHARACTERS)
    return {one: vector for one, vector in zip(told, vectors, strict=True) if vector is not None}


async def embed_query(embedder: Embedder | None, text: str) -> Dense | None:
    """Embed a search query. Raises: ConfigurationError.

    Returns None without an embedder, and while the embedder is unavailable; then the search uses words alone.
    """
    if embedder is None or not text.strip():
        return None
    try:
        return (await embedder.embed([text]))[0]
    except StoreUnavailable as error:
        log.warning("query_embedding_failed", stage=QUERY_STAGE, error_type=error.error_type, problem=str(error))
        return None


def _local_vectors(texts: Sequence[str]) -> list[Vector | None]:
    weights, tokenizer = _local_model()
    means = np.zeros((len(texts), weights.shape[1]), np.float32)
    for mean, text in zip(means, texts, strict=True):
        if tokens := tokenizer.encode(text, add_special_tokens=False).ids:
            weights[tokens].mean(axis=0, dtype=np.float32, out=mean)
    vectors: list[Vector | None] = unit(means).tolist()
    return vectors


@cache
def _local_model() -> tuple[Any, Any]:
    """Load token vectors and tokenizer from the wheel, without importing its package, which would configure logging.

    The vectors are not read but mapped, so that all processes of a machine share them. In the file, they follow a
    JSON header and its size (safetensors' format).
    """
    found = find_spec("wordllama")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        found = None
    if found is None or not found.submodule_search_locations:
        problem = "local needs: pip install '.[memory]' in a checkout"
        raise ConfigurationError(setting=variable(("embedder", "provider")), problem=problem)
    wheel = Path(found.submodule_search_locations[0])
    file = wheel / "weights" / "l2_supercat_256.safetensors"
    with file.open("rb") as opened:
        header_size = int.from_bytes(opened.read(8), "little")
        described = orjson.loads(opened.read(header_size))["embedding.weight"]
    begin = 8 + header_size + described["data_offsets"][0]
    weights = np.asarray(np.memmap(file, np.float16, "r", begin, tuple(described["shape"])))
    tokenizer = Tokenizer.from_file(str(wheel / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    return weights, tokenizer
