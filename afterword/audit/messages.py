"""Judging where every message went."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from afterword.audit.changes import Lasting
from afterword.audit.report import Report
from afterword.audit.snapshot import (
    AgentFlush,
    Closed,
    Core,
    MessageChange,
    Pending,
    ProducedMessage,
    Snapshot,
    by_scope,
    latest_revisions,
    scope_name,
)
from afterword.streams.log_reader import Position
from afterword.streams.segmenter.conversation import activated, deactivated, recipients

CLOCKS_APART_MS = 3_600_000
FATES = (
    "skipped",
    "duplicates",
    "dead_lettered",
    "in_an_episode",
    "pending",
    "not_consumed",
    "deleted",
    "no_trace_left",
    "lost",
)


class Placement(NamedTuple):
    """A message in an episode."""

    episode: Closed
    core: Core


class Copy(NamedTuple):
    """A message in one of the scopes that it is for."""

    message: bytes
    scope: str


Expected = dict[Copy, list[ProducedMessage]]
Placements = dict[Copy, list[Placement]]


def judge_messages(snapshot: Snapshot, lasting: Lasting, report: Report) -> None:
    """Assign one fate to each message; the counts add up to the total.

    A message for several agents has the fate of the copy that is furthest behind.
    """
    fates: Counter[str] = Counter()
    expected: Expected = defaultdict(list)
    placements = _placements(snapshot)
    offsets = Offsets()
    accepted = _accepted(snapshot, fates)
    _judge_partitions(snapshot, accepted, report)
    for produced, scopes in expected_scopes(snapshot, accepted):
        copies = []
        for copy in (Copy(produced.message, scope) for scope in scopes):
            found = placements.get(copy, [])[len(expected[copy]) :]
            expected[copy].append(produced)
            copies.append(_fate(snapshot, lasting, produced, copy.scope, found[0] if found else None, report))
            if found and not _is_a_repeat_of_what_expired(snapshot, produced, found[0].episode):
                offsets.note(found[0], produced)
        fates[max(copies, key=FATES.index)] += 1
    _judge_surplus(snapshot, expected, placements, report)
    _judge_order(snapshot, offsets, report)
    _judge_refused(snapshot, fates, report)
    total = len(snapshot.produced) + len(snapshot.refused)
    counts = {"flushes": snapshot.flushes, "changes": len(snapshot.changes)}
    report.messages = {"total": total, **{fate: fates[fate] for fate in FATES}, **counts}


def _is_a_repeat_of_what_expired(snapshot: Snapshot, produced: ProducedMessage, episode: Closed) -> bool:
    """Return whether the episode has the message from a record that is gone, which this one repeats."""
    return "messages" in snapshot.truncated and not (
        episode.first_offset <= produced.position.offset <= episode.last_offset
    )


def _judge_partitions(snapshot: Snapshot, accepted: Iterable[ProducedMessage], report: Report) -> None:
    """Check that the messages of a conversation that were consumed are in one partition."""
    partitions: dict[str, set[int]] = defaultdict(set)
    for produced in accepted:
        if _is_consumed(snapshot.consumed, produced.position):
            partitions[produced.conversation_id].add(produced.position.partition)
    for conversation, found in partitions.items():
        if len(found) > 1:
            report.found("two_partitions", f"{conversation}, partitions {', '.join(map(str, sorted(found)))}")


class Offsets:
    """Offsets at which the messages of each episode were produced."""

    def __init__(self) -> None:
        self._of: dict[str, dict[bytes, list[int]]] = defaultdict(lambda: defaultdict(list))

    def note(self, placement: Placement, produced: ProducedMessage) -> None:
        self._of[placement.episode.episode_id][placement.core.message].append(produced.position.offset)

    def in_core_order(self, episode: Closed) -> list[int]:
        noted = self._of.get(episode.episode_id, {})
        return [
            offset for message in dict.fromkeys(c.message for c in episode.core) for offset in noted.get(message, ())
        ]


def _accepted(snapshot: Snapshot, fates: Counter[str]) -> list[ProducedMessage]:
    """Messages that belong in episodes: all except skipped ones, dead letters, and duplicates within the window.

    A repeat after a silence by which the conversation may have been forgotten belongs where it is found.
    """
    accepted: list[ProducedMessage] = []
    windows: dict[str, RecentMessages] = defaultdict(
        lambda: RecentMessages(snapshot.dedupe_window, Silence(snapshot.forget_after_ms))
    )
    found = Found(snapshot)
    for produced in snapshot.produced:
        consumed = _is_consumed(snapshot.consumed, produced.position)
        if produced.position in snapshot.dead and not (
            produced.position in snapshot.quarantined_records and found.has(produced, -1)
        ):
            fates["dead_lettered"] += 1
        elif produced.skipped:
            fates["skipped" if consumed else "not_consumed"] += 1
        elif windows[produced.conversation_id].takes(produced, found.has):
            accepted.append(produced)
        else:
            fates["duplicates" if consumed else "not_consumed"] += 1
    return accepted


class Silence:
    """Tells by the records' timestamps when a conversation may have been forgotten; clocks may be an hour apart.

    `forget_after_ms`: 0: never.
    """

    def __init__(self, forget_after_ms: int) -> None:
        self._long_ms = max(forget_after_ms - CLOCKS_APART_MS, forget_after_ms // 2)
        self._last_ms = 0

    def ends_with(self, produced: ProducedMessage) -> bool:
        """Return whether the message comes after so long a silence."""
        if not (self._long_ms and self._last_ms):
            return False
        return produced.record_ms <= 0 or produced.record_ms - self._last_ms >= self._long_ms

    def note(self, produced: ProducedMessage) -> None:
        """Note a message that was accepted: duplicates do not end a silence."""
        self._last_ms = max(self._last_ms, produced.record_ms)


class Found:
    """Finds repeats of messages in episodes and among what is pending, by their offsets."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._pending = {pending.of_conversation for pending in snapshot.pending} | snapshot.handed_over
        self._ranges: dict[bytes, list[range]] = defaultdict(list)
        for episode in snapshot.closed:
            for core in episode.core:
                self._ranges[core.message].append(range(episode.first_offset, episode.last_offset + 1))

    def has(self, produced: ProducedMessage, after: int) -> bool:
        """Return whether it is pending, or in an episode that begins past the offset `after`."""
        ranges, offset = self._ranges.get(produced.message, ()), produced.position.offset
        return produced.as_pending in self._pending or any(r.start > after and offset in r for r in ranges)


