"""Edits and deletions of messages in stored episodes: their revisions, and what was derived from them."""

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import (
    ConversationDeleted,
    EpisodeAmended,
    EpisodeClosed,
    InvalidRecord,
    MessageCreated,
    MessageDeleted,
    MessageEdited,
    SummaryCreated,
    SummaryDeleted,
    Usage,
)
from afterword.schemas.episodes import EPISODE_AMENDED
from afterword.schemas.headers import CE_TYPE, header
from afterword.schemas.ids import message_key, scope_id
from afterword.streams.errors import ProviderUnavailable
from afterword.streams.settings import MOST_PENDING_EPISODES, Retry
from afterword.streams.stores.episodes import MOST_REVISIONS
from afterword.streams.stores.messages import ArchiveChange, ArchivedMessage
from afterword.streams.stores.replies import KeptReply, ReplyOrigin
from afterword.streams.summarizer.amending import WAIT_SECONDS, NotArchived
from afterword.streams.summarizer.retries import Try, headers_of
from afterword.streams.summarizer.rolling import SummaryRules
from afterword.streams.summarizer.summarizer import Summarizer
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from tests.doubles.provider import ScriptedProvider
from tests.samples import NOON, a_closed_episode
from tests.summarizer_world import NO_FAULTS, Crash, Fault, Faults, World, a_handler, cancelled, crash, outage
from tests.virtual_time import run_in_virtual_time

CLOSED = tuple(a_closed_episode(ordinal) for ordinal in (1, 2, 3))
"""m0 m1 m2 · m3 m4 m5 · m6 m7 m8; the overlap of each has the last two of the one before."""
LATER = NOON + timedelta(hours=2)


def archived(episodes: Iterable[EpisodeClosed]) -> list[ArchivedMessage]:
    return [
        ArchivedMessage(MessageCreated(conversation_id="c1", tenant_id="t1", **message.model_dump()), 0, offset)
        for offset, message in enumerate(message for episode in episodes for message in episode.messages)
    ]


async def a_world(provider_rules: SummaryRules | None = None) -> World:
    """Three episodes, summarized, and their messages in the archive."""
    world = World()
    await world.messages.put_many(archived(CLOSED))
    await world.run(CLOSED, **({"rules": provider_rules} if provider_rules else {}))
    world.topic.events.clear()
    world.provider.requests.clear()
    return world


Changed = MessageEdited | MessageDeleted | ConversationDeleted


def edit(message_id: str, content: str = "edited", **fields: Any) -> MessageEdited:
    return MessageEdited(id=message_id, conversation_id="c1", tenant_id="t1", content=content, **fields)


def skip(n: int) -> MessageEdited:
    return MessageEdited(id=f"m{n}", conversation_id="c1", tenant_id="t1", skip_summarization=True)


def delete(message_id: str, tenant_id: str = "t1") -> MessageDeleted:
    return MessageDeleted(id=message_id, conversation_id="c1", tenant_id=tenant_id)


DELETE_ALL = ConversationDeleted(conversation_id="c1", tenant_id="t1")


def amended(event: Changed, offset: int) -> EpisodeAmended:
    return EpisodeAmended(
        conversation_id="c1",
        tenant_id=event.tenant_id,
        message_id=None if isinstance(event, ConversationDeleted) else event.id,
        change="edited" if isinstance(event, MessageEdited) else "deleted",
        partition=0,
        offset=offset,
        amended_at=LATER,
    )


async def archive(world: World, event: Changed, offset: int) -> None:
    await world.messages.change(ArchiveChange(event, 0, offset))


async def amend(world: World, event: Changed, offset: int = 100, **fields: Any) -> bool:
    await archive(world, event, offset)
    return await world.amendments(**fields).apply(amended(event, offset))


def announced(world: World) -> list[str]:
    return [event.event_id for event in world.topic.events]


def contents(episode: EpisodeClosed) -> list[str]:
    return [message.content for message in episode.messages]


def everything(world: World) -> str:
    """All texts and ids that the stores hold of summaries."""
    return repr((world.episodes.episodes, world.episodes.rows, world.episodes.known, world.index.points))


def ended_at(world: World) -> dict[str, int | None]:
    """Offsets at which deleted episodes ended: with them state is rebuilt."""
    return {name: gone.last_offset for name, gone in world.episodes.deleted.items()}


async def test_an_edit_makes_the_next_revision_of_its_episode_with_one_question() -> None:
    world = await a_world()
    await amend(world, edit("m7"))
    [request] = world.provider.requests
    assert contents(request.episode) == ["Text of m6.", "edited", "Text of m8."]
    [event] = world.topic.events
    assert isinstance(event, SummaryCreated)
    assert (event.event_id, event.supersedes, event.reason, event.revision, event.made_from) == (
        "c1:3:2", "c1:3:1", "edited", 2, 1,
    )  # fmt: skip
    assert event.message_ids == ("m6", "m7", "m8")
    assert world.episodes.episodes["c1:3"].summary == event
    assert world.index.points["c1:3"].summary == event
    assert "edited" in world.index.points["c1:3"].raw_text


