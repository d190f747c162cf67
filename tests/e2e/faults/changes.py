"""Edits, deletions and redo requests of the load, and the marks by which their effects are checked.

Every content ends with a mark that names its message and version. The stand-in LLM repeats the marks that it is shown.
Some contents begin with a statement about the speaker that contains the mark, so facts have marks too. So a mark of a
replaced or deleted version anywhere in a store reveals a text that should be gone.
"""

import asyncio
import random
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson
from aiohttp import web
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError

from afterword.schemas import EpisodeRedo, SummaryCreated, SummaryDeleted
from afterword.schemas.base import utc_milliseconds
from afterword.schemas.episodes import EPISODE_REDO
from afterword.schemas.records import cloud_event
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.settings import Kafka, Settings
from tests.openai_server import MODEL, success
from tests.stored import stored

MARK = re.compile(r"\b(c\d+)-(m\d+)-v(\d+)\b")
EDITED, DELETED, ENDED, ASSIGNED = 0.08, 0.05, 0.01, 0.02
"""Shares of messages after which an earlier one is edited or deleted, or the conversation deleted or assigned."""
SKIPPED_LATER = 0.1
"""Share of edits that take the message out of summaries."""
SENT_AGAIN = 0.3
"""Share of edits that are the message itself, sent again with another text."""
AFTER_THE_END = 3
"""Maximum number of changes after the last flush, when everything is closed."""
REDONE_PER_SECOND = 3.0
REDONE_TWICE, REDONE_LATE = 0.3, 0.2
"""Shares of requests that are sent twice, and of those that ask for a revision that has been replaced."""
LEAST_REDONE = 10
"""Minimum number of requests in a run."""
REMEMBERED = 200
"""Announced summaries from which the next request is drawn."""
REQUEST_MILLISECONDS = 300_000
LLM = {"provider": "openai", "model": MODEL}
SETTINGS: dict[str, dict[str, Any]] = {
    "llm": {**LLM, "attempts": 2, "timeout_seconds": 40, "retry_budget_seconds": 4},
    "quality": {"enabled": False},  # this content says little
    "retry": {"first_delay_seconds": 0.5, "longest_delay_seconds": 5},
}
STATING = 0.3
"""Share of contents that say something about the user."""
STATEMENTS = (
    "I live in Porto",
    "I work for a bank",
    "My phone number is 4711",
    "My sister is called Zoë",
    "I am vegan",
)
STATED = re.compile(r"^\[(\d+)\] user: ((?:I|My)\b[^.\n]* c\d+-m\d+-v\d+)\.", re.MULTILINE)
"""Matches the number of a message in a transcript, and its statement."""
MESSAGES = {"messages"}
"""The archive's collection or table. All others hold summaries."""
QUIET_SECONDS = 600.0


def mark(conversation: str, message: str, version: int) -> str:
    return f"{conversation}-{message}-v{version}"


def statement(chance: random.Random, said: str) -> list[str]:
    """Return, sometimes, a statement that an LLM or the rules find as a fact. `said` is the message's mark."""
    return [f"{chance.choice(STATEMENTS)}, {said}.\n"] if chance.random() < STATING else []


async def repeats_marks(request: web.Request) -> web.StreamResponse:
    """Answer with the marks and facts of the episode. The rolling summary also has the earlier marks."""
    prompt = "\n".join(message["content"] for message in (await request.json())["messages"])
    core, before = (" ".join(marks(part)) for part in (fenced(prompt, "TRANSCRIPT"), fenced(prompt, "PREVIOUS")))
    texts = {
        "title": "A talk",
        "short_summary": f"They talked: {core}.",
        "long_summary": f"They talked of many things: {core}.",
        "rolling_summary": f"They talked: {before} {core}.",
        "facts": [
            {"statement": said, "about": "user", "kind": "identity", "attribute": None, "messages": [int(number)]}
            for number, said in STATED.findall(fenced(prompt, "TRANSCRIPT"))
        ],
    }
    return await success(texts)(request)


