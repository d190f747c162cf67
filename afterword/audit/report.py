"""Findings of an audit, for people and for programs."""

from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from afterword.streams.visible import shown

EXAMPLES_NAMED = 10

FindingKind = Literal[
    "lost",
    "duplicated",
    "out_of_order",
    "altered",
    "unknown_message",
    "excluded_message",
    "wrong_agent",
    "state_unreadable",
    "two_partitions",
    "not_archived",
    "archived_differently",
    "ordinal_gap",
    "committed_twice",
    "fingerprint_wrong",
    "not_stored",
    "stored_differently",
    "label_wrong",
    "not_indexed",
    "not_announced",
    "announced_differently",
    "announced_wrongly",
    "resurrected",
    "stale",
    "underived",
]

MEANING: dict[FindingKind, str] = {
    "lost": "consumed, but missing in an episode, not pending, not dead-lettered",
    "duplicated": "in more than one episode of the same conversation or agent, or in one and still pending",
    "out_of_order": "episodes whose messages are not in log order",
    "altered": "content in the episode differs from what was produced",
    "unknown_message": "in an episode, but never produced",
    "excluded_message": "in an episode, although skipped or dead-lettered",
    "wrong_agent": "in an episode of an agent it was not addressed to",
    "state_unreadable": "a row of the segmenter's state is damaged, and its conversation in quarantine",
    "two_partitions": "conversations with messages in several partitions: producers differ in their partitioner",
    "not_archived": "before the archiver's offset, but not archived",
    "archived_differently": "archived content differs from what was produced",
    "ordinal_gap": "ordinals are not 1, 2, 3 …",
    "committed_twice": "the same revision of an episode was committed more than once",
    "fingerprint_wrong": "fingerprint does not match the messages",
    "not_stored": "episodes summarized, but not stored",
    "stored_differently": "stored fingerprint differs",
    "label_wrong": "archived core messages do not have the episode's id",
    "not_indexed": "episodes summarized, but not in the search index",
    "not_announced": "episodes before the summarizer's offset, but without summary.created",
    "announced_differently": "events with the same id, but different contents",
    "announced_wrongly": "summary.created does not match its episode",
    "resurrected": "deleted, but stored, indexed or in a stored episode",
    "stale": "stored, but not as it was edited last",
    "underived": "episodes whose rolling summary is older than a change of an earlier message",
}


@dataclass
class Finding:
    """Number of violations of one kind, with the first `examples` as sorted: ids and positions, never contents."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, count: int, examples: Iterable[str]) -> None:
        self.count += count
        for example in examples:
            insort(self.examples, example)
            del self.examples[EXAMPLES_NAMED:]


@dataclass(frozen=True)
class Missing:
    """What had not arrived when the wait for it ran out."""

    after_seconds: float
    not_segmented: int
    """Messages that the segmenter has not consumed."""
    not_archived: int
    """Messages that the archiver has not consumed."""
    not_summarized: int
    """Episodes that are closed, but neither announced, deleted nor dead-lettered."""
    episodes: list[str]
    """Ids of the first of these episodes."""

    def lines(self) -> Iterator[str]:
        counts = {"messages not segmented": self.not_segmented, "messages not archived": self.not_archived}
        counts["episodes not summarized"] = self.not_summarized
        found = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
        yield f"missing after {self.after_seconds:g} s: {found or 'nothing any more'}"
        yield from (f"  {episode}" for episode in self.episodes)


@dataclass
class Report:
    """Counts of `messages`, `episodes` and `summaries`; anything in `findings` breaks the promise."""

    messages: dict[str, int] = field(default_factory=dict)
    episodes: dict[str, int] = field(default_factory=dict)
    summaries: dict[str, int] = field(default_factory=dict)
    findings: dict[FindingKind, Finding] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: Missing | None = None

    @property
    def clean(self) -> bool:
        """Whether there are no findings, and nothing that was waited for is missing."""
        return not self.findings and self.missing is None

    def found(self, kind: FindingKind, example: str) -> None:
        self.findings.setdefault(kind, Finding()).add(1, (example,))

    def add(self, part: "Report") -> None:
        """Add the report of another part of the same snapshot."""
        self.messages = _sums(self.messages, part.messages)
        self.episodes = _sums(self.episodes, part.episodes)
        self.summaries = _sums(self.summaries, part.summaries)
        for kind, finding in part.findings.items():
            self.findings.setdefault(kind, Finding()).add(finding.count, finding.examples)
        self.notes += [note for note in part.notes if note not in self.notes]

    def as_dict(self) -> dict[str, Any]:
        return {
            "clean": self.clean,
            "messages": self.messages,
            "episodes": self.episodes,
            "summaries": self.summaries,
            "findings": {kind: vars(finding) for kind, finding in self.findings.items()},
            "notes": self.notes,
            "missing": self.missing and vars(self.missing),
        }

    def lines(self) -> Iterator[str]:
        """Format for people; an id with a line break in it is still one line, and none of ours."""
        for title, counts in (("messages", self.messages), ("episodes", self.episodes), ("summaries", self.summaries)):
            yield title
            yield from (f"  {name.replace('_', ' '):<20}{count:>12,}" for name, count in counts.items())
        yield from (shown(f"note: {note}") for note in self.notes)
        for kind in get_args(FindingKind):
            if kind in self.findings:
                yield f"{kind}: {self.findings[kind].count:,}: {MEANING[kind]}"
                yield from (shown(f"  {example}") for example in self.findings[kind].examples)
        if self.missing:
            yield from map(shown, self.missing.lines())
        if self.findings:
            yield "NOT CLEAN"
        elif self.missing:
            yield "INCOMPLETE: nothing is lost, duplicated or conflicting in what has arrived"
        else:
            yield "clean: nothing is lost, duplicated or conflicting"


def _sums(counts: dict[str, int], others: dict[str, int]) -> dict[str, int]:
    """Add up what was counted in both; nothing was yet in a report that is empty."""
    return {name: count + counts.get(name, 0) for name, count in others.items() if not counts or name in counts}
