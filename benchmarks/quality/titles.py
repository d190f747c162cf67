"""Titles of summaries without an LLM, to be judged by people; docs/titles.md has the rule and a verdict on each."""

from rich.console import Console

from afterword.golden import episode_of_turns
from afterword.streams.language import detect
from afterword.streams.summarizer.extractive import summarize
from benchmarks.quality.pairs import Pair, read

TITLES = 100
ROLLING_TOKENS = 800


def conversations() -> dict[str, Pair]:
    """One pair of each English conversation of the labelled set, in its order.

    Not of meetings, in whose texts each turn begins with its speaker.
    """
    found = {pair.id: pair for pair in read() if not pair.id.startswith("qmsum")}
    return {name: pair for name, pair in found.items() if detect(" ".join(text for _, text in pair.turns)) == "en"}


def titles() -> dict[str, str]:
    """Titles of TITLES conversations, by id: every other one first, so that they are of every kind."""
    known = list(conversations().items())
    chosen = (known[::2] + known[1::2])[:TITLES]
    return {name: _title(pair) for name, pair in chosen}


def show(console: Console) -> None:
    for number, title in enumerate(titles().values(), 1):
        console.print(f"{number:3} {title}", markup=False, highlight=False)


def _title(pair: Pair) -> str:
    return summarize(episode_of_turns(pair.id, pair.turns), "", ROLLING_TOKENS).title