class RecentMessages:
    """Last messages that were accepted in a conversation."""

    def __init__(self, size: int, silence: Silence) -> None:
        self._size = size
        self._silence = silence
        self._next = 0
        self._forgotten = 0
        """Those before may have been forgotten."""
        self._seen: dict[bytes, tuple[int, int]] = {}
        """Number and offset."""

    def takes(self, produced: ProducedMessage, is_found: Callable[[ProducedMessage, int], bool]) -> bool:
        """Accept a message; False for a duplicate within the window, unless it was forgotten and `is_found` again."""
        if self._silence.ends_with(produced):
            self._forgotten = self._next
        number, offset = self._seen.get(produced.message, (-1, -1))
        if number >= max(0, self._next - self._size) and not (number < self._forgotten and is_found(produced, offset)):
            return False
        self._silence.note(produced)
        self._seen[produced.message] = self._next, produced.position.offset
        self._next += 1
        return True


def _placements(snapshot: Snapshot) -> Placements:
    placements: Placements = defaultdict(list)
    for scope in by_scope(latest_revisions(snapshot.closed)):
        for episode in scope:
            for core in episode.core:
                placements[Copy(core.message, episode.scope)].append(Placement(episode, core))
    return placements


def _fate(
    snapshot: Snapshot,
    lasting: Lasting,
    produced: ProducedMessage,
    scope: str,
    placement: Placement | None,
    report: Report,
) -> str:
    pending = Pending(produced.position, scope) in snapshot.pending
    if placement is not None:
        _judge_placement(snapshot, lasting, produced, placement, pending, report)
        return "in_an_episode"
    if pending or (produced.as_pending in snapshot.handed_over and not snapshot.quiet):
        return "pending"
    if not _is_consumed(snapshot.consumed, produced.position):
        return "not_consumed"
    if produced.conversation_id in snapshot.quarantined:  # what is damaged may have it
        return "pending"
    if "episodes" in snapshot.truncated and _has_label(snapshot, produced.message):
        return "in_an_episode"
    if "episodes" in snapshot.truncated and snapshot.may_have_expired(produced):
        return "no_trace_left"
    if lasting.left(produced, snapshot.consumed.get(produced.position.partition, 0)):
        return "deleted"
    report.found("lost", name_of(produced))
    return "lost"


