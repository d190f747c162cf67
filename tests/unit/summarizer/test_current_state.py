"""The compacted topics hold the last revision of each episode and conversation, and nothing that was deleted."""

from datetime import timedelta
from typing import Any

import orjson

from afterword.consumers.subscriber import decode_current
from afterword.schemas import SummaryCreated, SummaryDeleted
from afterword.streams.settings import Kafka
from afterword.streams.summarizer.agent import current_output
from afterword.streams.summarizer.conversations import MAX_ROLLING_BYTES, last_rows
from afterword.streams.summarizer.reconciler import Event
from afterword.streams.summarizer.summary import SummaryRules
from faust_eos.transaction import Output
from tests.samples import NOON, a_cause, a_row, an_amendment
from tests.summarizer_world import World
from tests.unit.summarizer.test_amending import CLOSED, DELETE_ALL, LATER, archive, archived, delete, edit
from tests.unit.summarizer.test_retention import Sweep

KAFKA = Kafka()
SHORT = SummaryRules(rolling_max_tokens=5)
"""Each episode has a row."""


class Table:
    """The state of a reader that keeps the last record of each key."""

    def __init__(self) -> None:
        self.records: list[Output] = []

    async def keep(self, event: Event) -> None:
        self.records.append(current_output(KAFKA, event))

    def of(self, topic: str) -> dict[str, Any]:
        last = {(one.key or b"").decode(): one.value for one in self.records if one.topic == topic}
        return {key: orjson.loads(value) for key, value in last.items() if value is not None}

    @property
    def episodes(self) -> dict[str, Any]:
        return self.of(KAFKA.current_episodes_topic)

    @property
    def conversations(self) -> dict[str, Any]:
        return self.of(KAFKA.current_conversations_topic)


async def summarized() -> tuple[World, Table]:
    world, table = World(), Table()
    await world.messages.put_many(archived(CLOSED))
    await world.run(CLOSED, keep=table.keep, rules=SHORT)
    return world, table


async def change(world: World, table: Table, event: Any, offset: int = 100) -> None:
    await archive(world, event, offset)
    await world.reconciler(keep=table.keep, rules=SHORT).handle(an_amendment(event, offset, LATER), a_cause(offset))


async def test_current_state_has_latest_announcements_and_all_rows() -> None:
    world, table = await summarized()
    assert table.episodes == {one.event_id[:-2]: orjson.loads(one.to_json()) for one in world.topic.events}
    [conversation] = table.conversations.values()
    assert [row["text"] for row in conversation["rolling"]] == [row.content for row in world.episodes.all_rows["c1"]]
    assert len(conversation["rolling"]) > len(world.topic.conversations[-1].rolling)
    await change(world, table, edit("m4"))
    assert table.episodes["c1:2"]["revision"] == 2
    assert table.conversations["c1"]["revision"] == world.episodes.known["c1"].revision


async def test_records_of_a_conversation_share_its_partition() -> None:
    _, table = await summarized()
    assert {one.partition_key for one in table.records} == {b"c1"}


async def test_deletion_leaves_a_tombstone_with_ids_only() -> None:
    world, table = await summarized()
    for name in ("m3", "m4", "m5"):
        await change(world, table, delete(name), 100 + int(name[1:]))
    assert table.episodes.keys() == {"c1:1", "c1:3"}
    assert table.conversations["c1"]["episode_count"] == 2
    await change(world, table, DELETE_ALL, 200)
    assert (table.episodes, table.conversations) == ({}, {})
    assert all("Episode" not in str(one.headers) for one in table.records if one.value is None)


async def test_expiry_leaves_a_tombstone() -> None:
    world, table = await summarized()
    await Sweep(world, NOON + timedelta(days=2), keep=table.keep, rules=SHORT).sweep()
    assert (table.episodes, table.conversations) == ({}, {})


async def test_subscriber_reads_summaries_and_deletions_of_the_table() -> None:
    world, table = await summarized()
    await change(world, table, DELETE_ALL, 200)
    records: list[Any] = [one for one in table.records if one.topic == KAFKA.current_episodes_topic]
    current = [decode_current(one) for one in records]
    assert [type(one) for one in current] == [SummaryCreated] * 3 + [SummaryDeleted] * 3
    assert current == world.topic.events


def test_overlong_conversation_has_its_last_rows() -> None:
    rows = [a_row(number, content="x" * (MAX_ROLLING_BYTES // 3)) for number in (1, 2, 3, 4)]
    assert last_rows(rows) == rows[1:]
    assert last_rows(rows[:2]) == rows[:2]
