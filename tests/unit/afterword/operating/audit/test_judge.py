"""Every finding makes the report fail, and work in progress does not."""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.operating.audit import EXAMPLES_NAMED, FATES, STANDING, derive_expected
from afterword.operating.evidence import digest, digest_of_message, open_evidence
from afterword.streams.kafka.clients import Position
from tests.unit.afterword.operating.audit.snapshot import (
    AgentFlush,
    AmendmentRecord,
    Announced,
    Archived,
    Closed,
    Core,
    Current,
    MessageChange,
    Pending,
    ProducedMessage,
    Snapshot,
    Stored,
    judged,
)

CONVERSATION = "c"


def produced(n: int, offset: int, skipped: bool = False, content: str | None = None) -> ProducedMessage:
    text = f"text {n}" if content is None else content
    return ProducedMessage(Position(0, offset), CONVERSATION, message(n), digest(text), skipped)


def pending(offset: int, scope: str = CONVERSATION) -> Pending:
    return Pending(Position(0, offset), scope)


def message(n: int) -> bytes:
    return digest_of_message(CONVERSATION, str(n))


def closed(ordinal: int, numbers: Sequence[int], offset: int, revision: int = 1, fingerprint: str = "f") -> Closed:
    core = tuple(Core(message(n), digest(f"text {n}")) for n in numbers)
    return Closed(
        Position(0, offset),
        f"{CONVERSATION}:{ordinal}",
        revision,
        CONVERSATION,
        ordinal,
        fingerprint,
        fingerprint,
        core,
        hash(tuple(map(str, numbers))),
        min(numbers, default=0) - 1,
        max(numbers, default=0) - 1,
    )


def announcement(episode: Closed, event: str = "e") -> Announced:
    event_id = f"{episode.episode_id}:{episode.revision}"
    return Announced(event_id, episode.episode_id, episode.revision, digest(event), episode.message_ids)


def clean_facts() -> Snapshot:
    """Make six messages: two episodes of two, one message pending, and one not consumed. Everything closed is
    summarized.
    """
    episodes = [closed(1, [1, 2], offset=0), closed(2, [3, 4], offset=2)]
    labels = {
        message(n): Archived(e.episode_id, True) for e, ns in zip(episodes, ([1, 2], [3, 4]), strict=True) for n in ns
    }
    return Snapshot(
        produced=[produced(n, offset=n - 1) for n in range(1, 7)],
        consumed={0: 5},
        archived_to={0: 6},
        pending={pending(4)},
        closed=episodes,
        summarized_to={0: 3},
        announced=[announcement(e) for e in episodes],
        stored={e.episode_id: Stored("f") for e in episodes},
        messages=labels | {message(n): Archived(None, True) for n in (5, 6)},
        indexed={e.episode_id for e in episodes},
    )


@pytest.fixture
def snapshot() -> Snapshot:
    return clean_facts()


def kinds(snapshot: Snapshot) -> set[str]:
    return set(judged(snapshot).findings)


def test_consistent_deployment_is_clean(snapshot):
    report = judged(snapshot)
    assert report.clean
    assert report.messages == {
        "total": 6,
        "skipped": 0,
        "duplicates": 0,
        "dead_lettered": 0,
        "in_an_episode": 4,
        "pending": 1,
        "not_consumed": 1,
        "deleted": 0,
        "no_trace_left": 0,
        "lost": 0,
        "flushes": 0,
        "changes": 0,
        "changed_repeats": 0,
        "expired": 0,
        "archived": 6,
    }
    assert (report.episodes["total"], report.summaries["announced"], report.summaries["repeats"]) == (2, 2, 0)


def test_empty_deployment_is_clean():
    assert judged(Snapshot()).clean


# What breaks the promise


def second(snapshot: Snapshot, *numbers: int) -> None:
    """Let the second episode hold these messages."""
    snapshot.closed[1] = closed(2, numbers, offset=2)


def archive(snapshot: Snapshot, n: int, archived: Archived) -> None:
    snapshot.messages[message(n)] = archived


def set_fields(snapshot: Snapshot, **fields: Any) -> None:
    vars(snapshot).update(fields)


def stored(snapshot: Snapshot, ordinal: int, **fields: Any) -> None:
    episode_id = f"{CONVERSATION}:{ordinal}"
    snapshot.stored[episode_id] = snapshot.stored[episode_id]._replace(**fields)


def amend_and_store(snapshot: Snapshot, made: MessageChange, ordinal: int, **fields: Any) -> None:
    amend(snapshot, made)
    stored(snapshot, ordinal, **fields)


def delete_second_but_not_from_the_index(snapshot: Snapshot) -> None:
    amend(snapshot, change(3, 30), change(4, 31))
    del snapshot.stored["c:2"]
    snapshot.gone.add("c:2")


def archive_a_content_that_was_sent_later(snapshot: Snapshot) -> None:
    snapshot.produced.append(produced(6, offset=6, content="said again, otherwise"))
    snapshot.messages[message(6)] = Archived(None, True, digest("said again, otherwise"), Position(0, 5))


def produce_to_another_partition(snapshot: Snapshot) -> None:
    snapshot.produced[4] = snapshot.produced[4]._replace(position=Position(1, 0))
    snapshot.pending = {Pending(Position(1, 0), pending(4).scope)}
    snapshot.consumed[1] = 1


def change(n: int, offset: int, content: str | None = None) -> MessageChange:
    """An edit, or without a content a deletion."""
    is_deletion = content is None
    made = None if content is None else digest(content)
    return MessageChange(Position(0, offset), CONVERSATION, None, message(n), made, is_deletion, is_deletion)


