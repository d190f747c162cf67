"""The erasure exactly as SECURITY.md describes it."""

import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pymongo import MongoClient
from qdrant_client import AsyncQdrantClient, QdrantClient

from afterword.schemas.base import episode_id
from afterword.streams.errors import StoreRefuses
from afterword.streams.settings import Mongo
from afterword.streams.stores import mongo
from afterword.streams.stores.episodes import scope_of
from afterword.streams.stores.messages import ArchivedMessage
from afterword.streams.stores.mongo import MongoDatabase, MongoEpisodes, MongoMessages
from afterword.streams.stores.qdrant import Call, HttpConnection, QdrantIndex, collection_name
from tests.samples import a_conversation, a_message, a_row, a_stored_episode
from tests.vectors import put

PAGE = Path(__file__).parents[3] / "SECURITY.md"
SECRET, OTHER = "4711", "harmless"
COLLECTION = "episodes"
IDS = ("c1", "a/b", "100%", "chat:1")

Erase = Callable[..., None]


@pytest.fixture
def erase() -> Erase:
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    made: Erase = names["erase"]
    return made


@pytest_asyncio.fixture
async def database(mongo_settings: Mongo) -> AsyncIterator[MongoDatabase]:
    opened = mongo.connect(mongo_settings)
    yield opened
    await opened.client.drop_database(opened.name)
    await mongo.close(opened)


@pytest.fixture
def points(tmp_path: Path) -> Path:
    """Return the directory of Qdrant's local mode."""
    return tmp_path / "index"


class Local(HttpConnection):
    """Qdrant's local mode, which has another error than a server for a collection that does not exist."""

    async def run(self, call: Call) -> Any:
        try:
            return await super().run(call)
        except ValueError as error:
            raise StoreRefuses(store="qdrant", problem="has no such collection", status=404) from error


async def fill(points: Path, database: MongoDatabase, conversation: str, text: str) -> None:
    """Store everything that Afterword keeps about a conversation and about an agent's part of it."""
    episodes, messages = MongoEpisodes(database), MongoMessages(database)
    client = AsyncQdrantClient(path=str(points))
    index = QdrantIndex(Local(client), COLLECTION)
    for ordinal, agent in ((1, None), (2, "agent/1")):
        stored = a_stored_episode(
            ordinal,
            conversation_id=conversation,
            episode_id=episode_id(conversation, ordinal, agent),
            agent_id=agent,
            title=text,
            long_summary=text,
        )
        scope = scope_of(stored.summary)
        await episodes.put(stored, None)
        await episodes.put_conversation(a_conversation(scope, title=text), None)
        await episodes.put_row(a_row(1, scope, content=text), None)
        said = a_message(f"m{ordinal}", conversation, content=text, agent_id=agent, tenant_id="t1")
        await messages.put_many([ArchivedMessage(said, 0, ordinal)])
        unarchived = a_message(text, conversation, content=text, agent_id=agent, tenant_id="t1")
        await messages.assign(stored.summary.episode_id, [ArchivedMessage(unarchived, 0, 10 + ordinal)])
        await put(index, stored.summary, text)
    await index.close()


async def left(points: Path, database: MongoDatabase) -> dict[str, list[str]]:
    """Return the documents of each collection and the points, as texts."""
    found = {name: [str(d) async for d in database[name].find({})] for name in await database.list_collection_names()}
    with_index = QdrantClient(path=str(points))
    found_points, _ = with_index.scroll(collection_name(COLLECTION, None))
    found["points"] = [str(point.payload) for point in found_points]
    with_index.close()
    return found


@pytest.mark.filterwarnings("ignore:Payload indexes have no effect:UserWarning")
@pytest.mark.parametrize("conversation", IDS)
async def test_erasure_on_the_page_removes_one_conversation_only(
    points: Path, mongo_settings: Mongo, database: MongoDatabase, erase: Erase, conversation: str
) -> None:
    others = [*(other for other in IDS if other != conversation), "c", "c11", "a", "a%2Fb"]
    for other in others:
        await fill(points, database, other, OTHER)
    before = await left(points, database)
    await fill(points, database, conversation, SECRET)
    client: Any = MongoClient(mongo_settings.uri.get_secret_value(), tz_aware=True)
    with_index = QdrantClient(path=str(points))
    assert any(SECRET in text for text in map(str, client[database.name]["conversations"].find({})))
    erase(client[database.name], with_index, collection_name(COLLECTION, None), conversation)
    with_index.close()
    client.close()
    after = await left(points, database)
    assert [name for name, texts in after.items() if any(SECRET in text for text in texts)] == []
    assert {name: sorted(texts) for name, texts in after.items()} == {n: sorted(t) for n, t in before.items()}
