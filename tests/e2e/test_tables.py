"""Tables' changes, as Debezium 3.6.1 wrote them from PostgreSQL 15 and MariaDB 10.11, connected by what init writes
alone.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka.admin import NewTopic

from afterword.operating.dlq import Filters, open_queue
from afterword.streams.kafka.clients import admin_client, running_producer
from afterword.streams.roles import ALWAYS_RUN
from afterword.streams.settings import Settings
from afterword.streams.stores.episodes import StoredEpisode, all_episodes
from afterword.streams.stores.messages import Selection
from afterword.streams.stores.opening import open_stores
from tests.e2e.deployment import afterword, deployed
from tests.e2e.test_ingest import until_summarized
from tests.waiting import until

RECORDED = Path(__file__).parents[1] / "data" / "debezium" / "recorded.jsonl"
TOPICS = {one["kind"]: one["records"] for one in map(json.loads, RECORDED.read_text().splitlines())}
CONVERSATIONS = [f"6f1d2c3a-0000-4000-8000-00000000000{number}" for number in (1, 2)]
LEFT = {"2", "3", "101", "4", "5"}
INCOMPLETE = {"default": 2, "unwrapped": 2}
"""Without REPLICA IDENTITY FULL, a deletion names no conversation."""
IDS = {
    **dict.fromkeys(TOPICS, LEFT),
    **dict.fromkeys(INCOMPLETE, LEFT | {"1", "900", "102"}),
    **dict.fromkeys(("outbox", "outbox as text"), LEFT | {"1"}),
}
"""The messages that are left. Nothing is deleted from an outbox."""


@pytest.fixture
def settings(make_settings: Callable[..., Settings], tmp_path: Path) -> Settings:
    return make_settings(
        kafka={"partitions": 2, "session_timeout_seconds": 6},
        episodes={"idle_seconds": 2.0},
        drain_seconds=10,
        ingest={"file": tmp_path / "afterword.toml"},
    )


@pytest.mark.parametrize("kind", [pytest.param(one, marks=pytest.mark.nightly) for one in IDS])
async def test_table_is_connected_by_what_init_writes(
    kind: str, settings: Settings, unique: Callable[[str], str], tmp_path: Path
) -> None:
    topic = unique("table")
    async with admin_client(settings.kafka) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1)])
    async with running_producer(settings.kafka) as producer:
        for key, value in TOPICS[kind]:
            await producer.send_and_wait(topic, value and value.encode(), key=key and key.encode())
    code, said, _ = await afterword(settings, "init", "--topic", topic)
    assert code == (kind in INCOMPLETE), said
    assert ("REPLICA IDENTITY FULL" in said) == (kind in INCOMPLETE)
    async with deployed(settings, tmp_path) as deployment:
        for role in ("ingest", *ALWAYS_RUN):
            deployment.start(role)
        await until(lambda: has_texts(settings, IDS[kind]))
        await until_summarized(deployment)
        assert await dead_letters(settings, topic) == INCOMPLETE.get(kind, 0) * ["incomplete_deletion"]
        texts = await archived(settings)
        assert texts["4"] == "Where is the green lamp I ordered?"
        assert not any("__debezium" in text for text in texts.values())
        summaries = await summarized(settings)
        assert "green lamp" in summaries
        assert "blue lamp" not in summaries
        assert ("grey kettle" in summaries) == ("1" in IDS[kind])
        assert await deployment.stop("ingest") == 0


async def archived(settings: Settings) -> dict[str, str]:
    async with open_stores(settings) as stores:
        found = [one for name in CONVERSATIONS async for one in stores.messages.newest(Selection(name, None))]
    return {one.message.id: one.message.content for one in found}


async def has_texts(settings: Settings, ids: set[str]) -> bool:
    texts = await archived(settings)
    return texts.keys() == ids and "green lamp" in texts["4"]


async def dead_letters(settings: Settings, topic: str) -> list[str]:
    async with open_queue(settings) as queue:
        found = [one async for one in queue.unresolved(settings.kafka.dead_letters(topic), Filters(stage="ingest"))]
    return [one.error_type for one in found]


async def summarized(settings: Settings) -> str:
    async with open_stores(settings) as stores:
        found = [one for name in CONVERSATIONS async for one in all_episodes(stores.episodes, name)]
    return " ".join(one.summary.to_json().decode() for one in found if isinstance(one, StoredEpisode))