def amend(snapshot: Snapshot, *changes: MessageChange) -> None:
    """Change messages of episodes. All workers have handled the changes."""
    for number, made in enumerate(changes):
        snapshot.changes.append(made)
        snapshot.amended.append(AmendmentRecord(Position(0, 10 + number), CONVERSATION, made.message, made.position))
    snapshot.consumed, snapshot.archived_to, snapshot.summarized_to = {0: 50}, {0: 50}, {0: 50}
    snapshot.pending |= {pending(5)}
    for ordinal, numbers in ((1, (1, 2)), (2, (3, 4))):
        living = frozenset(
            message(n) for n in numbers if not any(c.message == message(n) and c.leaves for c in changes)
        )
        made_with = tuple((c.message, c.position.offset) for c in changes if c.message)
        known = snapshot.stored[f"{CONVERSATION}:{ordinal}"]
        snapshot.stored[f"{CONVERSATION}:{ordinal}"] = known._replace(messages=living, changes=made_with)
    for made in changes:
        known = snapshot.messages[made.message or b""]
        stub = Archived(None, False, changed=made.position.offset)
        edited = known._replace(content=made.content, changed=made.position.offset)
        snapshot.messages[made.message or b""] = stub if made.is_deletion else edited


def keep_a_deleted_message_in_the_archive(snapshot: Snapshot) -> None:
    known = snapshot.messages[message(1)]
    amend(snapshot, change(1, 30))
    snapshot.messages[message(1)] = known


def archive_an_old_content(snapshot: Snapshot) -> None:
    amend(snapshot, change(1, 30, "new"))
    snapshot.messages[message(1)] = snapshot.messages[message(1)]._replace(content=digest("text 1"), changed=-1)


def keep_current(snapshot: Snapshot) -> list[Current]:
    current = [
        *(Current("episode", one.episode_id, False, one.revision) for one in snapshot.closed),
        Current("conversation", CONVERSATION, False),
    ]
    snapshot.current = current
    return current


def keep_an_old_revision_current(snapshot: Snapshot) -> None:
    keep_current(snapshot)
    [_, last] = snapshot.announced
    snapshot.announced.append(last._replace(event_id="c:2:2", revision=2))


def delete_all_that_is_current(snapshot: Snapshot) -> list[Current]:
    current = keep_current(snapshot)
    snapshot.stored, snapshot.indexed = {}, set()
    for one in snapshot.closed:
        snapshot.ended[f"{one.episode_id}:2"] = one.episode_id
        snapshot.gone.add(one.episode_id)
        current.append(Current("episode", one.episode_id, True, 2))
    current.append(Current("conversation", CONVERSATION, True))
    return current


def keep_a_fact_of_a_deleted_message(snapshot: Snapshot) -> None:
    known = snapshot.stored[f"{CONVERSATION}:1"]
    snapshot.stored[f"{CONVERSATION}:1"] = known._replace(sources=frozenset({message(1), message(2)}))
    amend(snapshot, change(1, 30))


def assign(snapshot: Snapshot, *users: str) -> None:
    """Assign the conversation's messages from each of these users to the next, at the offsets 30, 31, …"""
    for offset, (earlier, user) in enumerate(pairwise(users), 30):
        snapshot.assigned.append((0, offset, CONVERSATION, None, earlier, user))
        snapshot.amended.append(AmendmentRecord(Position(0, offset), CONVERSATION, None, Position(0, offset)))
    snapshot.summarized_to = {0: 1000}


def keep_an_assigned_episode(snapshot: Snapshot) -> None:
    assign(snapshot, "guest", "ann")
    snapshot.users = [(f"{CONVERSATION}:1", CONVERSATION, None, "guest")]


@pytest.mark.parametrize("user", ["guest", "ann"])
def test_users_handed_back_or_on_are_no_finding(snapshot: Snapshot, user: str) -> None:
    assign(snapshot, *(("guest", "ann", "guest") if user == "guest" else ("guest", "bob", "ann")))
    snapshot.users = [(f"{CONVERSATION}:1", CONVERSATION, None, user)]
    assert judged(snapshot).findings == {}


def test_episodes_with_facts_are_counted(snapshot: Snapshot) -> None:
    known = snapshot.stored[f"{CONVERSATION}:1"]
    snapshot.stored[f"{CONVERSATION}:1"] = known._replace(sources=frozenset({message(1), message(2)}))
    assert judged(snapshot).summaries["with_facts"] == 1


