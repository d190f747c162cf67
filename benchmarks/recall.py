"""Measures what recall finds: python -m benchmarks.recall [--seed N] [--everyday SET | --beam DIR | --realtalk DIR]

It calls `Memory.recall` itself, with an index in a directory, the other stores in memory, and episodes that were
summarized without an LLM. A reranker that the environment configures (AFTERWORD_RERANKER__BASE_URL) gets its own rows.
The questions have known answers:

- everyday: somebody has mentioned things in ordinary conversations, and asks about them in other words. `none` is the
  share of these questions without hits, and `unknown` the share of questions about things never mentioned that have
  hits. Somebody who had not read the ranking wrote the second set, in two parts: `dev`, to tune on, and `test`.
- meetings: people asked about a part of a meeting. An episode with a turn of that part is an answer.
- dialogues: a user's sentence is the question. It is removed from its dialogue, which is the answer.
- sessions: the same, with three dialogues per episode and few episodes per user.
- histories: invented people talk every few days for most of a year. They mention facts once; several things that one
  question asks for together; habits, with a question that says when; plans, with a question that names the month of the
  plan and not the month in which it was mentioned; and updates, where only the latest is an answer.
- beam: with --beam, chats of BEAM (mohammadtavakoli78/BEAM on GitHub, a folder such as `chats/100K`). Each chat is a
  user, and its questions name the messages that answer them.
- realtalk: with --realtalk, the same for REALTALK's chats of two people (danny911kr/REALTALK on GitHub, the folder
  `data`), who are the authors of their messages.

R@1 and R@5 are shares of the episodes that answer. `known` is the share of the questions that have hits by default.
`elsewhere` is the same share when another user of the corpus, who never talked about this, is asked. `AUROC` says how
well `coverage` tells the two apart. In the histories, all users talk about the same.
"""

import argparse
import asyncio
import json
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import accumulate, chain, count, takewhile
from pathlib import Path
from random import Random
from statistics import mean, median
from typing import Any, NamedTuple

from afterword.reading.memory import Memory
from afterword.reading.reranking import Reranking
from afterword.schemas import EpisodeClosed, EpisodeMessage, MessageCreated
from afterword.schemas.base import episode_id
from afterword.streams.settings import load_settings
from afterword.streams.stores.index import MIN_COVERAGE, Recalled, searchable
from afterword.streams.stores.messages import ArchivedMessage
from afterword.streams.stores.sqlite import SqliteFile
from afterword.streams.stores.sqlite_index import SqliteIndex
from afterword.streams.summarizer.embedders import LocalEmbedder, QueryEmbedding, embed_messages
from afterword.streams.summarizer.providers import ExtractiveProvider
from afterword.streams.summarizer.summary import SummaryRequest
from afterword_text.tokens import count_tokens
from benchmarks.data import (
    DATA,
    LEAST_WORDS,
    STARTED_AT,
    USER,
    Turn,
    closed_episode,
    episode_of,
    meetings,
    message_of,
    task_dialogues,
)
from benchmarks.measuring import show
from tests.doubles.stores import MemoryEpisodes, MemoryMessages
from tests.samples import a_stored_episode_of

DEPTH = 10
ROLLING_TOKENS = 800
EPISODE_MESSAGES, EPISODE_TOKENS, TRIGGER_MESSAGES = 20, 4000, 10
PAUSE = timedelta(seconds=300)
"""The sizes and the pause at which the default settings close an episode."""
SESSION_DIALOGUES, USER_SESSIONS = 3, 27
SEED = 15
EVERYDAY = "first", "dev", "test"
"""The sets of everyday conversations: the first, and the parts of the second."""
WARM_UP = "What was said on 1 May 2024?"
AIMS = {
    "beam": "aim: R@1 .317, R@5 .656 with vectors, .280 and .635 with words alone",
    "realtalk": "aim: R@5 .620, AUROC .810 with vectors",
}
SEVERAL = "several"
"""The category of questions that ask for several things at once."""

BEGAN = datetime(2024, 3, 4, 18, tzinfo=UTC)
"""The first session of a history, on a Monday."""
HISTORIES, SESSIONS, DAYS_APART = 8, 48, (4, 5, 6, 7)
OTHER_SUBJECTS, TURNS, SECONDS_A_MESSAGE = 2, 2, 40
HABIT_MONTHS, PLANNED_AHEAD = 5, 8


