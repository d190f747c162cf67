"""Redaction on labelled texts: of what was found, what was one; of what was one, what was found whole."""

import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from afterword.streams.redaction.entities import ENTITIES, Span
from afterword.streams.redaction.redactor import Redactor
from afterword.streams.segmenter.processor import Segmenter
from afterword.streams.settings import Episodes, Redaction
from afterword.streams.tokens import count_tokens
from benchmarks.costs import NOON_MS, Record
from benchmarks.load import dialogues

HALVES = {"dev": "rules were written on it", "test": "held out"}
DATA = Path(__file__).parent / "data"
LABELLED = re.compile(r"⟦(\w+)\|([^⟧]*)⟧")
BREAK = "¦"
COMMENT = "#"
REPEATS = 50
WHERES: tuple[Literal["off", "everywhere"], ...] = ("off", "everywhere")
MESSAGES, CONVERSATIONS = 4000, 400


@dataclass(frozen=True)
class Labelled:
    """A text, and what in it is an entity."""

    text: str
    spans: tuple[Span, ...]


@dataclass
class Score:
    """Counts by entity."""

    labelled: Counter[str] = field(default_factory=Counter)
    hidden: Counter[str] = field(default_factory=Counter)
    """Of what is labelled: nothing of it is left."""
    found: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    """Of what was found: it is at least in part what it was taken for."""

    def precision(self, names: Iterable[str]) -> float:
        return _share(self.right, self.found, names)

    def recall(self, names: Iterable[str]) -> float:
        return _share(self.hidden, self.labelled, names)


def _share(part: Counter[str], whole: Counter[str], names: Iterable[str]) -> float:
    known = list(names)
    return sum(part[name] for name in known) / max(1, sum(whole[name] for name in known))


def read(half: str) -> Iterator[Labelled]:
    """Read a line of `redaction_HALF.txt` for each text, with `⟦email|…⟧` around what is labelled.

    BREAK is left out: it keeps scanners from taking an example of a key for a secret that was committed.
    """
    for line in (DATA / f"redaction_{half}.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith(COMMENT):
            yield labelled(line.replace(BREAK, ""))


def labelled(line: str) -> Labelled:
    text, at, spans = "", 0, []
    for mark in LABELLED.finditer(line):
        text += line[at : mark.start()]
        spans.append(Span(len(text), len(text) + len(mark[2]), mark[1].upper()))
        text += mark[2]
        at = mark.end()
    return Labelled(text + line[at:], tuple(spans))


def score(half: str, redactor: Redactor) -> Score:
    made = Score()
    for one in read(half):
        found = redactor.spans(one.text)
        made.labelled.update(span.name for span in one.spans)
        made.found.update(span.name for span in found)
        made.hidden.update(wanted.name for wanted in one.spans if any(_covers(span, wanted) for span in found))
        made.right.update(span.name for span in found if any(_overlaps(span, wanted) for wanted in one.spans))
    return made


def _covers(span: Span, wanted: Span) -> bool:
    return span.name == wanted.name and span.start <= wanted.start and wanted.end <= span.end


def _overlaps(span: Span, wanted: Span) -> bool:
    return span.name == wanted.name and span.start < wanted.end and wanted.start < span.end


def microseconds(redactor: Redactor) -> float:
    """Processor time for one of the texts, the mean over both halves."""
    texts = [one.text for half in HALVES for one in read(half)]
    start = time.process_time()
    for _ in range(REPEATS):
        for text in texts:
            redactor.redacted(text)
    return 1e6 * (time.process_time() - start) / (REPEATS * len(texts))


def segmenter_microseconds(rounds: int = 3) -> dict[str, float]:
    """Processor time of the segmenter's rules for a message of real dialogues, by where is redacted: the best round."""
    records = [Record(key, value, at) for at, (key, value) in enumerate(dialogues(MESSAGES, CONVERSATIONS))]
    settings = {where: Redaction(where=where) for where in WHERES}
    best = dict.fromkeys(WHERES, math.inf)
    for _ in range(rounds):
        for where, redaction in settings.items():
            segmenter = Segmenter(
                Episodes(), "episodes", "dead", {}, {}, count_tokens=count_tokens, redaction=redaction.of_records()
            )
            start = time.process_time()
            segmenter.process(records, NOON_MS)
            best[where] = min(best[where], 1e6 * (time.process_time() - start) / len(records))
    return best


def show(console: Console) -> None:
    """With the default settings."""
    redactor = Redaction().redactor()
    for half, what in HALVES.items():
        console.print(_table(half, what, score(half, redactor)))
    console.print(f"{microseconds(redactor):.0f} µs a text")
    took = ", ".join(f"{where} {each:.0f} µs" for where, each in segmenter_microseconds().items())
    console.print(f"segmenter's rules, a message of {MESSAGES} in real dialogues: {took}\n")


def _table(half: str, what: str, made: Score) -> Table:
    table = Table("entity", "labelled", "found", "precision", "recall", title=f"Redaction, {half} ({what})")
    names = [name.upper() for name in ENTITIES]
    for label, group in [*((name.lower(), [name]) for name in names), ("all", names)]:
        counts = sum(made.labelled[name] for name in group), sum(made.found[name] for name in group)
        shares = made.precision(group), made.recall(group)
        table.add_row(label, *map(str, counts), *(f"{share:.3f}" for share in shares))
    return table
