import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from qdrant_client import AsyncQdrantClient, QdrantClient, models

from afterword.schemas.base import point_id
from afterword.streams.errors import ConfigurationError, StoreRefuses
from afterword.streams.settings import EmbedderSettings, Qdrant
from afterword.streams.stores.qdrant import HttpConnection, QdrantIndex, connect_qdrant, open_index
from afterword_text.language import STEMMER
from tests import qdrant_answers
from tests.blocking import MOST_SHARE, blocking
from tests.qdrant_engine import routes_in, shard_of
from tests.qdrant_server import QdrantServer
from tests.samples import a_summary
from tests.vectors import put

RAW_TEXT = "I need a taxi to the museum in Cambridge."
WRITERS = 16
UPSERT = "PUT", "/collections/{collection}/points"


pytestmark = pytest.mark.filterwarnings("ignore:Payload indexes have no effect:UserWarning")


@pytest_asyncio.fixture
async def client() -> AsyncIterator[AsyncQdrantClient]:
    async with QdrantServer() as server:
        opened = AsyncQdrantClient(url=server.url, check_compatibility=False)
        yield opened
        await opened.close()


@pytest.fixture
def index(client: AsyncQdrantClient) -> QdrantIndex:
    return index_of(client)


def index_of(client: AsyncQdrantClient, model: str | None = None) -> QdrantIndex:
    return QdrantIndex(HttpConnection(client), "episodes", model)


async def read(client: AsyncQdrantClient, collection: str = "episodes") -> tuple[Any, models.Record]:
    info = await client.get_collection(collection)
    (record,) = await client.retrieve(collection, [point_id("c1:1")], with_vectors=True)
    return info, record


async def test_payload_has_what_filters_and_ranking_need(index: QdrantIndex, client: AsyncQdrantClient) -> None:
    await put(index, a_summary(agent_id="a1"), RAW_TEXT, writers=("u1", "u2"))
    _, record = await read(client)
    assert record.payload is not None
    assert record.payload.pop("words")
    assert record.payload.pop("messages") == ""
    assert record.payload == {
        "episode_id": "c1:1",
        "conversation_id": "c1",
        "user_ids": ["u1", "u2"],
        "agent_id": "a1",
        "tenant_id": "t1",
        "message_ids": ["m0"],
        "revision": 1,
        "started_at": "2026-01-05T12:00:00.123Z",
        "ended_at": "2026-01-05T12:02:00.123Z",
    }


async def test_each_model_has_a_collection_named_after_it(client: AsyncQdrantClient) -> None:
    index = index_of(client, "nomic/embed:v1")
    await put(index, a_summary(), RAW_TEXT, [0.6, 0.8])
    info, record = await read(client, "episodes-nomic-embed-v1")
    assert info.config.metadata == {"stemmer": STEMMER}
    assert isinstance(record.vector, dict)
    (kept,) = record.vector["messages"]
    assert kept == pytest.approx([0.6, 0.8])


async def test_model_whose_dimension_changed_is_a_wrong_setting(client: AsyncQdrantClient) -> None:
    first = index_of(client, "m")
    await put(first, a_summary(), RAW_TEXT, [1.0, 0.0])
    second = index_of(client, "m")
    with pytest.raises(ConfigurationError, match="dimension 2"):
        await put(second, a_summary(), RAW_TEXT, [1.0, 0.0, 0.0])


DENSE = models.VectorParams(
    size=2,
    distance=models.Distance.COSINE,
    multivector_config=models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM),
)
SPARSE = models.SparseVectorParams(modifier=models.Modifier.IDF)


@pytest.mark.parametrize(
    ("vectors", "sparse", "said"),
    [
        (DENSE, {"words": SPARSE}, ["it has one vector without a name", "it has no vector messages"]),
        ({"other": DENSE}, {}, ["it has no vector messages", "it has no sparse vector words"]),
        (
            {"messages": models.VectorParams(size=3, distance=models.Distance.DOT)},
            {"words": models.SparseVectorParams()},
            ["its sparse vector words lacks the modifier idf", "dimension 3", "the distance Dot", "no multivectors"],
        ),
    ],
)
async def test_every_mismatch_of_an_existing_collection_is_named(
    client: AsyncQdrantClient, vectors: Any, sparse: Any, said: list[str]
) -> None:
    await client.create_collection("episodes-m", vectors_config=vectors, sparse_vectors_config=sparse)
    with pytest.raises(ConfigurationError, match=r"AFTERWORD_QDRANT__COLLECTION: .* episodes-m does not fit") as found:
        await put(index_of(client, "m"), a_summary(), RAW_TEXT, [1.0, 0.0])
    assert all(part in str(found.value) for part in said)


async def test_collection_of_another_stemmer_asks_for_a_rebuild(client: AsyncQdrantClient) -> None:
    await client.create_collection(
        "episodes-m",
        vectors_config={"messages": DENSE},
        sparse_vectors_config={"words": SPARSE},
        metadata={"stemmer": "2.2.0 with 30 algorithms"},
    )
    with pytest.raises(ConfigurationError, match=r"PyStemmer 2\.2\.0 .*afterword index rebuild"):
        await index_of(client, "m").prepare()


