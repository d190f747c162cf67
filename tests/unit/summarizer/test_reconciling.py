"""Episodes that close: their summaries, rows and counts in every store, and their events, whatever happens."""

import asyncio
import copy
from dataclasses import replace
from datetime import timedelta
from typing import Any

import orjson
import pytest

from afterword.consumers.subscriber import decode_current
from afterword.schemas import EpisodeClosed, InvalidRecord, SummaryCreated, SummaryDeleted
from afterword.schemas.base import message_key
from afterword.streams.errors import ProviderMisconfigured, ProviderUnavailable
from afterword.streams.settings import Kafka, Settings
from afterword.streams.stores.episodes import Episode, RollingRow
from afterword.streams.summarizer.agent import current_output
from afterword.streams.summarizer.conversations import MAX_ROLLING_BYTES, last_rows
from afterword.streams.summarizer.reconciler import Event, compression
from afterword.streams.summarizer.summarizer import Summarizer, waited_for
from afterword.streams.summarizer.summary import SummaryRules
from afterword_text.tokens import count_tokens
from faust_eos.transaction import Output
from tests.doubles.stores import MemoryEpisodes
from tests.samples import NOON, a_cause, a_closed_episode, a_row, a_stored_episode, an_amendment
from tests.summarizer_world import (
    EPISODES,
    Crash,
    Fault,
    Faults,
    RecordedReadiness,
    World,
    a_step_runner,
    cancelled,
    crash,
    outage,
)
from tests.unit.summarizer.test_amending import CLOSED, DELETE_ALL, LATER, archive, archived, delete, edit
from tests.unit.summarizer.test_retention import Sweep


async def undisturbed() -> Any:
    world = World()
    await world.run(EPISODES)
    return world.state


async def test_index_has_the_authors_names() -> None:
    world, episode = World(), EPISODES[0]
    first, *others = episode.messages
    named = (first.model_copy(update={"author": "Mai"}), *others)
    await world.run((episode.model_copy(update={"messages": named}),))
    assert world.index.points["c1:1"].raw_text == "Mai: Text of m0.\nText of m1.\nText of m2."


async def test_episode_reaches_every_store_and_topic() -> None:
    world, episode = World(), EPISODES[0]
    await world.run((episode,))
    stored = world.episodes.episodes["c1:1"]
    summary = stored.summary
    assert (stored.core_ids, stored.overlap_ids, stored.inputs) == (
        ("m0", "m1", "m2"),
        (),
        (("m0", -1), ("m1", -1), ("m2", -1)),
    )
    assert (stored.fingerprint, stored.close_reason, stored.first_offset, stored.last_offset) == (
        episode.fingerprint,
        "trigger",
        0,
        2,
    )
    assert (stored.cause, stored.participants) == (a_cause(1), ("u1",))
    assert world.topic.events == [summary]
    assert world.messages.episode_ids == dict.fromkeys([message_key("c1", f"m{n}", "t1") for n in range(3)], "c1:1")
    assert [one.message.content for one in world.messages.messages.values()] == [
        "Text of m0.",
        "Text of m1.",
        "Text of m2.",
    ]
    assert world.index.points["c1:1"].raw_text == "Text of m0.\nText of m1.\nText of m2."
    assert world.index.points["c1:1"].vectors
    conversation = await world.episodes.conversation("c1")
    assert conversation is not None
    assert (conversation.title, conversation.message_count, conversation.last_ordinal) == (summary.title, 3, 1)
    row = await world.episodes.latest_row("c1")
    assert row is not None
    assert (row.content, row.last_ordinal, row.inputs) == (summary.short_summary, 1, ((1, 1),))
    [event] = world.topic.conversations
    assert (event.title, event.episode_count, event.message_count, event.last_ordinal) == (summary.title, 1, 3, 1)
    assert [(one.row, one.revision, one.text) for one in event.rolling] == [(1, 1, row.content)]


async def test_event_equals_the_episode() -> None:
    episode, world = a_closed_episode(2, agent_id="a1"), World()
    await world.run((episode,))
    [summary] = world.topic.events
    assert isinstance(summary, SummaryCreated)
    shared = set(SummaryCreated.model_fields) & set(EpisodeClosed.model_fields)
    assert {name: getattr(summary, name) for name in shared} == {name: getattr(episode, name) for name in shared}
    assert summary.event_id == "c1:2:1"
    assert summary.message_ids == ("m3", "m4", "m5")
    assert summary.created_at == NOON + timedelta(hours=1)
    assert summary.compression.tokens_before == 100
    assert summary.compression.tokens_after == count_tokens(summary.long_summary)
    assert summary.compression.ratio == pytest.approx(1 - count_tokens(summary.long_summary) / 100)
    assert (summary.compression.events_before, summary.compression.events_after) == (3, 1)


def test_episode_without_text_is_not_compressed() -> None:
    assert compression(a_closed_episode(token_count=0), 7).ratio == 0.0


async def test_overlap_is_never_counted_assigned_or_indexed() -> None:
    world = World()
    await world.run(EPISODES[1:2])
    assert world.episodes.episodes["c1:2"].overlap_ids == ("m1", "m2")
    assert set(world.messages.episode_ids) == {"c1:m3:t1", "c1:m4:t1", "c1:m5:t1"}
    assert "m2" not in world.index.points["c1:2"].raw_text


