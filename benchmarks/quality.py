"""Measures quality on labelled data.

python -m benchmarks.quality [gate] [extractive] [golden] [titles] [people] [redaction]
"""

import argparse
import asyncio
import re
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import Stemmer
from opentelemetry.trace import NoOpTracer

from afterword.reading.memory import Memory
from afterword.schemas import Quality
from afterword.streams.errors import ProviderError
from afterword.streams.redactor import Redactor
from afterword.streams.settings import Llm, Redaction, Settings, load_settings
from afterword.streams.stores.episodes import StoredEpisode
from afterword.streams.stores.sqlite import SqliteEpisodes, SqliteFile, SqliteMessages
from afterword.streams.stores.sqlite_index import SqliteIndex
from afterword.streams.summarizer.providers import maker_of
from afterword.streams.summarizer.summarizer import make_summarizer
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from afterword.streams.summarizer.timers import TRANSIENT
from afterword.streams.telemetry.metrics import Metrics
from afterword_text.extractive import summarize
from afterword_text.gate import SourceTexts, assess
from afterword_text.language import detect, words
from afterword_text.redaction import ENTITIES, Span
from afterword_text.sentences import cut_at_word, split_sentences
from afterword_text.statements import statements
from afterword_text.texts import Texts
from benchmarks.data import DATA, Fact, Meeting, Pair, Split, episode_of, golden, meetings, pairs
from benchmarks.measuring import show
from tests.samples import NOON, a_fact, a_stored_episode

PASSED = "passed"
TWENTY_MESSAGES = range(16, 25)
ROLLING_TOKENS = 800
TITLES = 100
PROFILE_EPISODES = 1000
FACT_SENTENCES = 2
"""A fact may be spread over this many consecutive sentences."""
KINDS = ("who", "what", "when", "decision", "open")
HALVES: Mapping[Split, str] = {"dev": "the rules were written on it", "test": "held out"}


def shares(**values: float) -> dict[str, str]:
    return {name.replace("_", " "): f"{value:.3f}" for name, value in values.items()}


# The quality gate


class Verdict(NamedTuple):
    pair: Pair
    reason: str
    """Why the gate refused it, or PASSED."""


class GateResult(NamedTuple):
    verdicts: Sequence[Verdict]

    @property
    def precision(self) -> float:
        """Share of the refused summaries that were spoilt."""
        return mean(one.pair.kind != "faithful" for one in self.verdicts if one.reason != PASSED)

    @property
    def recall(self) -> float:
        """Share of the spoilt summaries that were refused."""
        return mean(one.reason != PASSED for one in self.verdicts if one.pair.kind != "faithful")


def gate(split: Split) -> GateResult:
    """Run the gate with its default settings on one half of the labelled summaries."""
    return GateResult([Verdict(pair, _reason(pair)) for pair in pairs() if pair.split == split])


def _reason(pair: Pair) -> str:
    problems = assess(pair.source, pair.texts).problems
    return problems[0].reason if problems else PASSED


def show_gate() -> None:
    for split, half in HALVES.items():
        result = gate(split)
        by_kind = sorted(result.verdicts, key=_kind)
        rows = []
        for (kind, origin), group in groupby(by_kind, key=_kind):
            reasons = Counter(one.reason for one in group)
            count = reasons.total()
            refused = count - reasons.pop(PASSED, 0)
            told = ", ".join(f"{reason} {times}" for reason, times in reasons.most_common())
            refused_share = {"refused": f"{refused / count:.0%}", "reasons": told}
            rows.append({"": kind, "made from": origin, "pairs": str(count), **refused_share})
        note = f"precision {result.precision:.3f}, recall {result.recall:.3f}"
        show(f"Quality gate, {split} ({half})", rows, note)
    took = [_cpu_of(partial(_reason, pair)) for pair in pairs() if len(pair.turns) in TWENTY_MESSAGES]
    print(f"{1000 * median(took):.1f} ms of CPU for a summary of about twenty messages\n")


def _kind(verdict: Verdict) -> tuple[str, str]:
    return verdict.pair.kind, verdict.pair.origin