BREAKAGES: dict[str, tuple[str, Callable[[Snapshot], object]]] = {
    "a message is nowhere": ("lost", lambda s: s.pending.clear()),
    "a bad record is nowhere": ("lost", lambda s: set_fields(s, refused={Position(1, 0)}, consumed={0: 5, 1: 1})),
    "the archive keeps a deleted message": ("resurrected", keep_a_deleted_message_in_the_archive),
    "an episode keeps a deleted message": (
        "resurrected",
        lambda s: amend_and_store(s, change(1, 30), 1, messages=frozenset({message(1), message(2)})),
    ),
    "the index keeps a deleted episode": ("resurrected", delete_second_but_not_from_the_index),
    "a fact of a deleted message is kept": ("fact_without_source", keep_a_fact_of_a_deleted_message),
    "an assigned episode is kept": ("not_handed_over", keep_an_assigned_episode),
    "an old content is archived": ("stale", archive_an_old_content),
    "an old content is summarized": ("stale", lambda s: amend_and_store(s, change(1, 30, "new"), 1, changes=())),
    "a message is in two episodes": ("duplicated", lambda s: second(s, 3, 4, 2)),
    "a message is twice in an episode": ("duplicated", lambda s: second(s, 3, 4, 4)),
    "a closed message is pending": ("duplicated", lambda s: s.pending.add(pending(0))),
    "messages are swapped": ("out_of_order", lambda s: s.closed.__setitem__(0, closed(1, [2, 1], offset=0))),
    "episodes are swapped": (
        "out_of_order",
        lambda s: set_fields(s, closed=[closed(1, [3, 4], offset=0), closed(2, [1, 2], offset=2)]),
    ),
    "a content is another": ("altered", lambda s: s.produced.__setitem__(0, produced(1, 0, content="really said"))),
    "a message is invented": ("unknown_message", lambda s: second(s, 3, 4, 99)),
    "a skipped message is summarized": (
        "excluded_message",
        lambda s: s.produced.__setitem__(0, produced(1, offset=0, skipped=True)),
    ),
    "a dead letter is summarized": ("excluded_message", lambda s: s.dead.add(Position(0, 0))),
    "an episode is another agent's": (
        "wrong_agent",
        lambda s: set_fields(
            s, max_agents=2, closed=[s.closed[0], s.closed[1]._replace(episode_id="c/y:1", ordinal=1)]
        ),
    ),
    "a row is damaged": ("state_unreadable", lambda s: s.damaged.append((CONVERSATION, 0, "it is not JSON"))),
    "a conversation is in two partitions": ("two_partitions", produce_to_another_partition),
    "a message is not archived": ("not_archived", lambda s: s.messages.pop(message(6))),
    "another content is archived": (
        "archived_differently",
        lambda s: archive(s, 6, Archived(None, True, digest("what nobody said"), Position(0, 5))),
    ),
    "a content that was sent later is archived": ("archived_differently", archive_a_content_that_was_sent_later),
    "an ordinal is skipped": ("ordinal_gap", lambda s: s.closed.__setitem__(1, closed(3, [3, 4], offset=2))),
    "ordinals begin at two": (
        "ordinal_gap",
        lambda s: set_fields(s, closed=[closed(2, [1, 2], offset=0), closed(3, [3, 4], offset=2)]),
    ),
    "an episode is committed twice": (
        "committed_twice",
        lambda s: s.closed.append(s.closed[0]._replace(position=Position(0, 4))),
    ),
    "a conflicting episode is committed": (
        "committed_twice",
        lambda s: s.closed.append(closed(1, [1, 2, 3], offset=4, fingerprint="other")),
    ),
    "a fingerprint is wrong": (
        "fingerprint_wrong",
        lambda s: s.closed.__setitem__(0, s.closed[0]._replace(recomputed="other")),
    ),
    "an episode is not stored": ("not_stored", lambda s: s.stored.pop("c:1")),
    "an episode is stored differently": ("stored_differently", lambda s: s.stored.update({"c:1": Stored("other")})),
    "a message has no label": ("label_wrong", lambda s: archive(s, 2, Archived(None, True))),
    "a message has another episode's label": ("label_wrong", lambda s: archive(s, 2, Archived("c:2", True))),
    "an episode is not indexed": ("not_indexed", lambda s: set_fields(s, indexed={"c:1"})),
    "an older revision is indexed": (
        "not_indexed",
        lambda s: set_fields(s, stored={name: one._replace(revision=2) for name, one in s.stored.items()}),
    ),
    "an episode is not announced": ("not_announced", lambda s: s.announced.pop()),
    "two contents are announced": (
        "announced_differently",
        lambda s: s.announced.append(announcement(s.closed[0], event="another summary")),
    ),
    "a wrong id is announced": (
        "announced_wrongly",
        lambda s: s.announced.append(s.announced[0]._replace(event_id="c:1:7")),
    ),
    "other messages are announced": (
        "announced_wrongly",
        lambda s: s.announced.__setitem__(0, s.announced[0]._replace(message_ids=hash(("9",)))),
    ),
    "an episode is announced that never closed": (
        "announced_wrongly",
        lambda s: s.announced.append(announcement(closed(9, [9], offset=9))),
    ),
    "an episode is not current": ("not_current", lambda s: keep_current(s).pop(0)),
    "an old revision is current": ("not_current", keep_an_old_revision_current),
    "a deleted episode is current": (
        "resurrected",
        lambda s: delete_all_that_is_current(s).append(Current("episode", "c:2", False, 1)),
    ),
    "a deleted conversation is current": (
        "resurrected",
        lambda s: delete_all_that_is_current(s).append(Current("conversation", CONVERSATION, False)),
    ),
}


def damage(snapshot: Snapshot, breakage: str) -> None:
    BREAKAGES[breakage][1](snapshot)


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_broken_promise_turns_the_report_red(snapshot, breakage):
    damage(snapshot, breakage)
    kind = BREAKAGES[breakage][0]
    report = judged(snapshot)
    assert not report.clean
    assert kind in report.findings
    assert report.findings[kind].examples


@pytest.mark.parametrize(
    "breakage",
    [
        "a message is nowhere",
        "a row is damaged",
        "a conversation is in two partitions",
        "an episode is not stored",
        "an episode is not announced",
        "a content is another",
        "two contents are announced",
        "another content is archived",
    ],
)
def test_one_breakage_is_one_kind_of_finding(snapshot, breakage):
    damage(snapshot, breakage)
    assert len(kinds(snapshot)) == 1


# What does not