def fenced(prompt: str, label: str) -> str:
    return prompt.partition(f"BEGIN {label} ")[2].partition(f"END {label} ")[0]


def marks(text: str) -> list[str]:
    return list(dict.fromkeys(found[0] for found in MARK.finditer(text)))


def guest(conversation: str) -> str:
    """Return the user who sends all of a conversation's messages."""
    return f"user of {conversation}"


def owner(conversation: str) -> str:
    """Return the user to whom they may be assigned."""
    return f"owner of {conversation}"


class Changes:
    """Random changes of one conversation."""

    def __init__(self, conversation: str, chance: random.Random) -> None:
        self._conversation, self._chance = conversation, chance
        self._versions: Counter[str] = Counter()
        self._said: dict[str, dict[str, Any]] = {}

    def said(self, message: dict[str, Any]) -> None:
        self._said[message["id"]] = message

    def next(self) -> dict[str, Any] | None:
        """Return the next change, if any: of any message, even a deleted one, or a repeated change."""
        draw = self._chance.random()
        if draw < ENDED:
            return {"type": "conversation.deleted"}
        if draw < ENDED + ASSIGNED:
            users = {"from_user_id": guest(self._conversation), "user_id": owner(self._conversation)}
            return {"type": "conversation.assigned", **users}
        return self.any() if draw < ENDED + ASSIGNED + DELETED + EDITED else None

    def any(self) -> dict[str, Any]:
        message_id = self._chance.choice(list(self._said))
        if self._chance.random() < DELETED / (DELETED + EDITED):
            return {"type": "message.deleted", "id": message_id}
        if self._chance.random() < SKIPPED_LATER:
            return {"type": "message.edited", "id": message_id, "skip_summarization": True}
        self._versions[message_id] += 1
        said = mark(self._conversation, message_id, self._versions[message_id])
        content = " ".join([*statement(self._chance, said), "Put right.", said])
        if self._chance.random() < SENT_AGAIN:
            return {**self._said[message_id], "content": content}
        return {"type": "message.edited", "id": message_id, "content": content}


@dataclass
class Said:
    """A message after all changes."""

    mark: str
    skipped: bool
    sent: str
    """Content of the last record that brought it."""


@dataclass
class Truth:
    """The remaining messages of the load, by conversation and id."""

    left: dict[tuple[str, str], Said] = field(default_factory=dict)
    gone: set[tuple[str, str]] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)
    """Conversations whose messages belong to the owner."""

    @classmethod
    def of(cls, values: Iterable[bytes | None]) -> "Truth":
        """Replay the records' `values`, in the order of the log in each conversation. Records that the load did not
        send are left out.
        """
        truth = cls()
        for value in values:
            with suppress(orjson.JSONDecodeError):
                event = orjson.loads(value or b"null")
                if isinstance(event, dict) and re.fullmatch(r"c\d+", str(event.get("conversation_id"))):
                    truth._hear(event)
        return truth

    def _hear(self, event: dict[str, Any]) -> None:
        name = event["conversation_id"], event.get("id", "")
        kind = event.get("type", "message.created")
        if kind == "conversation.deleted":
            self.gone |= {known for known in self.left if known[0] == name[0]}
            self.assigned.discard(name[0])
        elif kind == "conversation.assigned":
            self.assigned.add(name[0])
        elif kind == "message.deleted" and name in self.left:
            self.gone.add(name)
        elif kind == "message.edited" and name in self.left:
            said = self.left[name]
            found = marks(event.get("content") or "")
            said.mark, said.skipped = found[0] if found else said.mark, said.skipped or "skip_summarization" in event
        elif kind == "message.created" and name not in self.gone:
            content, skipped = event["content"], event.get("skip_summarization", False)
            said = self.left.setdefault(name, Said("", skipped, ""))
            if said.sent != content:
                said.mark, said.sent = marks(content)[0], content
        for known in self.gone & self.left.keys():
            del self.left[known]

    def user_of(self, conversation: str) -> str:
        return owner(conversation) if conversation in self.assigned else guest(conversation)

    @property
    def in_messages(self) -> set[str]:
        return {said.mark for said in self.left.values()}

    @property
    def in_summaries(self) -> set[str]:
        return {said.mark for said in self.left.values() if not said.skipped}