async def test_a_deletion_leaves_the_message_out_of_summary_counts_and_index() -> None:
    world = await a_world()
    before = world.episodes.known["c1"]
    await amend(world, delete("m7"))
    [event] = world.topic.events
    assert isinstance(event, SummaryCreated)
    assert (event.message_ids, event.message_count, event.reason) == (("m6", "m8"), 2, "deleted")
    assert "m7" not in world.index.points["c1:3"].raw_text
    after = world.episodes.known["c1"]
    assert (after.message_count, after.episode_count) == (before.message_count - 1, 3)
    assert after.token_count < before.token_count


async def test_the_next_episode_follows_only_if_its_overlap_held_the_message() -> None:
    world = await a_world()
    await amend(world, edit("m3"))
    assert [request.episode.episode_id for request in world.provider.requests] == ["c1:2"]
    world = await a_world()
    await amend(world, edit("m4"))
    assert [request.episode.episode_id for request in world.provider.requests] == ["c1:2", "c1:3"]
    assert [message.content for message in world.provider.requests[1].episode.overlap] == ["edited", "Text of m5."]


async def test_later_rolling_texts_are_made_anew_without_the_llm_and_announced() -> None:
    world = await a_world(SummaryRules(rolling_max_tokens=200))
    rules = SummaryRules(rolling_max_tokens=200)
    await amend(world, edit("m0"), rules=rules)
    assert [request.episode.episode_id for request in world.provider.requests] == ["c1:1"]
    assert announced(world) == ["c1:1:2", "c1:2:2", "c1:3:2"]
    third = world.episodes.episodes["c1:3"]
    assert isinstance(third.event, SummaryCreated)
    assert (third.event.usage, third.event.title, third.as_of) == (Usage(), "Episode 3", 100)
    assert third.event.rolling_summary.startswith(world.episodes.episodes["c1:1"].summary.rolling_summary)
    assert world.episodes.rows["c1"][-1].content == third.event.rolling_summary
    assert world.episodes.rows["c1"][-1].as_of == 100


async def test_nothing_of_a_deleted_message_is_in_any_text_that_came_after_it() -> None:
    world = World()
    secret = a_closed_episode(
        1,
        messages=tuple(
            m.model_copy(update={"content": "needle" if m.id == "m0" else m.content}) for m in CLOSED[0].messages
        ),
    )
    await world.messages.put_many(archived((secret, *CLOSED[1:])))
    world.provider.repeats = True
    await world.run((secret, *CLOSED[1:]), rules=SummaryRules(rolling_max_tokens=500))
    assert "needle" in everything(world)
    assert "needle" in world.episodes.episodes["c1:3"].summary.rolling_summary
    await amend(world, delete("m0"), rules=SummaryRules(rolling_max_tokens=500))
    assert "needle" not in everything(world)


async def test_a_rolling_text_that_is_carried_over_is_todays_too() -> None:
    rules = SummaryRules(rolling_max_tokens=500, min_new_episodes=3)
    world = World()
    await world.messages.put_many(archived(CLOSED))
    world.provider.repeats = True
    await world.run(CLOSED, rules=rules)
    assert "Text of m2." in world.episodes.episodes["c1:2"].summary.rolling_summary
    await amend(
        world, delete("m2"), rules=rules
    )  # in the overlap of the second one, which carries the text of the first
    assert "Text of m2." not in everything(world)


async def test_the_last_core_message_takes_the_episode_with_it() -> None:
    world = await a_world()
    for offset, message_id in enumerate(("m6", "m7", "m8"), 100):
        await amend(world, delete(message_id), offset)
    last = world.topic.events[-1]
    assert isinstance(last, SummaryDeleted)
    assert (last.event_id, last.supersedes, last.reason, last.ordinal) == ("c1:3:4", "c1:3:3", "deleted", 3)
    assert await world.episodes.find("c1:3") is None
    assert ended_at(world) == {"c1:3": CLOSED[2].source.last_offset}
    assert "c1:3" not in world.index.points
    conversation = world.episodes.known["c1"]
    assert (conversation.episode_count, conversation.title) == (2, "Episode 2")
    assert world.episodes.rows["c1"][-1].content == world.episodes.episodes["c1:2"].summary.rolling_summary


async def test_a_deleted_episode_does_not_come_back() -> None:
    world = await a_world()
    for offset, message_id in enumerate(("m6", "m7", "m8"), 100):
        await amend(world, delete(message_id), offset)
    before = world.state
    ended = world.topic.events[-1]
    await world.run(CLOSED[2:])
    assert world.topic.events[-1] == ended
    assert world.state == before
    await world.pipeline().replace_fallback(CLOSED[2])
    assert world.state == before