class Question(NamedTuple):
    text: str
    answers: frozenset[str]
    """Ids of the episodes that answer the question."""
    category: str = ""
    user_id: str = USER
    asked_at: datetime = STARTED_AT


class Corpus(NamedTuple):
    name: str
    episodes: list[EpisodeClosed]
    questions: list[Question]


class Figures(NamedTuple):
    """The scores of one question, or means over several."""

    first: float
    """Share of the answers that are in first place."""
    five: float
    """Share of the answers among the first five."""
    reciprocal_rank: float
    """Reciprocal rank of the first answer; 0 if none is among the first ten."""
    coverage: float
    """The best coverage of a hit."""
    elsewhere: float
    """The best coverage for another user, who never talked about this."""
    seconds: float


# Questions


def meetings_corpus() -> Corpus:
    episodes, questions = [], []
    for n, meeting in enumerate(meetings()):
        messages = [message_of(str(at), "user", text, STARTED_AT) for at, text in enumerate(meeting.turns)]
        made = list(_episodes(f"m{n}", messages))
        episodes += made
        for query in meeting.queries:
            answers = frozenset(e.episode_id for e in made if any(int(m.id) in query.turns for m in e.messages))
            questions.append(Question(query.text, answers))
    return Corpus("meetings", episodes, questions)


def _episodes(conversation: str, messages: Sequence[EpisodeMessage]) -> Iterator[EpisodeClosed]:
    ordinal, held, tokens = 1, list[EpisodeMessage](), 0
    for message in messages:
        adds = count_tokens(message.content)
        if held and (len(held) == EPISODE_MESSAGES or tokens + adds > EPISODE_TOKENS):
            yield closed_episode(conversation, ordinal, held)
            ordinal, held, tokens = ordinal + 1, [], 0
        held.append(message)
        tokens += adds
    yield closed_episode(conversation, ordinal, held)


def dialogues_corpus() -> Corpus:
    episodes, questions = [], []
    for name, turns in task_dialogues():
        asked = _question(turns)
        episode = episode_of(name, [turn[:2] for turn in turns if turn is not asked])
        episodes.append(episode)
        if asked:
            questions.append(Question(asked.text, frozenset({episode.episode_id})))
    return Corpus("dialogues", episodes, questions)


def sessions_corpus() -> Corpus:
    dialogues = [turns for _, turns in task_dialogues()]
    Random(SEED).shuffle(dialogues)
    episodes, questions = [], []
    for number, at in enumerate(range(0, len(dialogues) - SESSION_DIALOGUES + 1, SESSION_DIALOGUES)):
        user, session = f"user-{number // USER_SESSIONS}", dialogues[at : at + SESSION_DIALOGUES]
        asked = [_question(turns) for turns in session]
        told = [turn[:2] for turns, q in zip(session, asked, strict=True) for turn in turns if turn is not q]
        episode = episode_of(f"session-{number}", told, user)
        episodes.append(episode)
        questions += [Question(q.text, frozenset({episode.episode_id}), user_id=user) for q in asked if q]
    return Corpus("sessions", episodes, questions)


def beam_corpus(folder: Path) -> Corpus:
    """Read BEAM's chats from a folder, cut into episodes by the default settings. Each batch of turns has a day."""
    episodes, questions = [], []
    for chat in sorted(path.parent for path in folder.glob("*/chat.json")):
        name, turns = chat.name, json.loads((chat / "chat.json").read_text(encoding="utf-8"))
        messages = [
            message_of(str(one["id"]), one["role"], one["content"], STARTED_AT + timedelta(days=day, seconds=at), name)
            for day, batch in enumerate(turns)
            for at, one in enumerate(chain.from_iterable(batch["turns"]))
        ]
        made = _episodes_of_chat(name, messages)
        episodes += made
        probing = chat / "probing_questions" / "probing_questions.json"
        for category, asked in json.loads(probing.read_text(encoding="utf-8")).items():
            for one in asked:
                answers = _answers(made, set(map(str, _numbers(one.get("source_chat_ids")))))
                if answers:
                    questions.append(Question(one["question"], answers, category, name))
    return Corpus("beam", episodes, questions)


