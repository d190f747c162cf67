"""The summaries without an LLM beside what people wrote: whole meetings, far more than an episode holds."""

from collections.abc import Callable
from statistics import mean

from rich.console import Console
from rich.table import Table

from afterword.golden import episode_of_turns
from afterword.streams.summarizer.extractive import summarize
from afterword.streams.summarizer.quality import QualityRules, SourceTexts, Texts, assess
from afterword.streams.summarizer.sentences import cut_at_word, split_sentences
from benchmarks.quality.meetings import Meeting, read
from benchmarks.quality.rouge import rouge

FIRST_CHARACTERS = 1000
"""Fallback of one of the systems that this one replaces."""
LEAD_SENTENCES = 3
ROLLING_TOKENS = 800

Method = Callable[[Meeting], str]


def extractive(meeting: Meeting) -> str:
    turns = [("user", text) for text in meeting.turns]
    return summarize(episode_of_turns("meeting", turns), "", ROLLING_TOKENS).long_summary


def lead(meeting: Meeting) -> str:
    return " ".join(split_sentences("\n".join(meeting.turns))[:LEAD_SENTENCES])


def first_characters(meeting: Meeting) -> str:
    return cut_at_word("\n".join(meeting.turns), FIRST_CHARACTERS)


METHODS: dict[str, Method] = {
    "extractive": extractive,
    f"LEAD-{LEAD_SENTENCES}": lead,
    f"first {FIRST_CHARACTERS:,} characters": first_characters,
    "written by people": lambda meeting: meeting.summary,
}


def show(console: Console) -> None:
    meetings = read()
    table = Table("method", "ROUGE-1", "ROUGE-2", "ROUGE-L", "grounding", title=f"{len(meetings)} meetings of QMSum")
    for name, method in METHODS.items():
        made = [method(meeting) for meeting in meetings]
        scores = [rouge(text, meeting.summary) for text, meeting in zip(made, meetings, strict=True)]
        grounding = mean(_grounding(text, meeting) for text, meeting in zip(made, meetings, strict=True))
        measured = (
            mean(s.one for s in scores),
            mean(s.two for s in scores),
            mean(s.longest for s in scores),
            grounding,
        )
        table.add_row(name, *(f"{value:.3f}" for value in measured))
    console.print(table)


def _grounding(text: str, meeting: Meeting) -> float:
    source = SourceTexts("\n".join(meeting.turns))
    return assess(source, Texts(title="-", short="-", long=text), QualityRules()).grounding