async def test_several_changes_that_wait_make_one_revision() -> None:
    world = await a_world()
    changes = [edit("m6", "one"), edit("m6", "two"), delete("m8")]
    for offset, change in enumerate(changes, 100):
        await archive(world, change, offset)
    amendments = world.amendments()
    for offset, change in enumerate(changes, 100):
        await amendments.apply(amended(change, offset))
    assert len(world.provider.requests) == 1
    assert contents(world.provider.requests[0].episode) == ["two", "Text of m7."]
    assert world.episodes.episodes["c1:3"].summary.revision == 2
    assert {event.event_id for event in world.topic.events} == {"c1:3:2"}


async def test_a_change_that_was_archived_before_its_episode_was_summarised_is_in_its_first_revision() -> None:
    world = World()
    await world.messages.put_many(archived(CLOSED))
    await archive(world, edit("m0"), 100)
    await archive(world, delete("m1"), 101)
    await world.run(CLOSED[:1])
    [request] = world.provider.requests
    assert contents(request.episode) == ["edited", "Text of m2."]
    await world.amendments().apply(amended(edit("m0"), 100))
    await world.amendments().apply(amended(delete("m1"), 101))
    assert len(world.provider.requests) == 1
    assert world.episodes.episodes["c1:1"].summary.revision == 1


async def test_an_episode_whose_messages_were_all_deleted_meanwhile_is_never_shown_to_the_llm() -> None:
    world = World()
    await world.messages.put_many(archived(CLOSED))
    await archive(world, DELETE_ALL, 100)
    await world.run(CLOSED[:1])
    assert world.provider.requests == []
    [event] = world.topic.events
    assert isinstance(event, SummaryDeleted)
    assert (event.revision, event.supersedes) == (1, None)
    assert ended_at(world) == {"c1:1": CLOSED[0].source.last_offset}


async def test_a_retry_of_a_fallback_is_made_of_the_messages_as_they_are_now() -> None:
    world = World()
    await world.messages.put_many(archived(CLOSED))
    away = ProviderUnavailable(problem="away")
    world.provider.script.append(away)
    await world.run(CLOSED[:1], summarizer=Summarizer(world.provider))
    assert world.episodes.episodes["c1:1"].summary.quality.source == "fallback"
    await archive(world, delete("m0"), 100)
    await world.pipeline().replace_fallback(CLOSED[0])
    assert contents(world.provider.requests[-1].episode) == ["Text of m1.", "Text of m2."]
    stored = world.episodes.episodes["c1:1"]
    assert stored.summary.message_ids == ("m1", "m2")
    assert [(one.revision, one.source) for one in stored.earlier] == [(1, "fallback")]


async def test_a_revision_that_is_a_fallback_is_replaced_later() -> None:
    world = await a_world()
    world.provider.script.append(ProviderUnavailable(problem="away"))
    fields = {"summarizer": Summarizer(world.provider)}
    assert await amend(world, edit("m7"), **fields)
    assert world.episodes.episodes["c1:3"].summary.quality.source == "fallback"
    await world.amendments(**fields).replace_fallbacks(amended(edit("m7"), 100), "retry/0/0")
    summary = world.episodes.episodes["c1:3"].summary
    assert (summary.quality.source, summary.revision, summary.supersedes) == ("llm", 3, "c1:3:2")
    earlier = [(one.revision, one.reason, one.source) for one in world.episodes.episodes["c1:3"].earlier]
    assert earlier == [(1, None, "llm"), (2, "edited", "fallback")]


async def test_revisions_before_the_last_are_named_and_none_of_their_texts_is_kept() -> None:
    world = await a_world()
    for count in range(1, MOST_REVISIONS + 3):
        await amend(world, edit("m7"), offset=100 + count)
    stored = world.episodes.episodes["c1:3"]
    assert [one.revision for one in stored.earlier] == [*range(3, MOST_REVISIONS + 3)]
    assert stored.summary.revision == MOST_REVISIONS + 3
    fields = {"revision", "event_id", "reason", "source", "created_at"}
    assert {name for one in stored.earlier for name in one.model_dump()} == fields


async def test_a_summary_that_is_derived_again_names_the_revision_before() -> None:
    world = await a_world()
    await amend(world, delete("m0"))
    later = [stored for stored in world.episodes.episodes.values() if stored.summary.revision > 1]
    assert len(later) > 1
    assert all([one.revision for one in stored.earlier] == [1] for stored in later)


async def test_an_edit_that_takes_a_message_out_of_summaries_leaves_it_in_the_archive() -> None:
    world = await a_world()
    await amend(world, skip(7))
    [event] = world.topic.events
    assert isinstance(event, SummaryCreated)
    assert (event.message_ids, event.reason) == (("m6", "m8"), "edited")
    assert message_key("c1", "m7", "t1") in world.messages.messages


