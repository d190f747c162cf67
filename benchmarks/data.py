"""The labelled data in benchmarks/data, whose README says where each file comes from."""

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

from afterword.schemas import EpisodeClosed, EpisodeMessage, EpisodeMetrics, Source, fingerprint
from afterword.schemas.base import episode_id
from afterword_text.gate import SourceTexts
from afterword_text.texts import Texts
from afterword_text.tokens import count_tokens

DATA = Path(__file__).parent / "data"
LEAST_WORDS = 6
"""A shorter message, such as "Yes, please", asks nothing."""
STARTED_AT = datetime(2025, 1, 1, 12, tzinfo=UTC)
SECONDS_A_TURN = 10
USER = "somebody"

Split = Literal["dev", "test"]


class Turn(NamedTuple):
    role: str
    text: str


class Query(NamedTuple):
    """A question that somebody asked about a part of a meeting."""

    text: str
    turns: frozenset[int]


class Meeting(NamedTuple):
    """A meeting of QMSum with summaries that people wrote."""

    turns: tuple[str, ...]
    """Turns that begin with the speaker, without transcription marks."""
    summary: str
    queries: tuple[Query, ...]


@dataclass(frozen=True)
class Pair:
    """A conversation with a summary, which is faithful or has been spoilt."""

    id: str
    """Id of the conversation; all pairs of one conversation are in the same split."""
    split: Split
    kind: str
    """`faithful`, or how the summary was spoilt."""
    origin: str
    """Who or what wrote the summary before it was spoilt: people, us, a template, the extractive method."""
    turns: Sequence[tuple[str, str]]
    """Role and content."""
    title: str
    short: str
    long: str

    @property
    def texts(self) -> Texts:
        return Texts(self.title, self.short, self.long)

    @property
    def source(self) -> SourceTexts:
        roles = dict.fromkeys(role for role, _ in self.turns)
        by_speaker = tuple("\n".join(text for who, text in self.turns if who == role) for role in roles)
        return SourceTexts(episode="\n".join(text for _, text in self.turns), by_speaker=by_speaker)


class Fact(NamedTuple):
    """Something that a summary must say."""

    kind: str
    """who, what, when, decision or open."""
    fact: str
    needs: Sequence[Sequence[str]]
    """Things that must be said; each is a list of ways to say it."""


def task_dialogues() -> list[tuple[str, tuple[Turn, ...]]]:
    """Return the ids and turns of dialogues between users and services."""
    return [(row["id"], tuple(Turn(*turn) for turn in row["turns"])) for row in rows("dialogues.jsonl.gz")]


def topic_shifts() -> list[frozenset[int]]:
    """Return the numbers of the turns that begin another topic, for each of `task_dialogues`."""
    return [frozenset(row["shifts"]) for row in rows("dialogues.jsonl.gz")]


def turn_texts() -> list[str]:
    return [turn.text for _, turns in task_dialogues() for turn in turns]


def meetings() -> list[Meeting]:
    return [_meeting(row) for row in rows("meetings.jsonl.gz")]


def pairs() -> list[Pair]:
    return [Pair(**row) for row in rows("pairs.jsonl.gz")]


def golden() -> Iterator[tuple[EpisodeClosed, list[Fact]]]:
    """Yield the episodes of the golden set with their facts."""
    for row in rows("golden.jsonl"):
        yield episode_of(row["id"], row["turns"]), [Fact(**fact) for fact in row["facts"]]


def rows(name: str) -> Iterator[dict[str, Any]]:
    path = DATA / name
    with gzip.open(path, "rt", encoding="utf-8") if name.endswith(".gz") else path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _meeting(row: dict[str, Any]) -> Meeting:
    queries = (
        Query(
            query["query"],
            frozenset(at for first, last in query["relevant_text_span"] for at in range(int(first), int(last) + 1)),
        )
        for query in row["specific_query_list"]
    )
    turns = tuple(map(_spoken, row["meeting_transcripts"]))
    return Meeting(turns, row["general_query_list"][0]["answer"], tuple(queries))


def _spoken(turn: dict[str, str]) -> str:
    text = re.sub(r"\{\w+\}", "", turn["content"])
    text = re.sub(r"\b[A-Z]_(?:[A-Z]_)*", lambda letters: letters[0].replace("_", ""), text)
    text = re.sub(r" +([.,?!;:])", r"\1", " ".join(text.split()))
    return f"{turn['speaker']}: {text}"


def message_of(
    message_id: str, role: Any, content: str, sent_at: datetime, user_id: str = USER, author: str | None = None
) -> EpisodeMessage:
    return EpisodeMessage(id=message_id, role=role, content=content, sent_at=sent_at, user_id=user_id, author=author)


def episode_of(conversation: str, turns: Iterable[tuple[str, str]], user_id: str = USER) -> EpisodeClosed:
    """Return the only episode of a conversation. `turns` are pairs of role and content."""
    messages = [
        message_of(f"{conversation}-{n}", role, content, STARTED_AT + timedelta(seconds=SECONDS_A_TURN * n), user_id)
        for n, (role, content) in enumerate(turns)
    ]
    return closed_episode(conversation, 1, messages, user_id)


def closed_episode(
    conversation: str, ordinal: int, messages: Sequence[EpisodeMessage], user_id: str = USER
) -> EpisodeClosed:
    return EpisodeClosed(
        episode_id=episode_id(conversation, ordinal),
        revision=1,
        conversation_id=conversation,
        user_id=user_id,
        ordinal=ordinal,
        close_reason="trigger",
        fingerprint=fingerprint(messages),
        started_at=min(message.sent_at for message in messages),
        ended_at=max(message.sent_at for message in messages),
        closed_at=max(message.sent_at for message in messages),
        messages=tuple(messages),
        message_count=len(messages),
        turn_count=len(messages),
        token_count=sum(count_tokens(message.content) for message in messages),
        metrics=EpisodeMetrics(),
        source=Source(topic="messages", partition=0, first_offset=0, last_offset=0),
    )