async def test_fitting_collection_is_used_unchanged(client: AsyncQdrantClient) -> None:
    await client.create_collection(
        "episodes-m", vectors_config={"messages": DENSE}, sparse_vectors_config={"words": SPARSE}
    )
    index = index_of(client, "m")
    await index.prepare()
    await put(index, a_summary(), RAW_TEXT, [1.0, 0.0])
    assert await index.revisions(["c1:1"]) == {"c1:1": 1}


async def test_index_of_another_type_is_named_at_the_start(client: AsyncQdrantClient) -> None:
    await client.create_collection("episodes", vectors_config={}, sparse_vectors_config={"words": SPARSE})
    await client.create_payload_index("episodes", "started_at", models.PayloadSchemaType.KEYWORD)
    with pytest.raises(ConfigurationError, match="its index of started_at is keyword, not datetime"):
        await index_of(client).prepare()


async def test_filtered_fields_have_indexes_and_operators_own_stay(
    index: QdrantIndex, client: AsyncQdrantClient
) -> None:
    await client.create_collection("episodes", vectors_config={}, sparse_vectors_config={"words": SPARSE})
    await client.create_payload_index("episodes", "agent_id", models.KeywordIndexParams(type="keyword", on_disk=True))
    await put(index, a_summary(), RAW_TEXT)
    info = await client.get_collection("episodes")
    assert {field: kind.data_type.value for field, kind in info.payload_schema.items()} == {
        **dict.fromkeys(("tenant_id", "user_ids", "agent_id", "conversation_id"), "keyword"),
        **dict.fromkeys(("started_at", "ended_at"), "datetime"),
        "revision": "integer",
        "deleted": "bool",
    }


def refusing_needles(client: QdrantClient, name: str, body: bytes) -> Any:
    if b"needle" in body:
        raise qdrant_answers.Unindexed
    return qdrant_answers.upsert(client, name, body)


@pytest.mark.parametrize("refused", [[], [7]], ids=["none refused", "one refused"])
async def test_concurrent_puts_share_requests_and_only_refusals(refused: list[int]) -> None:
    routes = [
        (method, path, refusing_needles if (method, path) == UPSERT else answer)
        for method, path, answer in qdrant_answers.ROUTES
    ]
    ordinals = range(1, WRITERS + 1)
    async with QdrantServer(routes=routes) as server:
        index = open_index(Qdrant(url=server.url), EmbedderSettings(provider="none"))
        await put(index, a_summary(WRITERS + 1), RAW_TEXT)
        server.requests.clear()
        puts = [put(index, a_summary(n), RAW_TEXT, writers=("needle" if n in refused else "u1",)) for n in ordinals]
        ended = await asyncio.gather(*puts, return_exceptions=True)
        assert [n for n, error in zip(ordinals, ended, strict=True) if isinstance(error, StoreRefuses)] == refused
        assert len(server.requests) < (2 * WRITERS if refused else WRITERS / 2)
        names = {n: f"c1:{n}" for n in ordinals if n not in refused}
        assert await index.revisions(list(names.values())) == dict.fromkeys(names.values(), 1)
        await index.close()


async def test_writing_does_not_block_the_event_loop(index: QdrantIndex) -> None:
    await put(index, a_summary(), RAW_TEXT)
    _, share = await blocking(put(index, a_summary(2), RAW_TEXT * 50_000))
    assert share < MOST_SHARE


USER, VECTOR = "needle-4711", [0.6, 0.8]
NEEDLES = USER.encode(), struct.pack("<2f", *VECTOR)
EPISODES = 1200
"""So many that one alone is less than the share of deleted points at which the engine cleans a segment."""


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[QdrantServer]:
    async with QdrantServer(routes=routes_in(tmp_path)) as started:
        yield started


def holding(directory: Path) -> set[bytes]:
    """Return the needles that are in any file. Other parts of a payload cannot be found: it is compressed."""
    files = [file.read_bytes() for file in directory.rglob("*") if file.is_file()]
    return {needle for needle in NEEDLES if any(needle in content for content in files)}


@pytest.mark.nightly
async def test_removed_episode_is_in_no_file_after_optimization(server: QdrantServer, tmp_path: Path) -> None:
    index = QdrantIndex(connect_qdrant(Qdrant(url=server.url)), "episodes", "m")
    for ordinal in range(1, EPISODES + 1):
        await put(index, a_summary(ordinal, title="T", short_summary="S", long_summary="L"), "A flight.", [1.0, 0.0])
    await put(index, a_summary(1, conversation_id="c2"), "A flight to Rome.", VECTOR, writers=(USER,))
    shard = shard_of(server.client, index.collection)
    shard.optimize()
    shard.flush()
    assert holding(tmp_path) == {*NEEDLES}
    await index.remove("c2:1", 1)
    await index.push_out_removed()
    shard.optimize()
    shard.flush()
    shard.close()
    assert holding(tmp_path) == set()
    await index.close()