async def test_all_that_is_left_of_a_deleted_conversation_keeps_it_deleted() -> None:
    world = await a_world()
    await amend(world, DELETE_ALL)
    assert [type(event) for event in world.topic.events] == [SummaryDeleted] * 3
    assert world.episodes.episodes == {}
    assert await world.episodes.conversation("c1") is None
    assert [row.content for row in world.episodes.rows["c1"]] == [""]
    assert (world.index.points, world.messages.messages) == ({}, {})
    assert ended_at(world) == {one.episode_id: one.source.last_offset for one in CLOSED}
    await amend(world, DELETE_ALL, 200)
    assert len(world.topic.events) == 3, "a second deletion finds nothing"


async def test_a_writer_that_was_suspended_puts_nothing_back_of_a_deleted_conversation() -> None:
    world = await a_world()
    [row], summary = world.episodes.rows["c1"], world.episodes.episodes["c1:3"].summary
    await amend(world, DELETE_ALL)
    assert not await world.episodes.put_row(row, after=None)
    assert not await world.episodes.put_row(row, after=row)
    await world.episodes.advance(summary)
    assert await world.episodes.conversation("c1") is None
    assert [one.content for one in world.episodes.rows["c1"]] == [""]


async def test_a_deleted_conversation_begins_anew_with_the_next_ordinal() -> None:
    world = await a_world()
    await amend(world, DELETE_ALL)
    fourth = a_closed_episode(4, overlap=())
    fourth = fourth.model_copy(update={"source": fourth.source.model_copy(update={"last_offset": 120})})
    await world.run((fourth,))
    assert world.provider.requests[-1].previous_rolling == ""
    await world.amendments().apply(amended(DELETE_ALL, 100))  # as after a crash
    assert list(world.episodes.episodes) == ["c1:4"]
    conversation = world.episodes.known["c1"]
    assert (conversation.episode_count, conversation.last_ordinal) == (1, 4)
    assert [row.last_ordinal for row in world.episodes.rows["c1"]] == [4]


async def test_kept_answers_of_every_prompt_that_held_it_are_forgotten() -> None:
    world = await a_world()
    expires = datetime.now(UTC) + timedelta(days=1)
    for ordinal in (1, 2, 3):
        origin = ReplyOrigin(scope_id("c1"), ordinal)
        await world.replies.put(f"k{ordinal}", KeptReply("text", Usage(), origin=origin), expires)
    await world.replies.put("other", KeptReply("text", Usage(), origin=ReplyOrigin("c2", 3)), expires)
    await amend(world, edit("m3"))
    assert set(world.replies.kept) == {"k1", "other"}


async def test_unknown_messages_other_tenants_and_changes_before_the_message_are_refused() -> None:
    world = await a_world()
    with pytest.raises(NotArchived) as found:
        await amend(world, edit("nobody"))
    assert not found.value.is_known
    with pytest.raises(InvalidRecord) as refused:
        await amend(world, edit("m7"), offset=3)
    assert refused.value.error_type == "unknown_message"
    with pytest.raises(InvalidRecord) as refused:
        await amend(world, delete("m7", tenant_id="t2"))
    assert refused.value.error_type == "tenant_mismatch"
    with pytest.raises(InvalidRecord) as refused:
        await amend(world, ConversationDeleted(conversation_id="c1", tenant_id="t2"))
    assert refused.value.error_type == "tenant_mismatch"
    assert world.topic.events == []
    assert len(world.episodes.episodes) == 3


async def test_a_change_waits_for_the_archive() -> None:
    world = await a_world()
    with pytest.raises(NotArchived) as found:
        await world.amendments().apply(amended(edit("m7"), 100))
    assert found.value.is_known
    waiting = asyncio.create_task(world.amendments(wait_seconds=30.0).apply(amended(edit("m7"), 100)))
    await asyncio.sleep(0)
    await archive(world, edit("m7"), 100)
    await waiting
    assert announced(world) == ["c1:3:2"]


def test_a_change_of_what_nobody_knows_waits_for_a_moment_only() -> None:
    """1,500 of them, 5 s each, held up every record of `episode.retry` for half an hour."""

    async def seconds_until_put_aside(message_id: str, *, waits: bool) -> float:
        world, began = await a_world(), asyncio.get_running_loop().time()
        with pytest.raises(NotArchived):
            await world.amendments(wait_seconds=WAIT_SECONDS).apply(amended(edit(message_id), 100), waits=waits)
        return asyncio.get_running_loop().time() - began

    assert run_in_virtual_time(seconds_until_put_aside("nobody", waits=True)) < 0.5
    assert run_in_virtual_time(seconds_until_put_aside("nobody", waits=False)) == 0
    assert run_in_virtual_time(seconds_until_put_aside("m7", waits=True)) >= WAIT_SECONDS
    assert run_in_virtual_time(seconds_until_put_aside("m7", waits=False)) == 0