def _judge_placement(
    snapshot: Snapshot, lasting: Lasting, produced: ProducedMessage, placement: Placement, pending: bool, report: Report
) -> None:
    if not placement.episode.truncated and not lasting.had(produced, placement.core.content):
        report.found("altered", f"{name_of(produced)}, in {placement.episode.episode_id}")
    if pending and snapshot.quiet:
        report.found("duplicated", f"{name_of(produced)}, in {placement.episode.episode_id} and pending")


def _judge_surplus(snapshot: Snapshot, expected: Expected, placements: Placements, report: Report) -> None:
    """Find messages that are in more episodes than they should be."""
    known = {p.message for p in snapshot.produced}
    accepted = {copy.message for copy in expected}
    for copy, found in placements.items():
        wanted = expected.get(copy, [])
        if len(found) <= len(wanted):
            continue
        episodes = ", ".join(placement.episode.episode_id for placement in found)
        if wanted:
            report.found("duplicated", f"{name_of(wanted[0])}, in {episodes}")
        elif copy.message in accepted:
            report.found("wrong_agent", f"in {episodes}")
        elif copy.message in known:
            report.found("excluded_message", f"in {episodes}")
        elif "messages" not in snapshot.truncated:
            report.found("unknown_message", f"in {episodes}")


def _judge_order(snapshot: Snapshot, offsets: Offsets, report: Report) -> None:
    begins = _first_offsets(snapshot) if "messages" in snapshot.truncated else {}
    for scope in by_scope(latest_revisions(snapshot.closed)):
        last = -1
        for episode in scope:
            if episode.first_offset < begins.get(episode.conversation_id, -1):
                continue  # of its messages those may be left that were sent again
            core = offsets.in_core_order(episode)
            if any(later <= earlier for earlier, later in zip([last, *core], core, strict=False)):
                report.found("out_of_order", f"{episode.episode_id}")
            last = max([last, *core])


def _first_offsets(snapshot: Snapshot) -> dict[str, int]:
    """Return the first offset that is left in each conversation's partition."""
    firsts = snapshot.first_offsets
    return {produced.conversation_id: firsts.get(produced.position.partition, -1) for produced in snapshot.produced}


def _judge_refused(snapshot: Snapshot, fates: Counter[str], report: Report) -> None:
    """Count invalid records: dead-lettered, or not consumed yet."""
    for position in snapshot.refused:
        if position in snapshot.dead:
            fates["dead_lettered"] += 1
        elif not _is_consumed(snapshot.consumed, position):
            fates["not_consumed"] += 1
        else:
            fates["lost"] += 1
            report.found("lost", f"an invalid record, {_where(position)}, without a dead letter")


def _has_label(snapshot: Snapshot, message: bytes) -> bool:
    """Check whether the message's episode is stored: the only trace once the topic has deleted it."""
    known = snapshot.messages.get(message)
    return known is not None and known.episode_id is not None


def _is_consumed(offsets: dict[int, int], position: Position) -> bool:
    return position.offset < offsets.get(position.partition, 0)


def name_of(produced: ProducedMessage) -> str:
    return f"a message of {produced.conversation_id}, {_where(produced.position)}"


def _where(position: Position) -> str:
    return f"partition {position.partition}, offset {position.offset}"


Scopes = tuple[str, ...]
"""Scopes in the form of `scope_name`; only those of agents contain a slash."""


def expected_scopes(
    snapshot: Snapshot, accepted: Iterable[ProducedMessage]
) -> Iterator[tuple[ProducedMessage, Scopes]]:
    """Yield each accepted message with the scopes that it must be in: its conversation, or each of its agents.

    `accepted`: in order within each partition.
    """
    if snapshot.max_agents is None:
        yield from ((produced, (scope_name(produced.conversation_id),)) for produced in accepted)
    elif "messages" in snapshot.truncated:  # agents that were active before the oldest record are unknown
        yield from _found_scopes(snapshot, accepted)
    else:
        known, unsure = _by_silence(snapshot, accepted)
        scopes = [*_of_agents(snapshot, known), *_found_scopes(snapshot, unsure)]
        yield from sorted(scopes, key=lambda pair: pair[0].position)