async def test_each_episode_sees_its_rows_earlier_text() -> None:
    world = World()
    await world.run(EPISODES, rules=SummaryRules(rolling_max_tokens=200))
    previous = [request.previous_rolling for request in world.provider.requests]
    assert previous == ["", *(event.rolling[0].text for event in world.topic.conversations[:2])]


async def test_repeated_record_is_announced_again_without_asking() -> None:
    world = World()
    await world.run(EPISODES[:1])
    state, told = world.state, list(world.topic.published)
    await world.run(EPISODES[:1])
    assert len(world.provider.requests) == 1
    assert world.topic.published == told * 2
    assert world.state == state


async def test_episode_in_another_record_gets_the_next_revision() -> None:
    world = World()
    await world.run(EPISODES[:1])
    before = world.episodes.episodes["c1:1"].summary
    await world.reconciler().handle(EPISODES[0], a_cause(50))
    after = world.episodes.episodes["c1:1"].summary
    assert (after.event_id, after.long_summary) == ("c1:1:2", before.long_summary)
    assert world.topic.events == [before, after]
    assert len(world.provider.requests) == 1
    conversation = world.episodes.known["c1"]
    assert (conversation.episode_count, conversation.message_count) == (1, 3)


async def test_same_episode_id_with_other_messages_is_a_conflict() -> None:
    world = World()
    await world.run(EPISODES[:1])
    state = world.state
    with pytest.raises(InvalidRecord, match="episode_conflict"):
        await world.run((EPISODES[0].model_copy(update={"fingerprint": "other"}),))
    assert world.state == state


async def test_conflict_is_seen_when_the_other_was_faster() -> None:
    world = World()

    class Overtaken(MemoryEpisodes):
        async def put(self, episode: Episode, before: Episode | None) -> bool:
            return await super().put(a_stored_episode(fingerprint="other"), None) and False

    with pytest.raises(InvalidRecord, match="episode_conflict"):
        await world.run(EPISODES[:1], episodes=Overtaken())
    assert world.topic.events == []


async def test_row_changed_meanwhile_is_decided_again() -> None:
    class Overtaken(MemoryEpisodes):
        lost = False

        async def put_row(self, row: RollingRow, before: RollingRow | None) -> bool:
            if not self.lost:
                self.lost = True
                return False
            return await super().put_row(row, before)

    episodes, world = Overtaken(), World()
    await world.run(EPISODES[:1], episodes=episodes)
    [row] = episodes.all_rows["c1"]
    assert "Episode 1 has" in row.content
    assert row.inputs == ((1, 1),)


@pytest.mark.parametrize("outage", [ProviderUnavailable(problem="away"), ProviderMisconfigured(problem="no key")])
async def test_configured_wait_for_the_llm_stores_nothing_meanwhile(outage: ProviderUnavailable) -> None:
    world = World()
    world.provider.outage = outage
    settings = Settings.model_validate({"summarizer": {"on_llm_outage": "wait"}})
    summarizer = Summarizer(world.provider, waits=waited_for(settings))
    readiness, stored = RecordedReadiness(), list[Any]()

    def back_at_the_third_time(failures: int, _: Exception) -> float:
        stored.append(copy.copy(world.episodes.episodes))
        if failures == 3:
            world.provider.outage = None
        return 0.0

    await world.run(EPISODES[:1], summarizer=summarizer, steps=a_step_runner(readiness, back_at_the_third_time))
    assert stored == [{}, {}, {}]
    assert readiness.calls == [("not_ready", "summarize", outage.error_type)] * 3 + [("ready", "summarize")]
    assert [one.summary.quality.source for one in world.episodes.episodes.values()] == ["llm"]


def without_texts_of_rows(state: Any) -> Any:
    """After a crash the text of a row is made of its episodes' long summaries, and another row may begin earlier."""
    episodes, rows, known, labels, points, announced = state
    shapes = [(one, bool(row.content)) for row in rows["c1"] for one in row.inputs]
    counts = replace(known["c1"], revision=0)
    return episodes, shapes, counts, labels, points, {one for one in announced if one.count(":") == 2}


async def count_calls() -> int:
    faults = Faults(0, after=False, fault=crash)
    await World().run(EPISODES, faults)
    return faults.calls


@pytest.mark.parametrize("after", [False, True], ids=["before the effect", "after the effect"])
@pytest.mark.parametrize("fault", [crash, cancelled])
async def test_crash_at_any_call_leaves_nothing_undone_or_repeated(fault: Fault, after: bool) -> None:
    expected = await undisturbed()
    for at in range(1, await count_calls() + 1):
        world, faults = World(), Faults(at, after, fault)
        with pytest.raises((Crash, asyncio.CancelledError)):
            await world.run(EPISODES, faults)
        assert faults.struck
        await world.run(EPISODES)
        assert without_texts_of_rows(world.state) == without_texts_of_rows(expected), f"crash at call {at}"
        assert all(len(contents) == 1 for contents in world.contents_by_event_id().values())


@pytest.mark.parametrize("after", [False, True], ids=["before the effect", "after the effect"])
async def test_outage_at_any_call_is_waited_out(after: bool) -> None:
    expected = await undisturbed()
    for at in range(1, await count_calls() + 1):
        world, faults = World(), Faults(at, after, outage)
        await world.run(EPISODES, faults)
        assert faults.struck
        assert world.state == expected, f"outage at call {at}"


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