async def test_repeats_are_announced_again_and_change_nothing() -> None:
    world = await a_world()
    changes = [edit("m0"), delete("m4"), delete("m4"), edit("m4", "too late")]
    for offset, change in enumerate(changes, 100):
        await amend(world, change, offset)
    before, asked = world.state, len(world.provider.requests)
    for offset, change in enumerate(changes, 100):
        await amend(world, change, offset)
    assert world.state == before
    assert len(world.provider.requests) == asked
    assert all(len(found) == 1 for found in world.contents_by_event_id().values())


async def test_only_what_replaces_a_fallback_of_a_revision_is_announced_again() -> None:
    world = await a_world()
    fields = {"summarizer": Summarizer(world.provider)}
    world.provider.outage = ProviderUnavailable(problem="away")
    await amend(world, edit("m7"), **fields)
    with pytest.raises(ProviderUnavailable):
        await world.amendments(**fields).replace_fallbacks(amended(edit("m7"), 100), "retry/0/0")
    assert announced(world) == ["c1:3:2"]
    world.provider.outage = None
    await world.amendments(**fields).replace_fallbacks(amended(edit("m7"), 100), "retry/0/1")
    assert announced(world) == ["c1:3:2", "c1:3:3"]


class AnswersOnce(ScriptedProvider):
    """An LLM that goes away after its first answer."""

    def _answer(self, request: SummaryRequest) -> Summary:
        self.outage = ProviderUnavailable(problem="away")
        return super()._answer(request)


async def test_two_fallbacks_of_a_change_are_announced_once_each_though_the_llm_failed_between_them() -> None:
    world = await a_world()
    fields = {"summarizer": Summarizer(world.provider)}
    away = ProviderUnavailable(problem="away")
    world.provider.script.extend([away, away])
    assert await amend(world, edit("m4"), **fields)  # in the second episode, and in the overlap of the third
    assert announced(world) == ["c1:2:2", "c1:3:2"]
    with pytest.raises(ProviderUnavailable):
        await world.amendments(summarizer=Summarizer(AnswersOnce())).replace_fallbacks(
            amended(edit("m4"), 100), "retry/0/0"
        )
    await world.amendments(**fields).replace_fallbacks(amended(edit("m4"), 100), "retry/0/1")
    assert announced(world) == ["c1:2:2", "c1:3:2", "c1:2:3", "c1:3:3"]
    check(world)


@pytest.mark.parametrize("at", range(1, 40))
async def test_a_replacement_that_a_crash_left_unannounced_is_announced_by_the_next_try(at: int) -> None:
    world = await a_world()
    fields = {"summarizer": Summarizer(world.provider)}
    world.provider.script.append(ProviderUnavailable(problem="away"))
    await amend(world, edit("m7"), **fields)
    with contextlib.suppress(Crash):
        await world.amendments(Faults(at, after=False, fault=crash), **fields).replace_fallbacks(
            amended(edit("m7"), 100), "retry/0/0"
        )
    await world.amendments(**fields).replace_fallbacks(amended(edit("m7"), 100), "retry/0/0")
    assert list(dict.fromkeys(announced(world))) == ["c1:3:2", "c1:3:3"]
    check(world)


async def test_a_change_waits_on_the_retry_topic_for_the_archive_and_is_then_made_once() -> None:
    world = await a_world()
    put_aside: list[Try] = []

    async def retry(_record: Any, attempt: Try, _value: bytes) -> None:
        put_aside.append(attempt)

    async def handled(attempt: Try | None = None) -> None:
        value = amended(edit("m7"), 100).to_json()
        headers = [(CE_TYPE, EPISODE_AMENDED.encode()), *(headers_of(attempt) if attempt else [])]
        place = {"topic": "episode.closed", "partition": 0, "offset": 0, "key": b"c1"}
        event = SimpleNamespace(value=SimpleNamespace(**place, value=value, headers=headers), ack=lambda: None)
        handler = a_handler(world.pipeline(), outputs, Retry(), amendments=amendments)
        await (handler.replace_fallback if attempt else handler.summarize)(event)

    outputs: Any = SimpleNamespace(retry=retry)
    amendments = world.amendments(summarizer=Summarizer(world.provider))
    await handled()
    await handled(put_aside[0])
    assert [(attempt.number, attempt.waits) for attempt in put_aside] == [(1, True), (2, True)]
    await archive(world, edit("m7"), 100)
    world.provider.outage = ProviderUnavailable(problem="away")
    await handled(put_aside[1])
    assert announced(world) == ["c1:3:2"]
    assert [(attempt.number, attempt.waits) for attempt in put_aside[2:]] == [(1, False)]
    await handled(put_aside[2])
    assert announced(world) == ["c1:3:2"]
    assert (put_aside[3].number, put_aside[3].waits) == (2, False)