class Requests:
    """Requests random announced summaries to be redone, until it is cancelled."""

    def __init__(self, settings: Settings, chance: random.Random) -> None:
        self._settings, self._chance = settings, chance
        self._known: dict[str, SummaryCreated] = {}
        self._replaced: list[SummaryCreated] = []
        self._running: asyncio.Task[None] | None = None
        self.sent = 0

    async def run(self) -> None:
        """Send requests, and repeat those that an unavailable or refusing broker did not take."""
        self._running = asyncio.current_task()
        while True:
            with suppress(KafkaError, OSError, AssertionError):  # aiokafka asserts this if it knows no broker
                await self._ask()
            await asyncio.sleep(1 / REDONE_PER_SECOND)

    async def enough(self) -> None:
        """Wait until enough were sent, because summaries are late on a busy machine. Raises: TimeoutError, or the error
        that ended the requests.
        """
        async with asyncio.timeout(QUIET_SECONDS):
            while self.sent < LEAST_REDONE:
                await asyncio.sleep(0.1)
                if self._running and self._running.done():
                    self._running.result()

    async def _ask(self) -> None:
        kafka = self._settings.kafka
        servers = {"bootstrap_servers": kafka.bootstrap_servers}
        async with (
            AIOKafkaConsumer(kafka.summaries_topic, **servers, isolation_level="read_committed") as consumer,
            AIOKafkaProducer(**servers, request_timeout_ms=REQUEST_MILLISECONDS) as producer,
        ):
            while True:
                for records in (await consumer.getmany(timeout_ms=int(1000 / REDONE_PER_SECOND))).values():
                    for record in records:
                        self._remember(SummaryCreated.model_validate_json(record.value))
                if self._known:
                    await self._send(producer, kafka)

    def _remember(self, summary: SummaryCreated) -> None:
        if known := self._known.pop(summary.episode_id, None):
            self._replaced = [*self._replaced[-REMEMBERED:], known]
        self._known[summary.episode_id] = summary
        if len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]

    async def _send(self, producer: AIOKafkaProducer, kafka: Kafka) -> None:
        late = self._replaced and self._chance.random() < REDONE_LATE
        summary = self._chance.choice(self._replaced if late else list(self._known.values()))
        redo = EpisodeRedo(
            conversation_id=summary.conversation_id,
            tenant_id=summary.tenant_id,
            episode_id=summary.episode_id,
            revision=summary.revision,
            attempt=0,
            requested_at=utc_milliseconds(datetime.now(UTC)),
        )
        for _ in range(1 + (self._chance.random() < REDONE_TWICE)):
            headers = cloud_event(EPISODE_REDO, f"{summary.event_id}:redo", "faults", redo.requested_at)
            key = redo.conversation_id.encode()
            await producer.send_and_wait(kafka.episodes_topic, redo.to_json(), key=key, headers=headers)
            self.sent += 1


async def until_summarizer_is_done(kafka: Kafka) -> None:
    """Wait until the summarizers have handled all of `episode.closed`. Raises: TimeoutError."""
    async with asyncio.timeout(QUIET_SECONDS), open_log(kafka) as log:
        while await log.left(kafka.group_of("summarizer"), kafka.episodes_topic, await log.ends(kafka.episodes_topic)):  # noqa: ASYNC110 – offsets set no event
            await asyncio.sleep(0.3)