def realtalk_corpus(folder: Path) -> Corpus:
    """Read REALTALK's chats from a folder, cut into episodes by the default settings."""
    episodes, questions = [], []
    for path in sorted(folder.glob("Chat_*.json")):
        chat, name = json.loads(path.read_text(encoding="utf-8")), path.stem
        sessions = takewhile(bool, (chat.get(f"session_{n}") for n in count(1)))
        messages = [
            message_of(one["dia_id"], "user", one["clean_text"], _sent_at(one["date_time"]), name, one["speaker"])
            for one in chain.from_iterable(sessions)
            if one["clean_text"].strip()
        ]
        made = _episodes_of_chat(name, messages)
        episodes += made
        for one in chat["qa"]:
            if answers := _answers(made, set(one["evidence"])):
                category = f"category {one['category']}"
                questions.append(Question(one["question"], answers, category, name, messages[-1].sent_at))
    return Corpus("realtalk", episodes, questions)


def _sent_at(text: str) -> datetime:
    return datetime.strptime(text, "%d.%m.%Y, %H:%M:%S").replace(tzinfo=UTC)


def _episodes_of_chat(name: str, messages: Sequence[EpisodeMessage]) -> list[EpisodeClosed]:
    return [closed_episode(name, n, part, name) for n, part in enumerate(_cut(messages), 1)]


def _answers(episodes: Sequence[EpisodeClosed], message_ids: set[str]) -> frozenset[str]:
    return frozenset(e.episode_id for e in episodes if any(m.id in message_ids for m in e.messages))


def _numbers(found: Any) -> Iterator[int]:
    if isinstance(found, int):
        yield found
    elif isinstance(found, dict | list):
        for one in found.values() if isinstance(found, dict) else found:
            yield from _numbers(one)


def _cut(messages: Sequence[EpisodeMessage]) -> Iterator[list[EpisodeMessage]]:
    """Cut a conversation as the segmenter does by default, without flags."""
    held, tokens = list[EpisodeMessage](), 0
    for message in messages:
        adds = count_tokens(message.content)
        if held and (tokens + adds > EPISODE_TOKENS or message.sent_at - held[-1].sent_at >= PAUSE):
            yield held
            held, tokens = [], 0
        held, tokens = [*held, message], tokens + adds
        if len(held) >= TRIGGER_MESSAGES or (tokens >= EPISODE_TOKENS and len(held) > 1):
            yield held
            held, tokens = [], 0
    if held:
        yield held