def _by_silence(
    snapshot: Snapshot, accepted: Iterable[ProducedMessage]
) -> tuple[list[ProducedMessage], list[ProducedMessage]]:
    """Separate the messages of conversations whose active agents may have been forgotten meanwhile."""
    silences: dict[str, Silence] = defaultdict(lambda: Silence(snapshot.forget_after_ms))
    accepted = list(accepted)
    unsure = set()
    for produced in accepted:
        silence = silences[produced.conversation_id]
        if silence.ends_with(produced):
            unsure.add(produced.conversation_id)
        silence.note(produced)
    parts: tuple[list[ProducedMessage], list[ProducedMessage]] = ([], [])
    for produced in accepted:
        parts[produced.conversation_id in unsure].append(produced)
    return parts


def _of_agents(snapshot: Snapshot, accepted: Iterable[ProducedMessage]) -> Iterator[tuple[ProducedMessage, Scopes]]:
    talks: dict[str, Talk] = defaultdict(lambda: Talk(snapshot.max_agents or 1))
    ends = (c for c in snapshot.changes if c.message is None and c.position not in snapshot.dead)
    events: list[ProducedMessage | AgentFlush | MessageChange] = sorted(
        [*accepted, *_flushes(snapshot), *ends], key=lambda event: event.position
    )
    for event in events:
        talk = talks[event.conversation_id]
        if isinstance(event, AgentFlush):
            talk.active = deactivated(talk.active, event.agent_id)
        elif isinstance(event, MessageChange):
            talk.end()
        else:
            yield from talk.take(event)
    found = _without_agent(snapshot)
    for produced, agent in (waited for talk in talks.values() for waited in talk.waited()):
        is_nobodys = any(produced.position.offset in offsets for offsets in found[produced.message])
        yield produced, (scope_name(produced.conversation_id, None if is_nobodys else agent),)


def _flushes(snapshot: Snapshot) -> Iterator[AgentFlush]:
    """Flushes of an agent that took effect; one of another tenant is a dead letter."""
    return (flush for flush in snapshot.flushed_agents if flush.position not in snapshot.dead)


def _without_agent(snapshot: Snapshot) -> dict[bytes, list[range]]:
    """Map each message that no agent has to the offset ranges of its episodes, or its offset while pending."""
    found: dict[bytes, list[range]] = defaultdict(list)
    for produced in snapshot.produced:
        if produced.as_pending in snapshot.pending:
            found[produced.message].append(range(produced.position.offset, produced.position.offset + 1))
    for episode in snapshot.closed:
        if "/" not in episode.scope:
            for core in episode.core:
                found[core.message].append(range(episode.first_offset, episode.last_offset + 1))
    return found


class Talk:
    """Agents of a conversation, as the log shows them."""

    def __init__(self, max_agents: int) -> None:
        self.active: list[str] = []
        self._max_agents = max_agents
        self._waiting: list[ProducedMessage] = []
        self._adopted: list[tuple[ProducedMessage, str | None]] = []

    def take(self, produced: ProducedMessage) -> Iterator[tuple[ProducedMessage, Scopes]]:
        agent, active = produced.agent_id, self.active
        if agent is None and not active:
            self._waiting.append(produced)
            return
        if not active:
            self._adopted += [(waiting, agent) for waiting in self._waiting]
            self._waiting.clear()
        yield produced, tuple(scope_name(produced.conversation_id, each) for each in recipients(active, agent))
        self.active = activated(active, agent, self._max_agents).active

    def end(self) -> None:
        """Start over after the conversation's deletion; what waited until then has no agent any more."""
        self.active = []
        self._adopted += [(waiting, None) for waiting in self._waiting]
        self._waiting.clear()

    def waited(self) -> list[tuple[ProducedMessage, str | None]]:
        """Messages that named no agent while none was active, with the first agent after them."""
        return [*self._adopted, *((waiting, None) for waiting in self._waiting)]


def _found_scopes(snapshot: Snapshot, accepted: Iterable[ProducedMessage]) -> Iterator[tuple[ProducedMessage, Scopes]]:
    found: dict[bytes, set[str]] = defaultdict(set)
    pending: dict[Pending, set[str]] = defaultdict(set)
    for episode in snapshot.closed:
        for core in episode.core:
            found[core.message].add(episode.scope)
    for waiting in snapshot.pending:
        pending[waiting.of_conversation].add(waiting.scope)
    for produced in accepted:
        scopes = found[produced.message] | pending[produced.as_pending]
        yield produced, tuple(sorted(scopes)) or (scope_name(produced.conversation_id),)
