"""Questions whose episode is known, from real meetings and dialogues, and from histories made by rules.

Meetings (QMSum's validation split): people wrote questions about a part of a meeting; an episode answers one if it
has a turn of that part.

Dialogues (SuperDialseg): what a user said once is the question, and is taken out of the dialogue before it is indexed;
the rest of the dialogue answers it. In sessions, an episode is three such dialogues in a row, and a user has few.

Histories: `benchmarks/recall/histories.py`.
"""

import gzip
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from afterword.schemas import EpisodeClosed, EpisodeMessage, MessageCreated
from afterword.streams.tokens import count_tokens
from benchmarks.recall.histories import USER, closed_episode, histories_by_rules
from tests.dialogues import FIRST_SENT_AT, expand

MEETINGS = Path(__file__).parents[1] / "quality" / "data" / "meetings.jsonl.gz"
DIALOGUES = Path(__file__).parent / "data" / "dialogues.jsonl.gz"
EPISODE_MESSAGES, EPISODE_TOKENS = 20, 4000
"""Size at which the default settings close episodes."""
LEAST_WORDS = 6
"""A shorter message, such as "Yes, please", asks nothing."""


SESSION_DIALOGUES, USER_SESSIONS = 3, 27
SEED = 15


class Question(NamedTuple):
    text: str
    answers: frozenset[str]
    """Ids of the episodes that answer it."""
    category: str = ""
    user_id: str = USER
    asked_at: datetime = FIRST_SENT_AT


class Corpus(NamedTuple):
    name: str
    episodes: list[EpisodeClosed]
    questions: list[Question]
    has_aims: bool = False


def meetings() -> Corpus:
    episodes, questions = [], []
    for n, row in enumerate(_rows(MEETINGS)):
        turns = row["meeting_transcripts"]
        messages = [_message(f"m{n}", at, "user", f"{t['speaker']}: {t['content']}") for at, t in enumerate(turns)]
        made = list(_episodes(f"m{n}", messages))
        episodes += made
        questions += [Question(q["query"], _having(made, q["relevant_text_span"])) for q in row["specific_query_list"]]
    return Corpus("meetings", episodes, questions)


def dialogues() -> Corpus:
    episodes, questions = [], []
    for row in dialogue_rows():
        said = expand(row["id"], row["dialogue"])
        asked = _question(said)
        made = list(_episodes(row["id"], [_copied(message) for message in said if message is not asked]))
        episodes += made
        if asked:
            questions.append(Question(asked.content, frozenset(episode.episode_id for episode in made)))
    return Corpus("dialogues", episodes, questions)


def sessions() -> Corpus:
    rows = list(dialogue_rows())
    Random(SEED).shuffle(rows)
    episodes, questions = [], []
    for number, at in enumerate(range(0, len(rows) - SESSION_DIALOGUES + 1, SESSION_DIALOGUES)):
        user = f"user-{number // USER_SESSIONS}"
        dialogues = [expand(row["id"], row["dialogue"]) for row in rows[at : at + SESSION_DIALOGUES]]
        asked = [_question(said) for said in dialogues]
        told = [_copied(m) for said, q in zip(dialogues, asked, strict=True) for m in said if m is not q]
        episode = closed_episode(f"session-{number}", 1, told, user)
        episodes.append(episode)
        questions += [Question(q.content, frozenset({episode.episode_id}), user_id=user) for q in asked if q]
    return Corpus("sessions", episodes, questions)


def histories(seed: int) -> Corpus:
    made = list(histories_by_rules(seed))
    questions = [
        Question(asked.text, asked.answers, asked.category, history.user_id, history.asked_at)
        for history in made
        for asked in history.questions
    ]
    return Corpus("histories", [e for history in made for e in history.episodes], questions, has_aims=True)


def _question(said: list[MessageCreated]) -> MessageCreated | None:
    """Out of the middle of what the user says, where it says enough."""
    long = [m for m in said if m.role == "user" and len(m.content.split()) >= LEAST_WORDS]
    return long[len(long) // 2] if len(long) > 1 else None


def _having(episodes: list[EpisodeClosed], spans: list[list[str]]) -> frozenset[str]:
    turns = {str(at) for first, last in spans for at in range(int(first), int(last) + 1)}
    return frozenset(e.episode_id for e in episodes if any(m.id in turns for m in e.messages))


def _episodes(conversation: str, messages: list[EpisodeMessage]) -> Iterator[EpisodeClosed]:
    ordinal, core, tokens = 1, list[EpisodeMessage](), 0
    for message in messages:
        adds = count_tokens(message.content)
        if core and (len(core) == EPISODE_MESSAGES or tokens + adds > EPISODE_TOKENS):
            yield closed_episode(conversation, ordinal, core)
            ordinal, core, tokens = ordinal + 1, [], 0
        core.append(message)
        tokens += adds
    yield closed_episode(conversation, ordinal, core)


def _message(conversation: str, at: int, role: Any, text: str) -> EpisodeMessage:
    return EpisodeMessage(id=str(at), role=role, content=text, sent_at=FIRST_SENT_AT, user_id=conversation)


def _copied(message: MessageCreated) -> EpisodeMessage:
    return EpisodeMessage(**message.model_dump(include=set(EpisodeMessage.model_fields)))


def dialogue_rows() -> Iterator[dict[str, Any]]:
    """`id` and `dialogue` of each."""
    return _rows(DIALOGUES)


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)