def test_current_compacted_topics_give_no_finding(snapshot):
    keep_current(snapshot)
    assert judged(snapshot).clean
    delete_all_that_is_current(snapshot)
    assert not kinds(snapshot) & {"not_current", "resurrected"}
    snapshot.current = [one for one in snapshot.current if not one.is_gone]  # only the tombstones count
    assert kinds(snapshot) >= {"resurrected"}
    snapshot.current.clear()
    assert not kinds(snapshot) & {"not_current", "resurrected"}


def test_stale_record_of_a_grown_compacted_topic_is_fine(snapshot):
    delete_all_that_is_current(snapshot)
    snapshot.current = [one._replace(partition=1) for one in snapshot.current]
    snapshot.current.append(Current("episode", "c:2", False, 1))
    assert not kinds(snapshot) & {"not_current", "resurrected"}


def test_changes_followed_everywhere_give_no_finding(snapshot):
    amend(snapshot, change(1, 30, "new"), change(3, 31))
    report = judged(snapshot)
    assert report.clean, report.findings
    assert report.messages["changes"] == 2


def test_edit_of_a_message_deleted_earlier_is_fine(snapshot):
    amend(snapshot, change(1, 30, "new"), change(1, 31))
    known = snapshot.stored[f"{CONVERSATION}:1"]
    snapshot.stored[f"{CONVERSATION}:1"] = known._replace(changes=())
    report = judged(snapshot)
    assert report.clean, report.findings


def test_edit_of_a_deleted_and_repeated_message_is_fine(snapshot):
    amend(snapshot, change(1, 30))
    again = snapshot.produced[0]._replace(position=Position(0, 31))
    snapshot.produced.append(again)
    edit = change(1, 32, "new")
    snapshot.changes.append(edit)
    snapshot.amended.append(AmendmentRecord(Position(0, 20), CONVERSATION, edit.message, edit.position))
    report = judged(snapshot)
    assert report.clean, report.findings


def test_edit_without_effect_is_no_finding(snapshot):
    amend(snapshot, change(1, 30, "text 1"), change(3, 31, "new"))
    snapshot.messages[message(1)] = Archived("c:1", True)
    first, second = (f"{CONVERSATION}:{n}" for n in (1, 2))
    snapshot.stored[first] = snapshot.stored[first]._replace(changes=())
    report = judged(snapshot)
    assert report.clean, report.findings
    snapshot.stored[second] = snapshot.stored[second]._replace(changes=())
    assert kinds(snapshot) == {"stale"}


def test_unhandled_changes_give_no_finding(snapshot):
    amend(snapshot, change(1, 30, "new"))
    snapshot.stored[f"{CONVERSATION}:1"] = snapshot.stored[f"{CONVERSATION}:1"]._replace(changes=())
    snapshot.summarized_to = {0: 3}
    assert judged(snapshot).clean


def test_message_deleted_while_pending_is_not_lost(snapshot):
    snapshot.changes.append(change(5, 6))
    snapshot.consumed, snapshot.pending = {0: 7}, {pending(5)}
    report = judged(snapshot)
    assert report.clean, report.findings
    assert (report.messages["deleted"], report.messages["pending"]) == (1, 1)


def test_message_deleted_while_pending_and_resent_is_not_lost(snapshot):
    snapshot.dedupe_window = 3
    snapshot.changes.append(change(5, 6))
    snapshot.produced += [produced(7, offset=7), produced(8, offset=8), produced(5, offset=9)]
    snapshot.consumed, snapshot.pending = {0: 10}, set()
    snapshot.closed.append(closed(3, [6, 7, 8, 5], offset=4)._replace(first_offset=5, last_offset=9))
    report = judged(snapshot)
    assert report.clean, report.findings
    assert (report.messages["deleted"], report.messages["in_an_episode"]) == (1, 8)
    snapshot.closed.append(closed(4, [5], offset=5)._replace(first_offset=9, last_offset=9))
    assert "duplicated" in kinds(snapshot)


def test_work_in_progress_is_counted_without_a_finding(snapshot):
    snapshot.closed.append(closed(3, [5], offset=4))
    snapshot.pending.clear()
    report = judged(snapshot)
    assert report.clean
    assert report.summaries["not_yet_summarized"] == 1


def test_message_that_moves_during_the_audit_is_no_duplicate(snapshot):
    damage(snapshot, "a closed message is pending")
    snapshot.quiet = False
    assert judged(snapshot).clean


def test_unconsumed_second_partition_gives_no_finding(snapshot):
    produce_to_another_partition(snapshot)
    snapshot.pending.clear()
    del snapshot.consumed[1]
    assert judged(snapshot).clean


def test_announcement_during_the_audit_gives_no_finding(snapshot):
    damage(snapshot, "an episode is announced that never closed")
    snapshot.quiet = False
    assert judged(snapshot).clean


def test_repeats_of_one_event_are_counted(snapshot):
    snapshot.announced.append(snapshot.announced[0])
    report = judged(snapshot)
    assert report.clean
    assert report.summaries["repeats"] == 1


def test_replaced_fallback_is_one_episode_and_clean(snapshot):
    again = {"event_id": "c:1:2", "revision": 2, "event": digest("again")}
    snapshot.announced.append(snapshot.announced[0]._replace(**again))
    report = judged(snapshot)
    assert report.clean
    counts = report.summaries
    assert (counts["announced"], counts["repeats"], counts["superseded"]) == (2, 0, 1)