@pytest.mark.parametrize(
    ("event", "changes", "archived_to", "is_put_aside"),
    [
        (edit("m7"), [], 100, True),
        (edit("m7"), [], 101, False),
        (delete("m7"), [], 101, False),
        (delete("m7"), [delete("m7")], 101, True),
        (delete("m7"), [delete("m7")], 201, False),
    ],
    ids=["not there yet", "an edit", "a deletion", "of an episode with a later change", "with a later change, too"],
)
async def test_a_change_that_the_archiver_has_passed_over_is_a_dead_letter_and_waits_no_longer(
    event: Any, changes: list[Any], archived_to: int, is_put_aside: bool
) -> None:
    """With the change at offset 100 in the archive, another message of its episode is not, which was changed at 200."""
    world, outcomes = await a_world(), list[str]()
    for change in changes:
        await archive(world, change, 100)
        world.messages.messages.pop(message_key("c1", "m6", "t1"))
        known = world.episodes.episodes["c1:3"]
        world.episodes.episodes["c1:3"] = replace(known, changes=(("m8", 200),))

    async def retry(*_: Any) -> None:
        outcomes.append("put aside")

    async def send_to_dlq(_key: bytes, _value: bytes, headers: Any) -> None:
        outcomes.append(header(headers, "__afterword.errors.type") or "")

    async def told(partition: int) -> int:
        return archived_to if partition == 0 else 0

    headers = [(CE_TYPE, EPISODE_AMENDED.encode()), *headers_of(Try(1, 0, None, waits=True))]
    place = {"topic": "episode.retry", "partition": 0, "offset": 0, "key": b"c1"}
    value = amended(event, 100).to_json()
    record = SimpleNamespace(value=SimpleNamespace(**place, value=value, headers=headers), ack=lambda: None)
    outputs: Any = SimpleNamespace(retry=retry, send_to_dlq=send_to_dlq)
    handler = a_handler(world.pipeline(), outputs, Retry(), amendments=world.amendments(), archived_to=told)
    await handler.replace_fallback(record)
    assert outcomes == ["put aside" if is_put_aside else "not_archived"]


NUMBERED = tuple(
    closed.model_copy(
        update={
            field: tuple(m.model_copy(update={"content": f"<{m.id}>"}) for m in getattr(closed, field))
            for field in ("messages", "overlap")
        }
    )
    for closed in CLOSED
)
"""The content of each message is its id."""
ONE_EACH = st.lists(st.integers(0, 8), min_size=1, max_size=4, unique=True).flatmap(
    lambda numbers: st.tuples(
        *(st.sampled_from([edit(f"m{n}", f"edited {n}"), delete(f"m{n}"), skip(n)]) for n in numbers)
    )
)


@given(ONE_EACH, st.sampled_from([20, 500]), st.randoms(use_true_random=False))
def test_a_change_that_waited_and_was_overtaken_leaves_nothing_of_before(
    changes: tuple[MessageEdited | MessageDeleted, ...], rolling_max_tokens: int, random: Random
) -> None:
    async def scenario() -> None:
        world, rules = World(), SummaryRules(rolling_max_tokens)
        world.provider.repeats = True
        await world.messages.put_many(archived(NUMBERED))
        await world.run(NUMBERED, rules=rules)
        handled = list(enumerate(changes, 100))
        for offset, change in handled:
            await archive(world, change, offset)
        random.shuffle(handled)
        for offset, change in handled:
            await world.amendments(rules=rules).apply(amended(change, offset))
        check(world)
        assert [change.id for change in changes if f"<{change.id}>" in everything(world)] == []

    asyncio.run(scenario())


async def test_what_was_built_on_a_fallback_has_nothing_of_a_message_deleted_before_its_last_try() -> None:
    world, rules, deletion = World(), SummaryRules(500), delete("m0")
    world.provider.repeats = True
    world.provider.script.append(ProviderUnavailable(problem="away"))
    await world.messages.put_many(archived(NUMBERED))
    await world.run(NUMBERED, summarizer=Summarizer(world.provider), rules=rules)
    await archive(world, deletion, 100)
    left = await world.pipeline(rules=rules).left_of(NUMBERED[0])
    assert left is not None
    await world.pipeline(rules=rules).replace_fallback(left)
    assert "<m0>" in everything(world)
    await world.amendments(rules=rules).apply(amended(deletion, 100))
    check(world)
    assert "<m0>" not in everything(world)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, 24))
async def test_a_change_that_crashed_and_was_overtaken_is_announced(at: int, after: bool) -> None:
    world = await a_world()
    changes = [(100, edit("m6", "one")), (101, edit("m7", "two"))]
    for offset, change in changes:
        await archive(world, change, offset)
    with contextlib.suppress(Crash):
        await world.amendments(Faults(at, after, crash)).apply(amended(changes[0][1], 100))
    for offset, change in reversed(changes):
        await world.amendments().apply(amended(change, offset))
    check(world)