@dataclass
class Outcome:
    """The contents of the stores, and the announced events."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


async def judged(settings: Settings, values: Iterable[bytes | None]) -> Outcome:
    """Compare marks and revisions with the load. Raises: StoreUnavailable, TopicStalled."""
    outcome, truth = Outcome(), Truth.of(values)
    everything = await stored(settings)
    for name, documents in everything.items():
        allowed = truth.in_messages if name in MESSAGES else truth.in_summaries
        for document in documents:
            found = [one for one in marks(repr(document)) if one not in allowed]
            if found:
                outcome.problems.append(f"{name} has {found}, of before a change: {document!r:.200}")
            users = {document.get("user_id"), *(fact["user_id"] for fact in document.get("facts", ()))} - {None, ""}
            conversation = document.get("conversation_id") or ""
            if re.fullmatch(r"c\d+", conversation) and users - {truth.user_of(conversation)}:
                outcome.problems.append(f"{name} has {users} in {conversation}, not the user it is assigned to")
    outcome.notes.append(f"assigned: {len(truth.assigned)} conversations")
    episodes = {document["episode_id"]: document for document in everything["episodes"]}
    _judge_texts(episodes, truth, outcome)
    _judge_facts(episodes, truth, outcome)
    await _judge_announced(settings.kafka, episodes, outcome)
    return outcome


def _judge_texts(stored: dict[str, Any], truth: Truth, outcome: Outcome) -> None:
    """Check that an LLM's summary repeats the marks of its messages, and that each message of the load is in one
    episode.
    """
    placed: Counter[tuple[str, str]] = Counter()
    for episode_id, document in stored.items():
        names = [(document["conversation_id"], one) for one in document.get("message_ids", ())]
        placed.update(name for name in names if name in truth.left)
        if document.get("deleted") or document["quality"]["source"] != "llm":
            continue
        missing = {truth.left[name].mark for name in names if name in truth.left} - set(marks(document["long_summary"]))
        if missing:
            outcome.problems.append(f"the summary of {episode_id} lacks {sorted(missing)}")
    wanted = {name for name, said in truth.left.items() if not said.skipped}
    wrong = {name: placed[name] for name in wanted | placed.keys() if placed[name] != (name in wanted)}
    if wrong:
        outcome.problems.append(f"messages in another number of episodes than one: {wrong}")


def _judge_facts(stored: dict[str, Any], truth: Truth, outcome: Outcome) -> None:
    """Check that every fact agrees with its messages as they are now, and that the LLM stated some."""
    makers: Counter[str] = Counter()
    for episode_id, document in stored.items():
        for fact in document.get("facts", ()):
            said = [truth.left.get((document["conversation_id"], one)) for one in fact["message_ids"]]
            if not all(one and not one.skipped and one.mark in fact["statement"] for one in said):
                outcome.problems.append(f"a fact of {episode_id} is not what its messages say: {fact}")
            makers[document["quality"]["source"]] += 1
    counts = ", ".join(f"{count} by the {maker}" for maker, count in sorted(makers.items()))
    outcome.notes.append(f"facts: {counts or 'none'}")


async def _judge_announced(kafka: Kafka, stored: dict[str, Any], outcome: Outcome) -> None:
    """Check that no revision is announced twice, and that the last announced one is stored."""
    times: Counter[str] = Counter()
    revisions: dict[str, set[int]] = defaultdict(set)
    reasons: Counter[str] = Counter()
    async for event in announced(kafka):
        times[event.event_id] += 1
        revisions[event.episode_id].add(event.revision)
        reasons[event.reason or "first"] += 1
    overtaken = sum(max(found) - len(found) for found in revisions.values())
    last = {episode_id: max(found) for episode_id, found in revisions.items()}
    differ = {i: (last.get(i), d["revision"]) for i, d in stored.items() if last.get(i) != d["revision"]}
    if differ:
        outcome.problems.append(f"announced and stored revisions differ: {differ}")
    repeated = {event: count for event, count in times.items() if count > 1}
    if repeated:
        outcome.problems.append(f"announced more than once: {repeated}")
    counts = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    outcome.notes.append(f"announced: {counts}; {overtaken} were overtaken before that")


async def announced(kafka: Kafka) -> AsyncIterator[SummaryCreated | SummaryDeleted]:
    """Return every committed event of summaries, deletions last."""
    async with open_log(kafka) as log:
        async for record in log.records(kafka.summaries_topic):
            yield SummaryCreated.model_validate_json(record.value)
        async for record in log.records(kafka.deletions_topic):
            yield SummaryDeleted.model_validate_json(record.value)
