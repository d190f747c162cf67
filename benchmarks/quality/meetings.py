"""Long meetings and what people wrote about them: QMSum's validation split (MIT, see data/LICENSE)."""

import gzip
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEETINGS = Path(__file__).parent / "data" / "meetings.jsonl.gz"


@dataclass(frozen=True)
class Query:
    question: str
    answer: str
    turns: tuple[int, ...]
    """Turns of the meeting that the answer is about; none where it is about all of it."""


@dataclass(frozen=True)
class Meeting:
    turns: tuple[str, ...]
    """Each with its speaker, without the marks of the transcription."""
    summary: str
    """Summary of the whole."""
    queries: tuple[Query, ...]
    """Queries about parts."""


def read() -> list[Meeting]:
    with gzip.open(MEETINGS, "rt", encoding="utf-8") as lines:
        return [_meeting(json.loads(line)) for line in lines]


def spoken(turn: dict[str, str]) -> str:
    """Text of a turn with its speaker, without the marks of the transcription."""
    text = re.sub(r"\{\w+\}", "", turn["content"])
    text = re.sub(r"\b[A-Z]_(?:[A-Z]_)*", lambda letters: letters[0].replace("_", ""), text)
    text = re.sub(r" +([.,?!;:])", r"\1", " ".join(text.split()))
    return f"{turn['speaker']}: {text}"


def part(query: dict[str, Any], turns: int) -> tuple[int, ...]:
    """Indices of the turns that a query's answer is about."""
    spans = [range(int(first), int(last) + 1) for first, last in query.get("relevant_text_span", ())]
    return tuple(i for span in spans for i in span if i < turns)


def _meeting(row: dict[str, Any]) -> Meeting:
    said = row["meeting_transcripts"]
    queries = (Query(each["query"], each["answer"], part(each, len(said))) for each in row["specific_query_list"])
    return Meeting(tuple(map(spoken, said)), row["general_query_list"][0]["answer"], tuple(queries))
