"""A snapshot that is judged in parts has the same report as one that is judged at once."""

import os
import resource
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from afterword.audit.judge import judge
from afterword.audit.parts import NoRoom, Parts
from afterword.audit.report import Report
from afterword.audit.snapshot import (
    AgentFlush,
    AmendmentRecord,
    Announced,
    AnnouncedDeletion,
    Archived,
    AuditedEpisode,
    AuditFact,
    Closed,
    Core,
    Damage,
    DeletedDocument,
    FirstPending,
    MessageChange,
    MessageDocument,
    PendingRow,
    ProducedMessage,
    Snapshot,
    StateRow,
    Stored,
    digest_of_message,
)
from afterword.schemas.ids import episode_id, event_id, message_key
from afterword.streams.log_reader import Position
from afterword.streams.segmenter.state import CONVERSATIONS, MESSAGES, Scope, body_key, prefix, scope_key

IDS = st.sampled_from(["c", "c", "d", "d", "e", "c:1", "c/x"])
NUMBERS = st.sampled_from(["1", "2"])
TENANTS = st.sampled_from([None, None, None, None, "t"])
AGENTS = st.sampled_from([None, None, None, None, "x", "y"])
TEXTS = st.sampled_from([b"one", b"other"])
TIMES = st.sampled_from([0, 1, 5, 1000])
OFFSETS = st.integers(0, 12)
POSITIONS = st.builds(Position, st.integers(0, 1), OFFSETS)
GROUP_OFFSETS = st.just({0: 14, 1: 14}) | st.dictionaries(st.integers(0, 1), st.integers(0, 14))


@dataclass
class World:
    """Facts in the order in which they are read, and what a snapshot has of no conversation."""

    facts: list[AuditFact]
    shared: dict[str, Any]
    indexed: set[str] | None
    removed: set[str] = field(default_factory=set)

    def report(self, parts: Parts | None = None) -> Report:
        snapshot, report = Snapshot(**deepcopy(self.shared), parts=parts), Report()
        for fact in self.facts:
            snapshot.add(fact)
        for number in snapshot.numbers():
            report.add(self._judged(snapshot.part(number)))
        return report

    def _judged(self, part: Snapshot) -> Report:
        wanted = {episode.episode_id for episode in part.closed}
        part.indexed, part.removed = None if self.indexed is None else wanted & self.indexed, wanted & self.removed
        return judge(part)


def messages_of(draw: st.DrawFn, conversation: str) -> bytes:
    return digest_of_message(conversation, draw(NUMBERS), draw(TENANTS))


def record(draw: st.DrawFn, where: Position) -> AuditFact:
    """A record of `messages`."""
    conversation = draw(IDS)
    kind = draw(st.sampled_from(["message", "message", "message", "message", "flush", "change"]))
    if kind == "flush":
        return AgentFlush(where, conversation, "x")
    if kind == "change":
        of = draw(st.none() | st.just(messages_of(draw, conversation)))
        deletes = of is None or draw(st.booleans())
        content = None if deletes else draw(st.none() | TEXTS)
        return MessageChange(where, conversation, draw(TENANTS), of, content, deletes, deletes or draw(st.booleans()))
    return ProducedMessage(
        where,
        conversation,
        messages_of(draw, conversation),
        draw(TEXTS),
        draw(st.sampled_from([False, False, True])),
        draw(AGENTS),
        draw(TENANTS),
        draw(TIMES),
        draw(TIMES),
    )


def state_row(draw: st.DrawFn) -> AuditFact:
    scope = Scope(draw(IDS), draw(st.sampled_from([None, None, "", "x"])))
    seq = draw(st.integers(0, 2))
    if draw(st.booleans()):
        key, table = body_key(prefix(scope), seq), MESSAGES
        found: Any = PendingRow(scope, seq, draw(POSITIONS))
    else:
        key, table, found = scope_key(scope), CONVERSATIONS, FirstPending(scope, seq)
    damage = Damage(scope.conversation_id, 0, "it is damaged")
    return StateRow(table, key, draw(st.sampled_from([found, found, found, None, damage])))