def _cpu_of(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


# Extractive summaries of meetings, which are far longer than episodes, compared with people's


def extractive_summary(meeting: Meeting) -> str:
    return summarize(episode_of("meeting", [("user", text) for text in meeting.turns]), "", ROLLING_TOKENS).long_summary


METHODS: Mapping[str, Callable[[Meeting], str]] = {
    "extractive": extractive_summary,
    "LEAD-3": lambda meeting: " ".join(split_sentences("\n".join(meeting.turns))[:3]),
    "first 1,000 characters": lambda meeting: cut_at_word("\n".join(meeting.turns), 1000),
    "written by people": lambda meeting: meeting.summary,
}


def show_extractive() -> None:
    rows = []
    for name, method in METHODS.items():
        made = [(method(meeting), meeting) for meeting in meetings()]
        one, two, longest = map(mean, zip(*(rouge(text, meeting.summary) for text, meeting in made), strict=True))
        grounding = mean(_grounding(text, meeting) for text, meeting in made)
        rows.append({"": name, **shares(ROUGE_1=one, ROUGE_2=two, ROUGE_L=longest, grounding=grounding)})
    show("Summaries of 35 meetings of QMSum", rows)


def _grounding(text: str, meeting: Meeting) -> float:
    source = SourceTexts("\n".join(meeting.turns))
    return assess(source, Texts("-", "-", text)).grounding


def rouge(candidate: str, reference: str) -> tuple[float, float, float]:
    """Return ROUGE-1, ROUGE-2 and ROUGE-L as F-measures (Lin 2004), as `rouge-score` does with `use_stemmer=True`."""
    made, wanted = _rouge_words(candidate), _rouge_words(reference)
    return (
        _shared_runs(made, wanted, 1),
        _shared_runs(made, wanted, 2),
        _f_measure(_common(made, wanted), len(made), len(wanted)),
    )


def _rouge_words(text: str) -> list[str]:
    stemmer = Stemmer.Stemmer("porter")
    return [stemmer.stemWord(word) if len(word) > 3 else word for word in re.findall(r"[a-z0-9]+", text.lower())]


def _shared_runs(made: Sequence[str], wanted: Sequence[str], size: int) -> float:
    one, other = (Counter(tuple(w[i : i + size]) for i in range(len(w) - size + 1)) for w in (made, wanted))
    return _f_measure((one & other).total(), one.total(), other.total())


def _common(made: Sequence[str], wanted: Sequence[str]) -> int:
    """Return the length of the longest common subsequence."""
    row = [0] * (len(wanted) + 1)
    for word in made:
        above = row[:]
        for i, other in enumerate(wanted):
            row[i + 1] = above[i] + 1 if word == other else max(above[i + 1], row[i])
    return row[-1]


def _f_measure(hits: int, made: int, wanted: int) -> float:
    return 2 * hits / (made + wanted) if hits else 0.0


# The golden set: facts that a summary of an episode must contain

Write = Callable[[SummaryRequest], Awaitable[Summary]]


async def beginning(request: SummaryRequest) -> Summary:
    """Return the first 250 characters of an episode, about as many as a short summary has."""
    text = cut_at_word("\n".join(message.content for message in request.episode.messages), 250)
    return Summary("-", "-", text, quality=Quality(source="fallback", reason="beginning"), model="beginning")


def show_golden() -> None:
    """Also score the configured LLM, if there is one (AFTERWORD_LLM__PROVIDER and its other settings)."""
    settings = load_settings()
    rows = [
        asyncio.run(golden_row("first 250 characters", beginning)),
        asyncio.run(golden_row_of(settings.model_copy(update={"llm": Llm()}))),
    ]
    if settings.llm.provider != "extractive":
        rows.append(asyncio.run(golden_row_of(settings)))
    show("Facts of the golden set that summaries hold", rows)


async def golden_row_of(settings: Settings) -> dict[str, str]:
    """Score the summaries made with these settings. A summary that the gate refuses contains no facts."""
    summarizer = make_summarizer(settings, None, Metrics("golden", ""), NoOpTracer())
    try:
        write, at_a_time = summarizer.summarize_without_fallback, settings.llm.max_concurrency
        return await golden_row(maker_of(settings).model, write, at_a_time)
    finally:
        await summarizer.close()


async def golden_row(name: str, write: Write, at_a_time: int = 1) -> dict[str, str]:
    slots = asyncio.Semaphore(at_a_time)

    async def texts(request: SummaryRequest) -> Sequence[str]:
        async with slots:
            try:
                return (await write(request)).of_episode
            except TRANSIENT:
                raise
            except ProviderError:
                return ()

    episodes = list(golden())
    written = await asyncio.gather(*[texts(SummaryRequest(episode, "", ROLLING_TOKENS)) for episode, _ in episodes])
    held = [
        (fact.kind, is_held(fact, said)) for (_, facts), said in zip(episodes, written, strict=True) for fact in facts
    ]
    by_kind = {kind: mean(is_there for of, is_there in held if of == kind) for kind in KINDS}
    in_short = mean(
        is_held(fact, said[1:2]) for (_, facts), said in zip(episodes, written, strict=True) for fact in facts
    )
    failed = {"without a summary": str(written.count(()))}
    return {"": name, **shares(facts=mean(there for _, there in held), **by_kind, in_the_short_one=in_short), **failed}


def is_held(fact: Fact, texts: Iterable[str]) -> bool:
    """Return whether two consecutive sentences of one text say everything that the fact needs.

    Words are compared by their stems. Grammar is ignored, including a "not" elsewhere in the sentence.
    """
    return any(
        all(any(f" {_stems(way)} " in window for way in ways) for ways in fact.needs)
        for text in texts
        for window in _windows(text)
    )


def _windows(text: str) -> Iterator[str]:
    sentences = [_stems(sentence) for sentence in split_sentences(text)]
    for first in range(max(1, len(sentences) - FACT_SENTENCES + 1)):
        yield f" {' '.join(sentences[first : first + FACT_SENTENCES])} "


def _stems(text: str) -> str:
    return " ".join(map(_stem, words(re.sub(r"n['’]t\b", " not", text))))


@cache
def _stem(word: str) -> str:
    return str(Stemmer.Stemmer("english").stemWord(word))


# Titles without an LLM, to be judged by people


def titles() -> list[str]:
    """Return the titles of a hundred English conversations, in an order that mixes all kinds.

    Meetings are left out, because their turns begin with the speaker.
    """
    known = {pair.id: pair for pair in pairs() if not pair.id.startswith("qmsum")}
    english = [pair for pair in known.values() if detect(" ".join(text for _, text in pair.turns)) == "en"]
    chosen = (english[::2] + english[1::2])[:TITLES]
    return [summarize(episode_of(pair.id, pair.turns), "", ROLLING_TOKENS).title for pair in chosen]


def show_titles() -> None:
    for number, title in enumerate(titles(), 1):
        print(f"{number:3} {title}")


# Redaction


class Labelled(NamedTuple):
    """A text with the entities in it."""

    text: str
    spans: Sequence[Span]


def labelled(half: str) -> Iterator[Labelled]:
    """Yield the texts of a file, in which entities are marked as `⟦email|…⟧`.

    `¦` is removed: it keeps scanners from taking example keys for leaked secrets.
    """
    for line in (DATA / f"redaction_{half}.txt").read_text(encoding="utf-8").replace("¦", "").splitlines():
        if line.startswith("#"):
            continue
        text, at, spans = "", 0, []
        for mark in re.finditer(r"⟦(\w+)\|([^⟧]*)⟧", line):
            text += line[at : mark.start()]
            spans.append(Span(len(text), len(text) + len(mark[2]), mark[1].upper()))
            text += mark[2]
            at = mark.end()
        yield Labelled(text + line[at:], spans)


def show_redaction() -> None:
    redactor = Redaction().redactor()
    for half, what in HALVES.items():
        show(f"Redaction, {half} ({what})", redaction_rows(half, redactor))
    texts = [one.text for half in HALVES for one in labelled(half)]
    took = min(_cpu_of(lambda: [redactor.redacted(text) for text in texts]) for _ in range(20))
    print(f"{1e6 * took / len(texts):.0f} µs of CPU for a text\n")


def redaction_rows(half: str, redactor: Redactor) -> list[dict[str, str]]:
    wanted, hidden, found, right = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for one in labelled(half):
        spans = redactor.spans(one.text)
        wanted.update(span.name for span in one.spans)
        hidden.update(span.name for span in one.spans if any(_covers(other, span) for other in spans))
        found.update(span.name for span in spans)
        right.update(span.name for span in spans if any(_overlaps(span, other) for other in one.spans))
    names = [name.upper() for name in ENTITIES]
    return [
        {
            "": label,
            "labelled": str(_sum(wanted, group)),
            "found": str(_sum(found, group)),
            **shares(
                precision=_sum(right, group) / max(1, _sum(found, group)),
                recall=_sum(hidden, group) / max(1, _sum(wanted, group)),
            ),
        }
        for label, group in [*((name.lower(), [name]) for name in names), ("all", names)]
    ]


def _sum(counts: Counter[str], names: Iterable[str]) -> int:
    return sum(counts[name] for name in names)


def _covers(span: Span, wanted: Span) -> bool:
    return span.name == wanted.name and span.start <= wanted.start and wanted.end <= span.end


def _overlaps(span: Span, other: Span) -> bool:
    return span.name == other.name and span.start < other.end and other.start < span.end


# Facts about people without an LLM, and profiles


def labelled_sentences() -> list[tuple[bool, str]]:
    """Return the sentences of the sample, and whether each says something lasting about its speaker."""
    lines = (DATA / "first_person.tsv").read_text(encoding="utf-8").splitlines()
    return [(label == "fact", sentence) for _, label, sentence in (line.split("\t") for line in lines)]


def show_people() -> None:
    sample = labelled_sentences()
    found = [is_fact for is_fact, sentence in sample if any(one.status != "ended" for one in statements(sentence))]
    facts = sum(is_fact for is_fact, _ in sample)
    counts = {"": "first person", "sentences": str(len(sample)), "facts": str(facts), "found": str(len(found))}
    show(
        "Facts about people without an LLM, held out",
        [counts | shares(precision=mean(found), recall=sum(found) / facts)],
    )
    for facts in (1, 3):
        took = asyncio.run(profile_seconds(facts))
        text = (
            f"{1000 * median(took):.1f} ms of CPU for a profile of {PROFILE_EPISODES} episodes with {facts} facts each"
        )
        print(f"{text} (median of {len(took)})\n")


async def profile_seconds(facts: int) -> list[float]:
    """Measure the CPU time of profiles with this many facts per episode; some facts change a value."""
    with tempfile.TemporaryDirectory() as directory:
        file = SqliteFile(Path(directory) / "afterword.sqlite")
        episodes = SqliteEpisodes(file)
        for number in range(PROFILE_EPISODES):
            await episodes.put(an_episode_with_facts(number, facts), None)
        memory = Memory(episodes, SqliteMessages(file), SqliteIndex(file).search)
        took = []
        for _ in range(50):
            began = time.process_time()
            await memory.profile("u1", "t1")
            took.append(time.process_time() - began)
        await file.close()
    return took


def an_episode_with_facts(number: int, count: int) -> StoredEpisode:
    home = a_fact(f"lives in town {number // 50}", attribute="home_city")
    others = (a_fact(f"likes the song number {number}, {n}", kind="preference") for n in range(count))
    facts = (home, *others)[:count] if number % 2 else tuple(others)
    at = NOON + timedelta(hours=number)
    return a_stored_episode(1, conversation_id=f"c{number}", facts=facts, started_at=at, ended_at=at)


PARTS: Mapping[str, Callable[[], Any]] = {
    "gate": show_gate,
    "extractive": show_extractive,
    "golden": show_golden,
    "titles": show_titles,
    "people": show_people,
    "redaction": show_redaction,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__.partition(":")[0])
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="which to print; default: all")
    for part in parser.parse_args().parts or PARTS:
        PARTS[part]()


if __name__ == "__main__":
    main()