CHANGES = st.lists(
    st.one_of(
        st.integers(0, 8).map(lambda n: edit(f"m{n}", f"edited {n}")),
        st.integers(0, 8).map(lambda n: delete(f"m{n}")),
        st.integers(0, 8).map(
            lambda n: MessageEdited(id=f"m{n}", conversation_id="c1", tenant_id="t1", skip_summarization=True)
        ),
        st.just(DELETE_ALL),
    ),
    min_size=1,
    max_size=6,
)
RULES = st.sampled_from([SummaryRules(rolling_max_tokens=20), SummaryRules(rolling_max_tokens=200, min_new_episodes=2)])


async def changed(world: World, changes: list[Changed], faults: Faults, rules: SummaryRules, ahead: bool) -> None:
    """`ahead`: the archive has all of them before the first is handled."""
    for offset, change in enumerate(changes, 100):
        if not ahead:
            await archive(world, change, offset)
        await world.amendments(faults, rules=rules).apply(amended(change, offset))


def check(world: World, *, rows_know: bool = True) -> None:
    """Every text is made of the living as they are now, revisions have no gaps, and rows and counts follow.

    `rows_know`: the rows' own `as_of` has all changes too.
    """
    living = {m.message.id: m for m in world.messages.messages.values() if not m.message.skip_summarization}
    stored = world.episodes.episodes
    assert {i for e in stored.values() for i in e.summary.message_ids} == set(living)
    newest = max((o for e in (*stored.values(), *world.episodes.deleted.values()) for _, o in e.changes), default=-1)
    for episode in stored.values():
        for message_id in episode.summary.message_ids:
            assert dict(episode.changes).get(message_id, -1) >= living[message_id].changed
        before = [e for e in (*stored.values(), *world.episodes.deleted.values()) if e.ordinal <= episode.ordinal]
        assert episode.as_of >= max((o for e in before for _, o in e.changes), default=-1)
        assert world.index.points[episode.summary.episode_id].summary == episode.summary
    assert set(world.index.points) == set(stored)
    for row in world.episodes.rows["c1"]:
        until = [e for e in stored.values() if e.ordinal <= row.last_ordinal]
        assert row.content in {e.summary.rolling_summary for e in stored.values()} if until else not row.content
        assert not rows_know or newest == -1 or row.as_of >= max((o for e in until for _, o in e.changes), default=-1)
    conversation = world.episodes.known.get("c1")
    assert conversation is None or bool(conversation.episode_count) == bool(stored)
    if conversation and stored:
        assert conversation.message_count == len(living)
        assert conversation.episode_count == len(stored)
    revisions: dict[str, set[int]] = {}
    for event in world.topic.events:
        revisions.setdefault(event.episode_id, set()).add(event.revision)
    for episode_id, found in revisions.items():
        assert found <= set(range(1, max(found) + 1))
        final = stored.get(episode_id) or world.episodes.deleted[episode_id]
        assert max(found) == final.event.revision
        assert final.event in world.topic.events
    assert all(len(found) == 1 for found in world.contents_by_event_id().values())


@given(CHANGES, RULES, st.booleans())
def test_any_changes_leave_revisions_texts_and_counts_of_the_living_only(
    changes: list[Changed], rules: SummaryRules, ahead: bool
) -> None:
    async def scenario() -> None:
        world = World()
        await world.messages.put_many(archived(CLOSED))
        await world.run(CLOSED, rules=rules)
        if ahead:
            for offset, change in enumerate(changes, 100):
                await archive(world, change, offset)
        await changed(world, changes, NO_FAULTS, rules, ahead)
        check(world)

    asyncio.run(scenario())


@given(CHANGES, RULES, st.integers(1, 60), st.booleans(), st.sampled_from([crash, cancelled, outage]))
def test_a_crash_or_an_outage_at_any_call_ends_the_same(
    changes: list[Changed], rules: SummaryRules, at: int, after: bool, fault: Fault
) -> None:
    async def scenario() -> None:
        world = World()
        await world.messages.put_many(archived(CLOSED))
        await world.run(CLOSED, rules=rules)
        faults = Faults(at, after, fault)
        for offset, change in enumerate(changes, 100):
            await archive(world, change, offset)
            try:
                await world.amendments(faults, rules=rules).apply(amended(change, offset))
            except (Crash, asyncio.CancelledError):  # the next worker handles it again
                await world.amendments(rules=rules).apply(amended(change, offset))
        check(world)

    asyncio.run(scenario())


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, 60))
async def test_a_crash_while_only_what_was_derived_is_made_again_leaves_nothing_unannounced(
    at: int, after: bool
) -> None:
    world = await a_world()
    await amend(world, skip(0))
    await archive(world, edit("m0"), 101)
    with contextlib.suppress(Crash):
        await world.amendments(Faults(at, after, crash)).apply(amended(edit("m0"), 101))
    await world.amendments().apply(amended(edit("m0"), 101))
    check(world)


