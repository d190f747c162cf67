"""Judging where every message went."""

from collections import Counter, defaultdict
from typing import NamedTuple

from afterword.audit.episodes import by_scope, latest_revisions
from afterword.audit.facts import Closed, Core, Facts, Pending, Position, Produced
from afterword.audit.report import Report
from afterword.audit.routing import expected_scopes

FATES = (
    "skipped",
    "duplicates",
    "dead_lettered",
    "in_an_episode",
    "pending",
    "not_consumed",
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


Expected = dict[Copy, list[Produced]]
Placements = dict[Copy, list[Placement]]


def judge_messages(facts: Facts, report: Report) -> None:
    """Every message has one fate, and the counts of the fates add up to the total.

    One that is for several agents has the fate of its copy that has got least far.
    """
    fates: Counter[str] = Counter()
    expected: Expected = defaultdict(list)
    placements = _placements(facts)
    offsets = Offsets()
    for produced, scopes in expected_scopes(facts, _accepted(facts, fates)):
        copies = []
        for copy in (Copy(produced.message, scope) for scope in scopes):
            found = placements.get(copy, [])[len(expected[copy]) :]
            expected[copy].append(produced)
            copies.append(_fate(facts, produced, copy.scope, found[0] if found else None, report))
            if found:
                offsets.note(found[0], produced)
        fates[max(copies, key=FATES.index)] += 1
    _judge_surplus(facts, expected, placements, report)
    _judge_order(facts, offsets, report)
    _judge_refused(facts, fates, report)
    total = len(facts.produced) + len(facts.refused)
    report.messages = {"total": total, **{fate: fates[fate] for fate in FATES}, "flushes": facts.flushes}


class Offsets:
    """Where the messages of each episode were produced."""

    def __init__(self) -> None:
        self._of: dict[str, dict[bytes, list[int]]] = defaultdict(lambda: defaultdict(list))

    def note(self, placement: Placement, produced: Produced) -> None:
        self._of[placement.episode.episode_id][placement.core.message].append(produced.position.offset)

    def in_core_order(self, episode: Closed) -> list[int]:
        noted = self._of.get(episode.episode_id, {})
        return [
            offset for message in dict.fromkeys(c.message for c in episode.core) for offset in noted.get(message, ())
        ]


def _accepted(facts: Facts, fates: Counter[str]) -> list[Produced]:
    """What the segmenter must have taken: all but skipped messages, dead letters, and repeats within the window."""
    accepted: list[Produced] = []
    windows: dict[str, Window] = defaultdict(lambda: Window(facts.dedupe_window))
    for produced in facts.produced:
        consumed = _is_consumed(facts.consumed, produced.position)
        if produced.position in facts.dead:
            fates["dead_lettered"] += 1
        elif produced.skipped:
            fates["skipped" if consumed else "not_consumed"] += 1
        elif windows[produced.conversation_id].takes(produced.message):
            accepted.append(produced)
        else:
            fates["duplicates" if consumed else "not_consumed"] += 1
    return accepted


class Window:
    """The last messages that were accepted in a conversation."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._next = 0
        self._seen: dict[bytes, int] = {}

    def takes(self, message: bytes) -> bool:
        """False for a repeat within the window."""
        if self._seen.get(message, -1) >= max(0, self._next - self._size):
            return False
        self._seen[message] = self._next
        self._next += 1
        return True


def _placements(facts: Facts) -> Placements:
    placements: Placements = defaultdict(list)
    for scope in by_scope(latest_revisions(facts.closed)):
        for episode in scope:
            for core in episode.core:
                placements[Copy(core.message, episode.scope)].append(Placement(episode, core))
    return placements


def _fate(facts: Facts, produced: Produced, scope: str, placement: Placement | None, report: Report) -> str:
    pending = Pending(produced.position, scope) in facts.pending
    if placement is not None:
        _judge_placement(facts, produced, placement, pending, report)
        return "in_an_episode"
    if pending or (produced.position in facts.handed_over and not facts.quiet):
        return "pending"
    if not _is_consumed(facts.consumed, produced.position):
        return "not_consumed"
    if "episodes" in facts.truncated and _has_label(facts, produced.message):
        return "in_an_episode"
    report.found("lost", _name(produced))
    return "lost"


def _judge_placement(facts: Facts, produced: Produced, placement: Placement, pending: bool, report: Report) -> None:
    if placement.core.content != produced.content:
        report.found("altered", f"{_name(produced)}, in {placement.episode.episode_id}")
    if pending and facts.quiet:
        report.found("duplicated", f"{_name(produced)}, in {placement.episode.episode_id} and pending")


def _judge_surplus(facts: Facts, expected: Expected, placements: Placements, report: Report) -> None:
    """Messages that are in episodes more often than they should be."""
    known = {p.message for p in facts.produced}
    accepted = {copy.message for copy in expected}
    for copy, found in placements.items():
        wanted = expected.get(copy, [])
        if len(found) <= len(wanted):
            continue
        episodes = ", ".join(placement.episode.episode_id for placement in found)
        if wanted:
            report.found("duplicated", f"{_name(wanted[0])}, in {episodes}")
        elif copy.message in accepted:
            report.found("wrong_agent", f"in {episodes}")
        elif copy.message in known:
            report.found("excluded_message", f"in {episodes}")
        elif "messages" not in facts.truncated:
            report.found("unknown_message", f"in {episodes}")


def _judge_order(facts: Facts, offsets: Offsets, report: Report) -> None:
    for scope in by_scope(latest_revisions(facts.closed)):
        last = -1
        for episode in scope:
            core = offsets.in_core_order(episode)
            if any(later <= earlier for earlier, later in zip([last, *core], core, strict=False)):
                report.found("out_of_order", f"{episode.episode_id}")
            last = max([last, *core])


def _judge_refused(facts: Facts, fates: Counter[str], report: Report) -> None:
    """Records that cannot be taken: to the dead letters, or not consumed yet."""
    for position in sorted(facts.refused):
        if position in facts.dead:
            fates["dead_lettered"] += 1
        elif not _is_consumed(facts.consumed, position):
            fates["not_consumed"] += 1
        else:
            fates["lost"] += 1
            report.found("lost", f"a record that cannot be taken, {_where(position)}, without a dead letter")


def _has_label(facts: Facts, message: bytes) -> bool:
    """Whether MongoDB knows the message's episode: all that is left when the topic has let go of it."""
    known = facts.messages.get(message)
    return known is not None and known.episode_id is not None


def _is_consumed(offsets: dict[int, int], position: Position) -> bool:
    return position.offset < offsets.get(position.partition, 0)


def _name(produced: Produced) -> str:
    return f"a message of {produced.conversation_id}, {_where(produced.position)}"


def _where(position: Position) -> str:
    return f"partition {position.partition}, offset {position.offset}"