def _question(turns: Sequence[Turn]) -> Turn | None:
    """Of the user's turns that say enough, return the middle one."""
    long = [turn for turn in turns if turn.role == "user" and len(turn.text.split()) >= LEAST_WORDS]
    return long[len(long) // 2] if len(long) > 1 else None


def histories_corpus(seed: int = SEED) -> Corpus:
    made = [History(f"person-{number}", Random(seed + number)) for number in range(HISTORIES)]
    return Corpus(
        "histories",
        [history.session(number) for history in made for number in range(SESSIONS)],
        [question for history in made for question in history.questions],
    )


class History:
    """A user with a session every few days; each session is an episode.

    Each session talks about two or three subjects in phrases that other sessions also have. Now and then it tells
    something that a question asks about later.
    """

    def __init__(self, user_id: str, random: Random) -> None:
        self._user, self._random, self._phrases = user_id, random, phrases()
        days = [0, *accumulate(random.choice(DAYS_APART) for _ in range(SESSIONS - 1))]
        self._starts = [BEGAN + timedelta(days=day, minutes=random.randrange(180)) for day in days]
        self._asked_at = self._starts[-1] + timedelta(days=3)
        self._told: list[list[tuple[str, str]]] = [[] for _ in range(SESSIONS)]
        """For each session, subject and text of what it mentions."""
        self.questions: list[Question] = []
        self._tell_facts()
        self._tell_updates()
        for habit in self._phrases["habits"]:
            self._tell_habit(habit)
        for plan in self._phrases["plans"]:
            self._tell_plan(plan)
        # the texts are chosen here, so that `session` may be called in any order
        self._texts = [list(self._said(number)) for number in range(SESSIONS)]

    def session(self, at: int) -> EpisodeClosed:
        messages = [
            message_of(
                str(n),
                "assistant" if n % 2 else "user",
                text,
                self._starts[at] + timedelta(seconds=SECONDS_A_MESSAGE * n),
                self._user,
            )
            for n, text in enumerate(self._texts[at])
        ]
        return closed_episode(self._conversation(at), 1, messages, self._user)

    def _tell_facts(self) -> None:
        facts = self._random.sample(self._phrases["facts"], len(self._phrases["facts"]))
        places = [self._tell(self._random.randrange(SESSIONS), fact, self._one(fact)) for fact in facts]
        for fact, place in zip(facts, places, strict=True):
            self._ask("fact", fact["question"], place)
        for at in range(0, len(facts), 2):
            text = f"Tell me {facts[at]['asked_with']} and {facts[at + 1]['asked_with']}."
            self._ask(SEVERAL, text, *places[at : at + 2])

    def _tell_updates(self) -> None:
        for change in self._phrases["changes"]:
            times = sorted(self._random.sample(range(SESSIONS), self._random.choice((2, 3))))
            old, place = "", ""
            for at, value in zip(times, self._random.sample(change["values"], len(times)), strict=True):
                place = self._tell(at, {**change, "told": change["later" if old else "first"]}, value, old=old)
                old = value
            self._ask("update", change["question"], place)

    def _tell_habit(self, habit: Mapping[str, Any]) -> None:
        """Mention a habit once in each of some months, and in the last week."""
        of_month = {f"{start:%B %Y}": at for at, start in enumerate(self._starts)}
        last = max(at for at, start in enumerate(self._starts) if _week(start) == _week(self._asked_at) - 1)
        times = {f"in {month}": of_month[month] for month in self._random.sample(sorted(of_month), HABIT_MONTHS)}
        if f"in {self._starts[last]:%B %Y}" not in times:
            times["last week"] = last
        for (when, at), value in zip(times.items(), self._random.sample(habit["values"], len(times)), strict=True):
            self._ask("time", habit["question"].format(when=when), self._tell(at, habit, value))

    def _tell_plan(self, plan: Mapping[str, Any]) -> None:
        """Mention a plan weeks ahead; a session in the month itself is about something else."""
        at = self._random.randrange(SESSIONS - PLANNED_AHEAD)
        month = f"{self._starts[at + PLANNED_AHEAD]:%B %Y}"
        self._ask("plan", plan["question"].format(month=month), self._tell(at, plan, self._one(plan), month=month))

    def _one(self, phrase: Mapping[str, Any]) -> str:
        return self._random.choice(phrase["values"])

    def _tell(self, at: int, phrase: Mapping[str, Any], value: str, **slots: str) -> str:
        """Mention something in a session, and return the id of its episode."""
        self._told[at].append((phrase["subject"], phrase["told"].format(v=value, **slots)))
        return episode_id(self._conversation(at), 1)

    def _ask(self, category: str, text: str, *answers: str) -> None:
        self.questions.append(Question(text, frozenset(answers), category, self._user, self._asked_at))

    def _conversation(self, at: int) -> str:
        return f"{self._user}-{at}"

    def _said(self, at: int) -> Iterator[str]:
        """Yield a session's texts, alternating between user and assistant."""
        told, chatter = self._told[at], self._phrases["chatter"]
        others = [subject for subject in chatter if subject not in {subject for subject, _ in told}]
        subjects = [*dict.fromkeys(subject for subject, _ in told), *self._random.sample(others, OTHER_SUBJECTS)]
        self._random.shuffle(subjects)
        for subject in subjects:
            turns = self._random.sample(chatter[subject], TURNS)
            for text in (text for of, text in told if of == subject):
                place = self._random.randint(0, len(turns))
                turns.insert(place, (text, self._random.choice(self._phrases["answers"])))
            yield from chain.from_iterable(turns)


def phrases() -> dict[str, Any]:
    return json.loads((DATA / "histories.json").read_text(encoding="utf-8"))


def _week(moment: datetime) -> int:
    return (moment.date() - BEGAN.date()).days // 7


# Answers


@asynccontextmanager
async def remembered(episodes: Sequence[EpisodeClosed]) -> AsyncIterator[Callable[..., Memory]]:
    """Summarize and index episodes, and yield a function that makes a `Memory` of them."""
    embedder, stored, messages = LocalEmbedder(), MemoryEpisodes(), MemoryMessages()
    with tempfile.TemporaryDirectory() as directory:
        index = SqliteIndex(SqliteFile(Path(directory) / "afterword.sqlite"), LocalEmbedder.model)
        try:
            for closed in episodes:
                request = SummaryRequest(closed, "", ROLLING_TOKENS)
                summary = await ExtractiveProvider().summarize(request)
                episode = a_stored_episode_of(closed, summary)
                episode = replace(episode, summary=episode.summary.model_copy(update={"facts": summary.facts}))
                await stored.put(episode, None)
                await messages.assign(closed.episode_id, list(archived_of(closed)))
                texts = searchable(closed.messages)
                await index.put(episode, texts, await embed_messages(embedder, texts))
            yield partial(Memory, stored, messages, index.search)
        finally:
            await index.close()


async def measured(corpus: Corpus) -> list[dict[str, str]]:
    embed = QueryEmbedding(LocalEmbedder())
    async with remembered(corpus.episodes) as memory:
        rows = await _rows("words", corpus, memory)
        rows += await _rows("words and vectors", corpus, partial(memory, embed=embed))
        if (settings := load_settings()).reranker.base_url:
            reranking = Reranking(settings.reranker)
            make = partial(memory, embed=embed, reranking=reranking)
            rows += await _rows(settings.reranker.model or "reranker", corpus, make)
            await reranking.close()
        return rows


def everyday_people(which: str) -> list[dict[str, Any]]:
    """Return the people of the first set, or those of the `dev` or `test` part of the second."""
    name = "everyday.json" if which == "first" else "everyday_second.json"
    people: list[dict[str, Any]] = json.loads((DATA / name).read_text(encoding="utf-8"))
    return [person for person in people if person.get("part", "first") == which]


async def everyday_rows(people: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Check whether the hits show the answers to questions about everyday conversations."""
    episodes = [episode for number, person in enumerate(people) for episode in _everyday(f"person-{number}", person)]
    rows = []
    async with remembered(episodes) as make:
        for way, memory in {
            "words": make(),
            "words and vectors": make(embed=QueryEmbedding(LocalEmbedder())),
        }.items():
            scores = [row for number, person in enumerate(people) async for row in _asked(memory, number, person)]
            for group, is_english in {"": None, ", English": True, ", others": False}.items():
                of_group = [row for row in scores if is_english is None or (row.language == "en") is is_english]
                if is_english is None or 0 < len(of_group) < len(scores):
                    rows.append({"": way + group, **_everyday_shares(of_group)})
    return rows


class Asked(NamedTuple):
    """What came of one question about everyday conversations."""

    language: str
    is_answerable: bool
    answered_in: tuple[bool, bool]
    """Whether the first hit, and any of the first three, shows the answer."""
    has_hits: bool


async def _asked(memory: Memory, number: int, person: Mapping[str, Any]) -> AsyncIterator[Asked]:
    ask = partial(memory.recall, user_id=f"person-{number}", tenant_id=None)
    language = person.get("language", "en")
    for question, answer, *_ in person["questions"]:
        hits = await ask(question)
        shown = [any(answer in match.content for match in hit.matches) for hit in hits]
        yield Asked(language, True, (any(shown[:1]), any(shown[:3])), bool(hits))
    for question in person["unknown"]:
        yield Asked(language, False, (False, False), bool(await ask(question)))


def _everyday_shares(asked: Sequence[Asked]) -> dict[str, str]:
    known, unknown = ([one for one in asked if one.is_answerable is wanted] for wanted in (True, False))
    first, three = (mean(one.answered_in[at] for one in known) for at in (0, 1))
    guessed = mean(one.has_hits for one in unknown)
    shares = {"first hit": first, "first three": three, "none": mean(not one.has_hits for one in known)}
    return {name: f"{share:.3f}" for name, share in {**shares, "unknown": guessed}.items()}


def _everyday(user_id: str, person: Mapping[str, Any]) -> Iterator[EpisodeClosed]:
    for number, texts in enumerate(person["conversations"]):
        name, at = f"{user_id}-{number}", STARTED_AT + timedelta(days=3 * number)
        if began := person.get("began"):
            at = datetime.fromisoformat(began[number])
        messages = [
            message_of(str(n), "assistant" if n % 2 else "user", text, at + timedelta(seconds=30 * n), user_id)
            for n, text in enumerate(texts)
        ]
        yield from (closed_episode(name, n, part, user_id) for n, part in enumerate(_cut(messages), 1))


def archived_of(closed: EpisodeClosed) -> Iterator[ArchivedMessage]:
    for offset, message in enumerate(closed.messages):
        fields = message.model_dump(include=set(MessageCreated.model_fields))
        yield ArchivedMessage(MessageCreated(**fields, conversation_id=closed.conversation_id), 0, offset)


async def _rows(way: str, corpus: Corpus, make_memory: Callable[..., Memory]) -> list[dict[str, str]]:
    by_category: dict[str, list[Figures]] = {}
    users = sorted({question.user_id for question in corpus.questions})
    others = dict(zip(users, [*users[1:], *users[:1]], strict=True))
    await make_memory().recall(WARM_UP, user_id=USER, tenant_id=None)  # as a server does when it starts
    for question in corpus.questions:
        memory = make_memory(now=lambda asked_at=question.asked_at: asked_at)
        asked = partial(memory.recall, question.text, tenant_id=None, k=DEPTH, min_coverage=0)
        began = time.perf_counter()
        hits = await asked(user_id=question.user_id)
        seconds = time.perf_counter() - began
        found = _figures(question, hits, await asked(user_id=others[question.user_id]), seconds)
        for category in {question.category, ""}:
            by_category.setdefault(category, []).append(found)
    return [_row(way, category or "all", found) for category, found in by_category.items()]


def _row(way: str, category: str, found: Sequence[Figures]) -> dict[str, str]:
    first, five, reciprocal, own, elsewhere, seconds = zip(*found, strict=True)
    known, other = (mean(coverage >= MIN_COVERAGE for coverage in each) for each in (own, elsewhere))
    above = mean((one > two) + (one == two) / 2 for one in own for two in elsewhere)
    shares = {"R@1": mean(first), "R@5": mean(five), "MRR": mean(reciprocal), "known": known, "elsewhere": other}
    figures = {name: f"{share:.3f}" for name, share in {**shares, "AUROC": above}.items()}
    slowest = sorted(seconds)[int(0.99 * len(seconds))]
    times = {"p50 ms": f"{1000 * median(seconds):.0f}", "p99 ms": f"{1000 * slowest:.0f}"}
    return {"": way, "category": category, **figures, **times}


def _figures(question: Question, hits: Sequence[Recalled], elsewhere: Sequence[Recalled], seconds: float) -> Figures:
    coverage, other = (max((hit.coverage for hit in each), default=0.0) for each in (hits, elsewhere))
    ranking = [hit.episode_id for hit in hits] if coverage >= MIN_COVERAGE else []
    places = [place for place, found in enumerate(ranking, start=1) if found in question.answers]
    first, five = (sum(place <= most for place in places) / len(question.answers) for most in (1, 5))
    return Figures(first, five, 1 / places[0] if places else 0.0, coverage, other, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recall", description="What recall finds.")
    parser.add_argument("--seed", type=int, default=SEED, help="of the histories; the docs have those of 15")
    parser.add_argument("--beam", type=Path, help="a folder of BEAM's chats, such as chats/100K")
    parser.add_argument("--realtalk", type=Path, help="the folder of REALTALK's chats, data")
    parser.add_argument("--everyday", choices=EVERYDAY, help="only these everyday conversations; tune on dev alone")
    given = parser.parse_args()
    logging.getLogger("httpx").setLevel(logging.WARNING)  # httpx would log a line for each request to a reranker
    if given.beam or given.realtalk:
        corpora = [beam_corpus(given.beam) if given.beam else realtalk_corpus(given.realtalk)]
    else:
        for which in [given.everyday] if given.everyday else EVERYDAY:
            rows = asyncio.run(everyday_rows(everyday_people(which)))
            show(f"everyday conversations, {which}: which hits show the answer", rows)
        corpora = []
        if not given.everyday:
            corpora = [histories_corpus(given.seed), sessions_corpus(), meetings_corpus(), dialogues_corpus()]
    for corpus in corpora:
        rows = asyncio.run(measured(corpus))
        users = len({question.user_id for question in corpus.questions})
        counts = f"{len(corpus.questions)} questions, {len(corpus.episodes):,} episodes of {users} users"
        show("; ".join((f"{corpus.name}: {counts}", *AIMS.get(corpus.name, "").splitlines())), rows)


if __name__ == "__main__":
    main()