class Ids:
    """Ids of episodes and events; where they may contradict each other, each is of any conversation."""

    def __init__(self, draw: st.DrawFn, may_contradict: bool) -> None:
        self._draw = draw
        self._may_contradict = may_contradict
        self.conversation: str = draw(IDS)

    def any_conversation(self) -> str:
        another = self._may_contradict and self._draw(st.booleans())
        return self._draw(IDS) if another else self.conversation

    def episode(self) -> str:
        if self._may_contradict and self._draw(st.integers(0, 9)) == 0:
            return self._draw(st.sampled_from(["", "c", "other", ":1", "c:d:1"]))
        return episode_id(self.any_conversation(), self._draw(st.integers(1, 3)), self._draw(AGENTS))

    def event(self) -> str:
        return event_id(self.episode(), self._draw(st.integers(1, 2)))


def episode(draw: st.DrawFn, ids: Ids, where: Position, changes: Sequence[MessageChange]) -> AuditFact:
    """A record of `episode.closed`."""
    if changes and draw(st.booleans()):
        made = draw(st.sampled_from(changes))
        conversation = draw(st.sampled_from([made.conversation_id, ids.any_conversation()]))
        return AmendmentRecord(where, conversation, made.message, made.position)
    conversation = ids.any_conversation()
    core = [Core(messages_of(draw, conversation), draw(TEXTS), draw(TIMES)) for _ in range(draw(st.integers(0, 3)))]
    name, first = ids.episode(), draw(OFFSETS)
    last = name.rpartition(":")[2]
    return Closed(
        where,
        name,
        draw(st.integers(1, 2)),
        conversation,
        int(last) if last.isdigit() else 7,
        draw(st.sampled_from(["ff", "ff", "fg"])),
        "ff",
        tuple(core),
        draw(TEXTS),
        first,
        first + draw(st.integers(0, 3)),
        draw(st.booleans()),
    )


def announced(draw: st.DrawFn, ids: Ids) -> AuditFact:
    name = ids.episode()
    if draw(st.integers(0, 3)) == 0:
        return AnnouncedDeletion(ids.event(), name)
    revision = draw(st.integers(1, 2))
    return Announced(
        draw(st.sampled_from([event_id(name, revision), ids.event()])),
        name,
        revision,
        draw(TEXTS),
        draw(TEXTS),
        draw(st.none() | st.integers(1, 2)),
        draw(st.none() | st.just(ids.event())),
        draw(st.sampled_from([None, "edited"])),
    )