def test_episode_closed_again_later_gets_the_next_number(snapshot):
    snapshot.closed.append(closed(1, [1, 2], offset=4, revision=2))
    snapshot.summarized_to = {0: 5}
    snapshot.stored["c:1"] = Stored("f")
    first = snapshot.announced[0]
    snapshot.announced += [
        first._replace(event_id="c:1:2", revision=2),
        first._replace(event_id="c:1:3", revision=3),
    ]
    assert judged(snapshot).clean


def test_repeated_message_is_a_dropped_duplicate(snapshot):
    snapshot.produced.append(produced(1, offset=6))
    snapshot.consumed[0] = 7
    snapshot.pending.add(pending(5))
    report = judged(snapshot)
    assert report.clean
    assert report.messages["duplicates"] == 1


def test_changed_repeat_counts_as_an_edit(snapshot):
    snapshot.produced.append(produced(1, offset=6, content="said again, otherwise"))
    snapshot.consumed, snapshot.archived_to = {0: 7}, {0: 7}
    snapshot.pending.add(pending(5))
    snapshot.messages[message(1)] = Archived("c:1", True, digest("said again, otherwise"), Position(0, 0), changed=6)
    report = judged(snapshot)
    assert report.clean, report.findings
    assert (report.messages["changed_repeats"], report.messages["changes"]) == (1, 0)
    snapshot.messages[message(1)] = Archived("c:1", True, position=Position(0, 0))
    assert kinds(snapshot) == {"stale"}
    snapshot.repeats_edit = False  # the archiver passes over it, and the segmenter rejects it
    assert judged(snapshot).clean


def test_first_archived_content_stays(snapshot):
    snapshot.messages[message(1)] = Archived("c:1", True, digest("text 1"), Position(0, 0))
    snapshot.produced.append(produced(1, offset=6, content="sent again, otherwise"))
    assert judged(snapshot).clean


def test_content_of_an_expired_record_is_not_judged(snapshot):
    snapshot.messages[message(1)] = Archived("c:1", True, digest("said long ago"), Position(0, -7))
    assert kinds(snapshot) == {"archived_differently"}
    snapshot.messages_truncated = True
    assert judged(snapshot).clean


def test_deletion_of_an_expired_message_explains_its_absence(snapshot):
    snapshot.messages_truncated = True
    amend(snapshot, change(1, 30))
    damage(snapshot, "other messages are announced")
    snapshot.produced = [one for one in snapshot.produced if one.message != message(1)]
    assert kinds(snapshot) == set()
    snapshot.changes.clear()
    assert kinds(snapshot) == {"label_wrong", "announced_wrongly"}


def test_equal_ids_of_another_tenant_are_another_message(snapshot):
    theirs = digest_of_message(CONVERSATION, "6", "mallory")
    snapshot.produced.append(produced(6, offset=6, content="not from us")._replace(message=theirs))
    snapshot.archived_to = {0: 7}
    assert kinds(snapshot) == {"not_archived"}
    snapshot.messages[theirs] = Archived(None, True, digest("not from us"), Position(0, 6))
    assert judged(snapshot).clean


def test_id_reused_beyond_the_window_is_a_new_message(snapshot):
    snapshot.dedupe_window = 3
    snapshot.produced.append(produced(1, offset=6))
    snapshot.consumed[0] = 7
    snapshot.pending.add(pending(5))
    assert kinds(snapshot) == {"lost"}
    snapshot.closed.append(closed(3, [5, 6, 1], offset=4))
    snapshot.pending.clear()
    assert judged(snapshot).clean


class TestForgotten:
    """Message 1 is sent again after 30 days, when the segmenter has forgotten it, or was too busy to."""

    DAY = 86_400_000

    def repeated(self, snapshot: Snapshot, after_days: float) -> None:
        snapshot.forget_after_ms = 30 * self.DAY
        snapshot.produced = [p._replace(record_ms=self.DAY) for p in snapshot.produced]
        late = self.DAY + int(after_days * self.DAY)
        snapshot.produced.append(produced(1, offset=6)._replace(record_ms=late))
        snapshot.consumed[0] = 7

    def closed_again(self, snapshot: Snapshot) -> None:
        snapshot.closed.append(closed(3, [5, 6, 1], offset=4)._replace(first_offset=4, last_offset=6))
        snapshot.pending.clear()

    def test_repeat_after_the_silence_is_a_new_message(self, snapshot):
        self.repeated(snapshot, 30)
        self.closed_again(snapshot)
        report = judged(snapshot)
        assert report.clean
        assert (report.messages["in_an_episode"], report.messages["duplicates"]) == (7, 0)

    def test_pending_repeat_after_the_silence_is_a_new_message(self, snapshot):
        self.repeated(snapshot, 31)
        snapshot.pending |= {pending(5), pending(6)}
        assert judged(snapshot).clean

    def test_repeat_after_the_silence_may_be_a_duplicate(self, snapshot):
        self.repeated(snapshot, 40)
        snapshot.pending.add(pending(5))
        report = judged(snapshot)
        assert report.clean
        assert report.messages["duplicates"] == 1

    def test_duplicate_during_a_silence_does_not_end_it(self, snapshot):
        self.repeated(snapshot, 31)
        early = produced(2, offset=6)._replace(record_ms=21 * self.DAY)
        snapshot.produced[-1:] = [early, snapshot.produced[-1]._replace(position=Position(0, 7))]
        snapshot.consumed[0] = 8
        snapshot.closed.append(closed(3, [5, 6, 1], offset=4)._replace(first_offset=4, last_offset=7))
        snapshot.pending.clear()
        report = judged(snapshot)
        assert report.clean
        assert (report.messages["in_an_episode"], report.messages["duplicates"]) == (7, 1)

    def test_repeat_before_the_silence_is_in_no_second_episode(self, snapshot):
        self.repeated(snapshot, 29)
        self.closed_again(snapshot)
        assert kinds(snapshot) == {"duplicated"}

    def test_records_without_times_prove_nothing(self, snapshot):
        self.repeated(snapshot, 0)
        snapshot.produced[-1] = snapshot.produced[-1]._replace(record_ms=-1)
        self.closed_again(snapshot)
        assert judged(snapshot).clean

    def test_agents_may_have_ended(self, snapshot):
        agents = Snapshot(max_agents=2, consumed={0: 2}, archived_to={0: 2}, forget_after_ms=30 * self.DAY)
        first, second = produced(1, offset=0), produced(2, offset=1)
        agents.produced = [first._replace(agent_id="x", record_ms=1), second._replace(record_ms=31 * self.DAY)]
        agents.pending = {pending(0, f"{CONVERSATION}/x"), pending(1)}
        agents.messages = {message(n): Archived(None, True) for n in (1, 2)}
        assert judged(agents).clean
        agents.produced[1] = second._replace(record_ms=2)
        assert judged(agents).findings


