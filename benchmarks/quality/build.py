"""Makes the labelled set from the corpora: python -m benchmarks.quality.build DIRECTORY

DIRECTORY holds superseg_validation.jsonl, tiage_validation.jsonl and tiage_train.jsonl, as Def-DTS published them, and
qmsum_val.jsonl.
The same input always makes the same set. What comes of one conversation is all in one half: `dev`, on which limits were
chosen, or `test`, which was only looked at for the figures.
"""

import argparse
import gzip
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from afterword.golden import episode_of_turns
from afterword.streams.summarizer.extractive import summarize
from afterword.streams.summarizer.sentences import split_sentences
from benchmarks.quality import spoil
from benchmarks.quality.meetings import MEETINGS, part, spoken
from benchmarks.quality.pairs import DATA, Pair, Split, write
from benchmarks.quality.segmentation import DIALOGUES
from tests.dialogues import expand

SEED = 20250901
CORPORA = ("superseg_validation", "tiage_validation", "tiage_train")
DIALOGUES_EACH = 24
TURNS = range(8, 21)
HUMAN_WORDS = range(150, 1500)
HUMAN_SENTENCES = 3
HUMAN_EACH_MEETING = 2

Turns = tuple[tuple[str, str], ...]
Rows = list[dict[str, Any]]


def build(directory: Path) -> list[Pair]:
    rng = random.Random(SEED)
    rows = [row for name in CORPORA for row in _rows(directory / f"{name}.jsonl")]
    dialogues = {row["id"]: _turns(row) for row in rows}
    written = [*_written("written", dialogues, "dev"), *_written("written_test", dialogues, "test")]
    written += [*_written("own_dialogues", {}, "dev"), *_written("own_test", {}, "test")]
    taken = {pair.id for pair in written}
    usable = [i for i, turns in dialogues.items() if i not in taken and len(turns) in TURNS]
    free = [[i for i in usable if i.startswith(corpus)] for corpus in CORPORA[:2]]
    picked = [found for ids in free for found in rng.sample(ids, 2 * DIALOGUES_EACH)]
    extractive = [_extractive(i, dialogues[i], n) for n, i in enumerate(picked[::2])]
    reported = [_reported(i, dialogues[i], n) for n, i in enumerate(picked[1::2])]
    human = list(_human(_rows(directory / "qmsum_val.jsonl"), rng))
    faithful = [*written, *extractive, *reported, *human]
    pairs = [*faithful, *_translated(written), *_spoilt(faithful, rng)]
    return sorted(pairs, key=lambda pair: pair.id)  # what comes of one conversation stands together, and packs well


def _spoilt(faithful: Sequence[Pair], rng: random.Random) -> Iterator[Pair]:
    for pair in faithful:
        swapped = spoil.swap_numbers(pair, rng)
        if swapped:
            yield swapped
        yield spoil.invent_names(pair, rng)
    english = [pair for pair in faithful if not pair.id.startswith("own_")]
    for pair in english:
        if rng.random() < 0.5:
            others = [o for o in english if o.split == pair.split and o.id != pair.id and o.origin == pair.origin]
            yield spoil.of_another(pair, rng.choice(others))
        else:
            yield spoil.loop(pair, rng)


def _written(name: str, dialogues: dict[str, Turns], split: Split) -> Iterator[Pair]:
    """Summaries that were written for this set; conversations in other languages than English were, too."""
    for row in _rows(DATA / f"{name}.jsonl"):
        turns = dialogues.get(row["id"]) or tuple((role, text) for role, text in row["turns"])
        texts = {key: row[key] for key in ("title", "short", "long")}
        yield Pair(id=row["id"], split=split, kind="faithful", origin="written", turns=turns, **texts)


def _translated(written: Sequence[Pair]) -> Iterator[Pair]:
    by_id = {pair.id: pair for pair in written}
    for row in (*_rows(DATA / "translated.jsonl"), *_rows(DATA / "translated_test.jsonl")):
        yield replace(by_id[row["id"]], kind="other_language", short=row["short"], long=row["long"])


