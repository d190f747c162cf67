"""Audits the delivery promise: every message is in one episode, and every episode is stored once and announced.

`evidence.py` reads topics and stores into tables. This module derives further tables from them, which the queries
share. Each finding is a query in `sql/findings.sql`. Names that begin with a colon are fields of `Circumstances`, which
is in `evidence.py`, as is the SQL function `named`. A `CROSS JOIN` makes SQLite begin with the table on its left, which
is the smaller one: SQLite itself has no statistics to choose by.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

from afterword.operating.evidence import (
    CLOCKS_APART_MS,
    INDEXES,
    Evidence,
    open_evidence,
    read_deployment,
    scope_name,
    script,
)
from afterword.streams.kafka.clients import broker_errors
from afterword.streams.kafka.log_reader import ReadProgress, open_log
from afterword.streams.segmenter.conversation import activated, deactivated, recipients
from afterword.streams.settings import Settings
from afterword_text.visible import shown

EXAMPLES_NAMED = 10
FATES: Final = (
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
"""What becomes of a message. A message for several agents has the fate of the copy that comes last in this list."""
STANDING = script("standing")
AS_EDIT = """
INSERT INTO change
SELECT partition, offset, conversation, tenant, message, content, FALSE, FALSE FROM standing WHERE id = :id
"""
CHANGED = script("changed")
COPIES = script("copies")
PROGRESS = script("progress")
FATE_COUNTS: Final = script("fates")


class FindingKind(NamedTuple):
    """A way to break the promise. Each row that its query yields is a violation."""

    meaning: str
    query: str


def _queries(name: str) -> dict[str, FindingKind]:
    """Return the queries of a script, each with the name and the sentence in the comment above it."""
    found = re.findall(r"^-- ([\w ]+): (.*)\n((?:.+\n)+)", script(name), re.MULTILINE)
    return {named: FindingKind(meaning, query) for named, meaning, query in found}


COUNTS: Final = _queries("counts")
FINDINGS: Final[Mapping[str, FindingKind]] = _queries("findings")


@dataclass
class Finding:
    """The number of violations of one kind and the first examples in order: ids and positions, never contents."""

    count: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass
class Report:
    """Counts of `messages`, `episodes` and `summaries`. Anything in `findings` breaks the promise."""

    messages: dict[str, int] = field(default_factory=dict)
    episodes: dict[str, int] = field(default_factory=dict)
    summaries: dict[str, int] = field(default_factory=dict)
    findings: dict[str, Finding] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: dict[str, int] = field(default_factory=dict)
    """The number of records that each unfinished worker had left when the wait timed out."""

    @property
    def clean(self) -> bool:
        """Whether there are no findings and every worker finished in time."""
        return not self.findings and not self.missing

    def as_dict(self) -> dict[str, Any]:
        return {"clean": self.clean, **asdict(self)}

    def lines(self) -> Iterator[str]:
        """Format the report for people.

        An id with a line break stays on one line and cannot pass for a line of the report.
        """
        for title, counts in (("messages", self.messages), ("episodes", self.episodes), ("summaries", self.summaries)):
            yield title
            yield from (f"  {name.replace('_', ' '):<20}{count:>12,}" for name, count in counts.items())
        yield from (shown(f"note: {note}") for note in self.notes)
        for kind, finding in self.findings.items():
            yield f"{kind}: {finding.count:,}: {FINDINGS[kind].meaning}"
            yield from (shown(f"  {example}") for example in finding.examples)
        if self.missing:
            left = ", ".join(f"{count:,} by the {role}" for role, count in self.missing.items())
            yield f"records not finished in time: {left}"
        if self.findings:
            yield "NOT CLEAN"
        elif self.missing:
            yield "INCOMPLETE: nothing is lost, duplicated or conflicting in what has arrived"
        else:
            yield "clean: nothing is lost, duplicated or conflicting"


async def run(settings: Settings, wait_seconds: float = 0, progress: ReadProgress = lambda *_: None) -> Report:
    """Audit a deployment.

    `wait_seconds` limits the wait until the workers have finished what is on their topics; 0 means not to wait. The
    report's `missing` counts the records that were left by then. It does not wait for pending messages. `progress` is
    called with a description of the current step, how much of it is done, and the total.

    Raises: BrokerUnavailable, StoreUnavailable, TopicMissing, TopicStalled, NoRoom.
    """
    with broker_errors(settings.kafka.bootstrap_servers), open_evidence() as evidence:
        async with open_log(settings.kafka) as log:
            missing = await read_deployment(settings, log, evidence, wait_seconds, progress)
        report = judge(evidence)
    report.missing = missing
    return report


def judge(evidence: Evidence) -> Report:
    """Run the queries of every finding. Work in progress is counted, but is not a finding."""
    evidence.run_all(INDEXES + STANDING)
    derive_expected(evidence)
    evidence.run_all(CHANGED + COPIES + PROGRESS)
    counts: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for named, count in COUNTS.items():
        kind, name = named.split()
        counts[kind][name] = evidence.value(count.query)
    fates = Counter(dict(evidence.rows(FATE_COUNTS, fates=" ".join(FATES))))
    counts["messages"] = {"total": fates.total(), **{fate: fates[fate] for fate in FATES}, **counts["messages"]}
    notes = evidence.circumstances.notes
    report = Report(counts["messages"], counts["episodes"], counts["summaries"], notes=notes)
    for name, finding in FINDINGS.items():
        limited = f"SELECT *, COUNT(*) OVER () FROM ({finding.query}) ORDER BY 1 LIMIT {EXAMPLES_NAMED}"  # noqa: S608 – the query is one of FINDINGS
        if rows := list(evidence.rows(limited)):
            report.findings[name] = Finding(rows[0][1], [example for example, _ in rows])
    return report


class Event(NamedTuple):
    """A message, or a flush or a conversation's deletion, because these change the active agents."""

    kind: str
    id: int
    conversation: str
    message: bytes
    partition: int
    offset: int
    record_ms: int
    agent: str | None
    content: int | None