@pytest.mark.parametrize("later", [edit("m1"), delete("m4"), edit("m6"), delete("m8")])
@pytest.mark.parametrize("at", range(1, 60, 2))
async def test_a_former_owner_makes_nothing_of_a_later_change_that_its_successor_would_not_announce(
    at: int, later: Changed
) -> None:
    """The former owner was suspended in a change that its successor has finished; what it announces is aborted."""
    world, another = await a_world(), a_closed_episode(4)
    await amend(world, edit("m0"), 100)
    await world.messages.put_many([replace(one, offset=200 + one.offset) for one in archived([another])])
    await world.run((another,))
    await archive(world, later, 300)
    with contextlib.suppress(Crash):
        await world.amendments(Faults(at, False, crash)).apply(amended(later, 300))
    before = list(world.topic.events)
    await world.amendments().apply(amended(edit("m0"), 100))
    world.topic.events[:] = before
    await world.amendments().apply(amended(later, 300))
    check(world)
    for episode in (*world.episodes.episodes.values(), *world.episodes.deleted.values()):
        assert episode.event.revision == 1 or episode.event in world.topic.events


async def test_a_later_change_of_a_deleted_message_announces_nothing() -> None:
    world = await a_world()
    for offset, change in enumerate([delete("m4"), delete("m4"), edit("m4", "too late")], 100):
        await amend(world, change, offset)
    assert len(announced(world)) == len(set(announced(world)))


async def test_a_retry_of_an_episode_leaves_what_a_change_has_made_to_the_changes_record() -> None:
    world = World()
    await world.messages.put_many(archived(CLOSED))
    world.provider.outage = ProviderUnavailable(problem="away")
    await world.run(CLOSED, summarizer=Summarizer(world.provider))
    world.provider.outage = None
    await amend(world, edit("m7"))
    await amend(world, delete("m0"), 101)
    await amend(world, delete("m1"), 102)
    await archive(world, delete("m2"), 103)  # and its record is still to come
    world.topic.events.clear()
    await world.pipeline().replace_fallback(CLOSED[2])
    await world.pipeline().replace_fallback(CLOSED[0])
    assert announced(world) == []


async def test_an_episode_that_comes_again_after_a_change_leaves_the_revision_to_the_changes_record() -> None:
    world = await a_world()
    await amend(world, edit("m7"))
    await world.pipeline().process(CLOSED[2])
    assert announced(world) == ["c1:3:2"]


async def test_edits_with_many_flows_and_tools_make_no_summary_that_its_topic_refuses() -> None:
    world = await a_world()
    for n in range(3):
        flows = tuple(f"flow {n} {number}" for number in range(20_000))
        await archive(world, edit(f"m{n}", flows=flows, tools=(f"tool {n} " + 100_000 * "x",)), 100 + n)
    for n in range(3):
        await world.amendments().apply(amended(edit(f"m{n}"), 100 + n))
    [told, *_] = world.topic.events
    assert isinstance(told, SummaryCreated)
    assert len(told.to_json()) < 800_000
    assert told.metrics.flows_activated[:2] == ("flow 0 0", "flow 0 1")


@pytest.mark.parametrize("min_new_episodes", [1, 20])
async def test_what_was_before_many_deleted_episodes_stays_in_the_rolling_summary(min_new_episodes: int) -> None:
    gone = MOST_PENDING_EPISODES + 2
    closed = tuple(a_closed_episode(ordinal, size=1, overlap=()) for ordinal in range(1, gone + 5))
    rules = SummaryRules(rolling_max_tokens=2000, min_new_episodes=min_new_episodes)
    world = World()
    await world.messages.put_many(archived(closed))
    await world.run(closed[: gone + 3], rules=rules)
    for ordinal in range(4, gone + 4):
        await amend(world, delete(f"m{ordinal - 1}"), 100 + ordinal, rules=rules)
    await world.run(closed[gone + 3 :], rules=rules)
    await amend(world, edit(f"m{gone + 3}"), 200, rules=rules)
    before = world.provider.requests[-1].previous_rolling
    assert [f"Episode {ordinal} has" in before for ordinal in (1, 2, 3, 4)] == [True, True, True, False]


async def test_a_deletion_that_the_segmenter_rejected_is_made_when_it_is_sent_again() -> None:
    """The archiver has taken it the first time: then the archive has an earlier deletion than the record."""
    world = await a_world()
    await archive(world, delete("m4"), 100)
    assert await world.messages.pending_deletions(["c1"], 9) != []
    await amend(world, delete("m4"), 200)
    second, third = world.episodes.episodes["c1:2"], world.episodes.episodes["c1:3"]
    assert (second.summary.message_ids, third.overlap_ids) == (("m3", "m5"), ("m5",))
    assert sorted(announced(world)) == ["c1:2:2", "c1:3:2"]
    assert await world.messages.pending_deletions(["c1"], 9) == []
    await amend(world, edit("m5"), 201)
    await amend(world, edit("m4"), 202)
    assert len(announced(world)) == len(set(announced(world)))