def test_later_episode_of_reused_id_labels_its_document(snapshot):
    snapshot.dedupe_window = 3
    snapshot.produced.append(produced(1, offset=6))
    snapshot.consumed[0] = 7
    snapshot.closed.append(closed(3, [5, 6, 1], offset=4))
    snapshot.pending.clear()
    snapshot.messages[message(1)] = Archived("c:3", True)
    assert judged(snapshot).clean


def test_skipped_messages_and_dead_letters_belong_to_no_episode(snapshot):
    snapshot.produced[4] = produced(5, offset=4, skipped=True)
    snapshot.dead |= {Position(0, 5), Position(0, 6)}
    snapshot.refused.add(Position(0, 6))
    snapshot.consumed[0] = 7
    snapshot.pending.clear()
    report = judged(snapshot)
    assert report.clean
    assert (report.messages["skipped"], report.messages["dead_lettered"]) == (1, 2)


def test_unconsumed_bad_record_is_not_lost(snapshot):
    snapshot.refused.add(Position(0, 8))
    report = judged(snapshot)
    assert report.clean
    assert report.messages["not_consumed"] == 2


def test_dead_lettered_episode_needs_no_summary(snapshot):
    damage(snapshot, "an episode is not announced")
    snapshot.dead_episodes.add(Position(0, 2))
    report = judged(snapshot)
    assert report.clean
    assert report.summaries["dead_lettered"] == 1


def test_messages_of_a_quarantined_conversation_are_not_lost(snapshot):
    damage(snapshot, "a row is damaged")
    snapshot.pending.clear()
    assert kinds(snapshot) == {"state_unreadable"}
    assert judged(snapshot).messages["pending"] == 1


def test_quarantined_record_may_be_read_again_into_an_episode(snapshot):
    """After the state was rebuilt; other dead letters belong to no episode."""
    damage(snapshot, "a dead letter is summarized")
    snapshot.closed[0] = snapshot.closed[0]._replace(first_offset=0, last_offset=1)
    assert kinds(snapshot) == {"excluded_message"}
    snapshot.quarantined_records |= snapshot.dead
    report = judged(snapshot)
    assert report.clean
    assert report.messages["dead_lettered"] == 0


def test_each_scope_has_its_own_ordinals(snapshot):
    snapshot.closed[1] = snapshot.closed[1]._replace(episode_id="c/agent:1", ordinal=1)
    assert "ordinal_gap" not in kinds(snapshot)


def test_latest_revision_of_an_episode_counts(snapshot):
    snapshot.closed.append(closed(1, [1, 2], offset=4, revision=2))
    snapshot.announced.append(announcement(snapshot.closed[-1]))
    snapshot.stored["c:1"] = Stored("f")
    assert judged(snapshot).clean


@pytest.mark.parametrize(
    ("topic", "breakage"),
    [
        ("messages", "a message is invented"),
        ("episodes", "ordinals begin at two"),
        ("summaries", "an episode is not announced"),
    ],
)
def test_data_removed_by_retention_is_not_judged(snapshot, topic, breakage):
    damage(snapshot, breakage)
    setattr(snapshot, f"{topic}_truncated", True)
    snapshot.stored = {e.episode_id: Stored("f") for e in snapshot.closed}
    snapshot.indexed = None
    snapshot.announced = [announcement(e) for e in snapshot.closed] if topic != "summaries" else snapshot.announced
    assert kinds(snapshot) <= {"label_wrong"}


def test_archive_knows_episodes_that_expired_from_the_topic(snapshot):
    snapshot.closed.pop(0)
    snapshot.announced.pop(0)
    assert "lost" in kinds(snapshot)
    snapshot.episodes_truncated = True
    assert judged(snapshot).clean


def test_repeat_of_an_expired_record_says_nothing_about_order(snapshot):
    snapshot.closed[0] = snapshot.closed[0]._replace(first_offset=0, last_offset=1)
    snapshot.closed[1] = snapshot.closed[1]._replace(first_offset=2, last_offset=3)
    snapshot.produced = [produced(n, offset=n - 1) for n in (2, 3, 4)] + [produced(1, offset=4)]
    snapshot.pending.clear()
    assert "out_of_order" in kinds(snapshot)
    snapshot.messages_truncated = True
    assert kinds(snapshot) == set()