def derive_expected(evidence: Evidence) -> None:
    """Find the scopes of every message that the segmenter accepts: the conversation, or each of its agents.

    Repeats are not accepted. Whether a message is a repeat, and which agents receive it, depends on the log's order.
    """
    evidence.run_all(script("in_order"))
    circumstances = evidence.circumstances
    rows = evidence.rows(script("events_in_order"))
    for conversation, found in groupby(map(Event._make, rows), key=attrgetter("conversation")):
        accepted, everyones = _accepted(evidence, found), scope_name(conversation)
        if circumstances.max_agents is None:
            expected: Iterator[tuple[Event, str]] = ((sent, everyones) for sent, _ in accepted)
        else:
            events, silences = zip(*accepted, strict=True)
            if circumstances.messages_truncated or any(silences):
                expected = _where_found(evidence, events, everyones)
            else:
                expected = _by_agent(evidence, events, conversation, circumstances.max_agents)
        for sent, scope in expected:
            evidence.add("expected", sent.id, scope)


def _accepted(evidence: Evidence, events: Iterable[Event]) -> Iterator[tuple[Event, bool]]:
    """Yield a conversation's events, leaving out messages that repeat one within the segmenter's dedupe window.

    A repeat with another text than the last one is an edit, unless it is a dead letter, of which there are none here.
    The flag says whether, by the records' timestamps, the conversation was silent for so long before the event that the
    segmenter may have forgotten it. Clocks may be an hour apart, and repeats do not end a silence. A repeat stays if
    its original may have been forgotten and the repeat is pending or in an episode that begins after the original.
    """
    found_again = """
        SELECT EXISTS (SELECT 1 FROM place WHERE id = :id AND (first_offset IS NULL OR first_offset > :after))
    """
    circumstances = evidence.circumstances
    forget_ms = circumstances.forget_after_ms
    long_ms, last_ms = max(forget_ms - CLOCKS_APART_MS, forget_ms // 2), 0
    accepted: dict[bytes, tuple[int, int]] = {}  # each message's number and offset
    told: dict[bytes, int | None] = {}  # the hash of each message's last text
    number = forgotten = 0  # messages with a number below `forgotten` may have been forgotten
    for sent in events:
        if sent.kind != "message":
            yield sent, False
            continue
        is_after_silence = bool(long_ms and last_ms) and (sent.record_ms <= 0 or sent.record_ms - last_ms >= long_ms)
        if is_after_silence:
            forgotten = number
        earlier, after = accepted.get(sent.message, (-1, -1))
        if earlier >= max(0, number - circumstances.dedupe_window) and (
            earlier >= forgotten or not evidence.value(found_again, id=sent.id, after=after)
        ):
            if circumstances.repeats_edit and told[sent.message] != sent.content:
                told[sent.message] = sent.content
                evidence.rows(AS_EDIT, id=sent.id)
            continue
        last_ms = max(last_ms, sent.record_ms)
        accepted[sent.message], told[sent.message] = (number, sent.offset), sent.content
        number += 1
        yield sent, is_after_silence


def _where_found(evidence: Evidence, events: Iterable[Event], everyones: str) -> Iterator[tuple[Event, str]]:
    """Yield messages, each with a scope in which it is found.

    These scopes take the place of agents' scopes that cannot be derived, because agents were active before the oldest
    record or before a long silence.
    """
    scopes = """
        SELECT scope FROM appearance WHERE message = :message
        UNION SELECT scope FROM place WHERE id = :id AND NOT handed_over
    """
    for sent in events:
        if sent.kind == "message":
            scopes_found = [scope for (scope,) in evidence.rows(scopes, id=sent.id, message=sent.message)]
            yield from ((sent, scope) for scope in scopes_found or [everyones])


def _by_agent(
    evidence: Evidence, events: Iterable[Event], conversation: str, max_agents: int
) -> Iterator[tuple[Event, str]]:
    """Yield each message once for each agent that receives it, with that agent's scope."""
    everyones = scope_name(conversation)
    stays_nobodys = "SELECT EXISTS (SELECT 1 FROM place WHERE id = :id AND scope = :everyones AND NOT handed_over)"
    active: list[str] = []
    waiting: list[Event] = []
    for event in events:
        if event.kind == "flush":
            active = deactivated(active, event.agent or "")
        elif event.kind == "deletion":
            active = []
            yield from ((waited, everyones) for waited in waiting)
            waiting = []
        elif event.agent is None and not active:
            waiting.append(event)
        else:
            if not active:  # earlier messages go to this agent, unless they are in a closed episode
                for waited in waiting:
                    is_nobodys = evidence.value(stays_nobodys, id=waited.id, everyones=everyones)
                    yield waited, everyones if is_nobodys else scope_name(conversation, event.agent)
                waiting = []
            yield from ((event, scope_name(conversation, agent)) for agent in recipients(active, event.agent))
            active, _ = activated(active, event.agent, max_agents)
    yield from ((waited, everyones) for waited in waiting)
