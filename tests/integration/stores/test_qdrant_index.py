from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from qdrant_client import AsyncQdrantClient, models

from afterword.schemas.ids import point_id
from afterword.streams.errors import ConfigurationError
from afterword.streams.stores.qdrant import HttpConnection, QdrantIndex
from tests.blocking import MOST_SHARE, blocking
from tests.indexing import put
from tests.samples import a_summary

RAW_TEXT = "I need a taxi to the museum in Cambridge."


pytestmark = pytest.mark.filterwarnings("ignore:Payload indexes have no effect:UserWarning")


@pytest_asyncio.fixture
async def client() -> AsyncIterator[AsyncQdrantClient]:
    opened = AsyncQdrantClient(":memory:")
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


async def test_the_payload_has_what_filters_and_the_ranking_compare(
    index: QdrantIndex, client: AsyncQdrantClient
) -> None:
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
        "message_ids": ["m0", "m1", "m2"],
        "revision": 1,
        "started_at": "2026-01-05T12:00:00.123Z",
        "ended_at": "2026-01-05T12:02:00.123Z",
    }


async def test_a_model_has_its_own_collection_which_names_it(client: AsyncQdrantClient) -> None:
    index = index_of(client, "nomic/embed:v1")
    await put(index, a_summary(), RAW_TEXT, [0.6, 0.8])
    _, record = await read(client, "episodes-nomic-embed-v1")
    assert isinstance(record.vector, dict)
    (kept,) = record.vector["messages"]
    assert kept == pytest.approx([0.6, 0.8])


async def test_a_model_whose_dimension_changed_is_a_wrong_setting(client: AsyncQdrantClient) -> None:
    first = index_of(client, "m")
    await put(first, a_summary(), RAW_TEXT, [1.0, 0.0])
    second = index_of(client, "m")
    with pytest.raises(ConfigurationError, match="dimension 2"):
        await put(second, a_summary(), RAW_TEXT, [1.0, 0.0, 0.0])


async def test_writing_does_not_hold_up_the_event_loop(index: QdrantIndex) -> None:
    await put(index, a_summary(), RAW_TEXT)
    _, share = await blocking(put(index, a_summary(2), RAW_TEXT * 50_000))
    assert share < MOST_SHARE