def test_repeats_do_not_judge_a_partly_expired_episode(snapshot):
    snapshot.closed[0] = snapshot.closed[0]._replace(first_offset=0, last_offset=4)
    snapshot.closed[1] = snapshot.closed[1]._replace(first_offset=5, last_offset=6)
    snapshot.produced = [produced(2, offset=2), produced(1, offset=3), produced(3, offset=5), produced(4, offset=6)]
    snapshot.pending.clear()
    assert "out_of_order" in kinds(snapshot)
    snapshot.messages_truncated = True
    assert kinds(snapshot) == set()


# Expiry


def keep_messages(snapshot: Snapshot, before_ms: int) -> None:
    """Message n is sent at n ms; those before this time are gone from MongoDB."""
    snapshot.produced = [one._replace(sent_ms=n) for n, one in enumerate(snapshot.produced, 1)]
    cores = ((1, 2), (3, 4))
    snapshot.closed = [
        episode._replace(core=tuple(core._replace(sent_ms=n) for n, core in zip(numbers, episode.core, strict=True)))
        for episode, numbers in zip(snapshot.closed, cores, strict=True)
    ]
    for n in range(1, before_ms):
        snapshot.messages.pop(message(n), None)


def test_messages_past_their_retention_may_be_gone(snapshot):
    keep_messages(snapshot, 4)
    assert kinds(snapshot) == {"not_archived", "label_wrong"}
    snapshot.messages_before_ms = 4
    report = judged(snapshot)
    assert report.clean
    assert (report.messages["expired"], report.messages["archived"]) == (3, 3)
    snapshot.messages_before_ms = 3
    assert judged(snapshot).findings["not_archived"].count == 1


def test_expired_message_without_closed_episodes_is_unknown(snapshot):
    keep_messages(snapshot, 4)
    snapshot.closed.pop(0)
    snapshot.announced.pop(0)
    snapshot.episodes_truncated = True
    assert "lost" in kinds(snapshot)
    snapshot.messages_before_ms = 4
    report = judged(snapshot)
    assert report.clean
    assert report.messages["no_trace_left"] == 2


def test_expired_episode_needs_neither_store_index_nor_announcement(snapshot):
    snapshot.stored.pop("c:1")
    assert kinds(snapshot) == {"not_stored"}
    snapshot.gone, snapshot.expired = {"c:1"}, {"c:1"}
    assert kinds(snapshot) == {"resurrected"}
    snapshot.indexed.discard("c:1")
    assert judged(snapshot).clean
    snapshot.announced.pop(0)
    assert judged(snapshot).clean
    snapshot.expired = set()
    assert kinds(snapshot) == {"not_announced"}


def test_episode_that_expires_during_the_audit_is_fine(snapshot):
    keep_messages(snapshot, 0)
    snapshot.indexed.discard("c:1")
    assert kinds(snapshot) == {"not_indexed"}
    snapshot.episodes_before_ms = 3
    assert judged(snapshot).clean


# Agents


def of_agents(*produced_for: str | None, max_agents: int = 2) -> Snapshot:
    """Make messages 1, 2 …, each naming an agent or none. All are consumed, and nothing is closed or pending yet."""
    return Snapshot(
        produced=[produced(n, offset=n - 1)._replace(agent_id=agent) for n, agent in enumerate(produced_for, 1)],
        consumed={0: 100},
        max_agents=max_agents,
    )


def close_of(snapshot: Snapshot, agent: str | None, *numbers: int) -> None:
    scope = "c" if agent is None else f"c/{agent}"
    ordinal = 1 + sum(e.scope == scope for e in snapshot.closed)
    offsets = {"first_offset": numbers[0] - 1, "last_offset": numbers[-1] - 1}
    episode = closed(ordinal, numbers, offset=len(snapshot.closed))
    snapshot.closed.append(episode._replace(episode_id=f"{scope}:{ordinal}", **offsets))


def test_message_without_agent_belongs_to_each_active_agents_episode():
    snapshot = of_agents("x", "y", None)
    close_of(snapshot, "x", 1, 3)
    assert kinds(snapshot) == {"lost"}
    close_of(snapshot, "y", 2, 3)
    report = judged(snapshot)
    assert report.clean
    assert report.messages["in_an_episode"] == report.messages["total"] == 3


def test_message_is_pending_while_one_agent_has_it_pending():
    snapshot = of_agents("x", "y", None)
    close_of(snapshot, "x", 1, 3)
    snapshot.pending = {pending(1, "c/y"), pending(2, "c/y")}
    report = judged(snapshot)
    assert report.clean
    assert (report.messages["in_an_episode"], report.messages["pending"]) == (1, 2)


def test_message_twice_in_an_agents_episodes_is_a_duplicate():
    snapshot = of_agents("x", "x", "x")
    close_of(snapshot, "x", 1, 2)
    close_of(snapshot, "x", 2, 3)
    assert "duplicated" in kinds(snapshot)


@pytest.mark.parametrize("agent", [None, "x"])
def test_unaddressed_message_is_in_one_episode(agent):
    snapshot = of_agents(None, None, "x")
    for scope, numbers in {None: [(None, (1, 2)), ("x", (3,))], "x": [("x", (1, 2, 3))]}[agent]:
        close_of(snapshot, scope, *numbers)
    assert judged(snapshot).clean


def test_unaddressed_message_in_both_episodes_is_found():
    snapshot = of_agents(None, "x")
    close_of(snapshot, None, 1)
    close_of(snapshot, "x", 1, 2)
    assert kinds(snapshot) == {"wrong_agent"}


def test_message_waiting_for_an_agent_is_pending():
    snapshot = of_agents(None, None)
    snapshot.pending = {pending(0), pending(1)}
    assert judged(snapshot).messages["pending"] == 2