def _extractive(dialogue_id: str, turns: Turns, n: int) -> Pair:
    made = summarize(episode_of_turns(dialogue_id, turns), "", 800)
    texts = {"title": made.title, "short": made.short_summary, "long": made.long_summary}
    return Pair(id=dialogue_id, split=_split(n), kind="faithful", origin="extractive", turns=turns, **texts)


def _reported(dialogue_id: str, turns: Turns, n: int) -> Pair:
    """Reported speech of what was said: a faithful summary as a template makes it."""
    told = [_indirect(role, text) for role, text in turns if len(text.split()) > 4]
    texts = {"short": " ".join(told[:2]), "long": " ".join(told[:6]), "title": " ".join(turns[0][1].split()[:7])}
    return Pair(id=dialogue_id, split=_split(n), kind="faithful", origin="template", turns=turns, **texts)


_PERSONS = {"i": "they", "me": "them", "my": "their", "mine": "theirs", "you": "the other", "your": "the other's"}
_PERSONS |= {"i'm": "they are", "am": "are", "we": "they", "our": "their", "i've": "they have", "myself": "themselves"}


def _indirect(role: str, text: str) -> str:
    sentence = re.sub(r"\[\d+\]\s*", "", max(split_sentences(text), key=len)).strip()
    words = [_PERSONS.get(word.lower(), word) for word in sentence.rstrip(".!?").split()]
    verb = "asked:" if text.rstrip().endswith("?") else "said that"
    return f"The {role} {verb} {' '.join(words)}."


def _human(meetings: Rows, rng: random.Random) -> Iterator[Pair]:
    """Parts of meetings, and what people wrote about them."""
    for n, meeting in enumerate(meetings):
        fits = [query for query in meeting["specific_query_list"] if _is_usable(query, meeting)]
        for at, query in enumerate(rng.sample(fits, min(HUMAN_EACH_MEETING, len(fits)))):
            sentences = split_sentences(query["answer"])
            texts = {"title": query["query"][:60], "short": sentences[0], "long": " ".join(sentences[:8])}
            turns = _part(query, meeting)
            yield Pair(id=f"qmsum_{n}_{at}", split=_split(n), kind="faithful", origin="people", turns=turns, **texts)


def _is_usable(query: dict[str, Any], meeting: dict[str, Any]) -> bool:
    words = sum(len(text.split()) for _, text in _part(query, meeting))
    return words in HUMAN_WORDS and len(split_sentences(query["answer"])) >= HUMAN_SENTENCES


def _part(query: dict[str, Any], meeting: dict[str, Any]) -> Turns:
    said = meeting["meeting_transcripts"]
    return tuple(("user", spoken(said[i])) for i in part(query, len(said)))


def _turns(row: dict[str, Any]) -> Turns:
    return tuple((message.role, message.content) for message in expand(row["id"], row["dialogue"]))


def _rows(path: Path) -> Rows:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def _split(n: int) -> Split:
    return "dev" if n % 2 == 0 else "test"


def copy_meetings(directory: Path) -> None:
    """Copy the meetings that the other measurements need: transcripts, and what people asked and answered."""
    kept = ("meeting_transcripts", "general_query_list", "specific_query_list")
    rows = ({key: row[key] for key in kept} for row in _rows(directory / "qmsum_val.jsonl"))
    lines = "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)
    MEETINGS.write_bytes(gzip.compress(lines.encode(), compresslevel=9, mtime=0))


def copy_dialogues(directory: Path) -> None:
    """Write the dialogues with their topic boundaries, for `segmentation`."""
    rows = [row for name in CORPORA for row in _rows(directory / f"{name}.jsonl")]
    with DIALOGUES.open("wb") as file, gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) as packed:
        for row in rows:
            turns = [(m.role, m.content, m.is_continuation is False) for m in expand(row["id"], row["dialogue"])]
            packed.write(json.dumps({"id": row["id"], "turns": turns}, ensure_ascii=False).encode() + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    write(build(directory))
    copy_meetings(directory)
    copy_dialogues(directory)


if __name__ == "__main__":
    main()