def document(draw: st.DrawFn, ids: Ids) -> AuditFact:
    kind = draw(st.sampled_from(["episode", "deleted", "message", "message", "label"]))
    conversation = ids.any_conversation()
    if kind == "episode":
        known = frozenset(messages_of(draw, conversation) for _ in range(draw(st.integers(0, 3))))
        changes = tuple((message, draw(OFFSETS)) for message in sorted(known) if draw(st.booleans()))
        stored = Stored(
            draw(st.integers(1, 2)),
            draw(st.sampled_from(["ff", "fg"])),
            known,
            changes,
            draw(st.sampled_from([-1, -1, 3])),
        )
        return AuditedEpisode(ids.episode(), conversation, stored)
    if kind == "deleted":
        return DeletedDocument(ids.episode(), draw(OFFSETS), draw(st.booleans()))
    key = message_key(conversation, draw(NUMBERS), draw(TENANTS))
    if kind == "label":
        return MessageDocument(key, Archived(ids.episode(), False))
    is_deleted = draw(st.integers(0, 3)) == 0
    return MessageDocument(
        key,
        Archived(None, False, deleted=True, changed=draw(OFFSETS))
        if is_deleted
        else Archived(
            draw(st.none() | st.just(ids.episode())),
            True,
            draw(st.none() | TEXTS),
            draw(st.none() | POSITIONS),
            changed=draw(st.sampled_from([-1, -1, 3])),
        ),
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    may_contradict = draw(st.booleans())

    def many(make: Callable[[int], AuditFact], most: int) -> list[AuditFact]:
        return [make(n) for n in range(draw(st.integers(most // 2, most) | st.integers(0, most)))]

    def ids() -> Ids:
        return Ids(draw, may_contradict)

    records = many(lambda n: record(draw, Position(n % 2, n // 2)), 12)
    changes: list[MessageChange] = [made for made in records if isinstance(made, MessageChange)]
    facts = [
        *many(lambda _: state_row(draw), 6),
        *many(lambda n: episode(draw, ids(), Position(0, n), changes), 8),
        *many(lambda _: announced(draw, ids()), 6),
        *many(lambda _: document(draw, ids()), 10),
        *records,
    ]
    shared = {
        "consumed": draw(GROUP_OFFSETS),
        "archived_to": draw(GROUP_OFFSETS),
        "summarized_to": draw(GROUP_OFFSETS),
        "dead": draw(st.sets(POSITIONS, max_size=3)),
        "dead_episodes": draw(st.sets(POSITIONS, max_size=3)),
        "refused": draw(st.sets(POSITIONS, max_size=3)),
        "first_offsets": draw(GROUP_OFFSETS),
        "retries_wait": draw(st.sampled_from([False, False, False, True])),
        "dedupe_window": draw(st.sampled_from([1000, 1])),
        "forget_after_ms": draw(st.sampled_from([0, 10])),
        "max_agents": draw(st.sampled_from([None, 1, 2])),
        "messages_before_ms": draw(TIMES),
        "episodes_before_ms": draw(TIMES),
        "quiet": draw(st.booleans()),
        "truncated": draw(st.sets(st.sampled_from(["messages", "episodes", "summaries"]), max_size=1)),
        "flushes": draw(st.integers(0, 2)),
        "unreadable": draw(st.integers(0, 2)),
        "unreadable_announcements": draw(st.integers(0, 2)),
        "notes": draw(st.sampled_from([[], ["a note"]])),
    }
    names = {fact.episode_id for fact in facts if isinstance(fact, Closed)}
    some = st.sets(st.sampled_from(sorted(names))) if names else st.just(set[str]())
    return World(facts, shared, draw(st.none() | some), draw(some))


@given(worlds(), st.integers(2, 9), st.integers(1, 5))
def test_in_parts_the_report_is_the_same_as_at_once(world: World, count: int, most_waiting: int) -> None:
    with Parts(count, most_waiting) as parts:
        in_parts = world.report(parts)
        event(f"{len(parts.numbers())} of {count} parts")
    assert in_parts == world.report()


def test_a_rolling_summary_that_is_older_than_a_change_is_found_in_parts_too() -> None:
    facts: list[AuditFact] = []
    for n, conversation in enumerate(["c", "d", "e", "f"]):
        message = digest_of_message(conversation, "1")
        first, second = (episode_id(conversation, ordinal) for ordinal in (1, 2))
        core = (Core(message, b"one"),)
        facts += [
            ProducedMessage(Position(0, n), conversation, message, b"one"),
            MessageChange(Position(0, 10 + n), conversation, None, message, b"other", False, False),
            Closed(Position(0, 3 * n), first, 1, conversation, 1, "ff", "ff", core, b""),
            Closed(Position(0, 3 * n + 1), second, 1, conversation, 2, "ff", "ff", (), b""),
            AmendmentRecord(Position(0, 3 * n + 2), conversation, message, Position(0, 10 + n)),
            AuditedEpisode(second, conversation, Stored(1, "ff")),
        ]
    world = World(facts, {"summarized_to": {0: 20}}, None)
    with Parts(3, 1) as parts:
        in_parts = world.report(parts)
        assert len(parts.numbers()) > 1
    assert in_parts == world.report()
    assert in_parts.findings["underived"].count == 4


def conversations(count: int) -> list[AgentFlush]:
    return [AgentFlush(Position(0, n), f"c{n}", "x") for n in range(count)]


def test_facts_of_a_conversation_are_in_one_part_in_order() -> None:
    with Parts(4, 3) as parts:
        for fact in [*conversations(20), *conversations(20)]:
            parts.add(fact)
        found = [list(parts.facts(number)) for number in parts.numbers()]
    assert len(found) == 4
    assert sorted(fact for facts in found for fact in facts) == sorted([*conversations(20), *conversations(20)])
    for facts in found:
        once = len(facts) // 2
        assert facts[:once] == facts[once:] != []


def test_parts_that_share_a_contradictory_fact_are_read_as_one() -> None:
    with Parts(4) as parts:
        for fact in conversations(20):
            parts.add(fact)
        parts.add(AnnouncedDeletion("c0:1:1", "c1:1"))
        numbers = parts.numbers()
        assert 0 in numbers
        assert len(numbers) == 3
        assert len([fact for number in numbers for fact in parts.facts(number)]) == 21


def test_the_file_is_private_and_has_no_name() -> None:
    with Parts(2, 1) as parts:
        parts.add(conversations(1)[0])
        found = os.fstat(parts._file.fileno())
        assert parts.size == found.st_size > 0
    assert (found.st_nlink, found.st_mode & 0o777) == (0, 0o600)


def test_a_file_that_cannot_grow_is_named() -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
        with pytest.raises(NoRoom, match="File too large; TMPDIR"), Parts(2, 1) as parts:
            parts.add(conversations(1)[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