def test_message_given_to_an_agent_meanwhile_is_not_lost():
    snapshot = of_agents(None)
    snapshot.handed_over, snapshot.quiet = {pending(0)}, False
    assert judged(snapshot).clean
    snapshot.quiet = True
    assert kinds(snapshot) == {"lost"}


def test_flushed_agent_gets_nothing_more():
    snapshot = of_agents("x", "y", None)
    snapshot.flushed_agents = [AgentFlush(Position(0, 1), CONVERSATION, "x")]
    snapshot.produced[1:] = [p._replace(position=Position(0, p.position.offset + 1)) for p in snapshot.produced[1:]]
    close_of(snapshot, "x", 1)
    close_of(snapshot, "y", 2, 3)
    assert judged(snapshot).clean


def test_dead_lettered_flush_ends_no_agents_work():
    snapshot = of_agents("x", None)
    snapshot.flushed_agents = [AgentFlush(Position(0, 1), CONVERSATION, "x")]
    snapshot.dead = {Position(0, 1)}
    snapshot.produced[1:] = [p._replace(position=Position(0, p.position.offset + 1)) for p in snapshot.produced[1:]]
    close_of(snapshot, "x", 1, 2)
    assert judged(snapshot).clean


def test_longest_silent_agent_leaves_when_there_are_too_many():
    snapshot = of_agents("x", "y", "z", None)
    close_of(snapshot, "x", 1)
    close_of(snapshot, "y", 2, 4)
    close_of(snapshot, "z", 3, 4)
    assert judged(snapshot).clean


def test_agent_active_before_the_oldest_record_is_not_judged():
    snapshot = of_agents(None)
    snapshot.messages_truncated = True
    close_of(snapshot, "x", 1)
    assert judged(snapshot).clean


def test_message_of_several_episodes_has_one_of_their_ids(snapshot):
    snapshot.max_agents = 2
    snapshot.produced = [produced(1, 0)._replace(agent_id="x"), produced(2, 1)._replace(agent_id="y"), produced(3, 2)]
    snapshot.closed, snapshot.pending, snapshot.announced = [], set(), []
    close_of(snapshot, "x", 1, 3)
    close_of(snapshot, "y", 2, 3)
    snapshot.announced = [announcement(e) for e in snapshot.closed]
    snapshot.stored = {e.episode_id: Stored("f") for e in snapshot.closed}
    snapshot.indexed = None
    labels = {1: "c/x:1", 2: "c/y:1", 3: "c/x:1"}
    snapshot.messages = {message(n): Archived(label, True) for n, label in labels.items()}
    snapshot.archived_to = {}
    assert judged(snapshot).clean
    snapshot.messages[message(3)] = Archived("c/z:1", True)
    assert kinds(snapshot) == {"label_wrong"}


# Properties and the report itself


@given(
    consumed=st.integers(0, 12),
    repeats=st.sets(st.integers(0, 11)),
    skipped=st.sets(st.integers(0, 11)),
    dead=st.sets(st.integers(0, 14)),
    refused=st.sets(st.integers(12, 14)),
    waiting=st.sets(st.integers(0, 11)),
    placed=st.sets(st.integers(0, 11)),
)
def test_every_message_has_exactly_one_fate(consumed, repeats, skipped, dead, refused, waiting, placed):
    numbers = [n if n not in repeats else n // 2 for n in range(12)]
    snapshot = Snapshot(
        produced=[produced(n, offset, skipped=offset in skipped) for offset, n in enumerate(numbers)],
        refused={Position(0, n) for n in refused},
        dead={Position(0, n) for n in dead},
        consumed={0: consumed},
        pending={pending(n) for n in waiting},
        closed=[closed(1, sorted(placed), offset=0)],
    )
    messages = judged(snapshot).messages
    assert sum(messages[fate] for fate in FATES) == messages["total"] == len(snapshot.produced) + len(snapshot.refused)


def test_examples_are_bounded_and_the_count_is_not():
    lost = [produced(n, offset=n) for n in range(3 * EXAMPLES_NAMED)]
    report = judged(Snapshot(produced=lost, consumed={0: 1000}))
    assert report.findings["lost"].count == 3 * EXAMPLES_NAMED
    assert len(report.findings["lost"].examples) == EXAMPLES_NAMED


def test_report_prints_as_json_and_as_lines(snapshot):
    damage(snapshot, "a message is nowhere")
    snapshot.notes.append("index not checked")
    report = judged(snapshot)
    assert json.loads(json.dumps(report.as_dict()))["findings"]["lost"]["count"] == 1
    text = "\n".join(report.lines())
    assert "note: index not checked" in text
    assert "partition 0, offset 4" in text
    assert text.endswith("NOT CLEAN")
    assert list(judged(clean_facts()).lines())[-1].startswith("clean")


def test_long_conversation_is_judged_message_by_message(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    with open_evidence() as tables:
        for table, *row in Snapshot(produced=[produced(0, 0), produced(1, 1), produced(0, 2), produced(2, 3)]).rows():
            tables.add(table, *row)
        tables.run_all(STANDING)
        rows = tables.rows

        def read(sql: str, **values: object) -> Iterator[Any]:
            return (steps.append("read") or row for row in rows(sql, **values))

        monkeypatch.setattr(tables, "rows", read)
        monkeypatch.setattr(tables, "add", lambda *_: steps.append("judged"))
        derive_expected(tables)
    assert steps == ["read", "judged", "read", "judged", "read", "read", "judged"]
