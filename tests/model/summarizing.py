"""The summarizer's surroundings in memory: its handler, its lanes and the engine, on stores that all workers share.

Messages of CHANGING conversations are edited and deleted, and their summaries redone. Each content is a mark that names
message and version, and every text of the LLM repeats the marks that it was shown.
"""

import re
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from pydantic import ValidationError
from structlog.contextvars import get_contextvars

from afterword.schemas import (
    ConversationAssigned,
    ConversationDeleted,
    ConversationUpdated,
    EpisodeClosed,
    EpisodeRedo,
    MessageCreated,
    MessageDeleted,
    MessageEdited,
    Quality,
    Source,
    SummaryCreated,
    SummaryDeleted,
    Usage,
    fingerprint,
)
from afterword.schemas.episodes import EPISODE_AMENDED, EPISODE_REDO, EpisodeMessage
from afterword.schemas.records import CE_TYPE
from afterword.streams.app import Lanes
from afterword.streams.errors import ProviderUnavailable
from afterword.streams.settings import Kafka, Retry
from afterword.streams.stores.messages import ArchiveChange, ArchivedMessage
from afterword.streams.summarizer.agent import current_output, lane_of
from afterword.streams.summarizer.providers import Maker
from afterword.streams.summarizer.reconciler import Event, Reconciler
from afterword.streams.summarizer.summary import Summary, SummaryRequest, SummaryRules
from afterword.streams.summarizer.timers import FallbackTimer
from distributions.engine.tests.simulation.broker import Broker, Record, Transaction
from distributions.engine.tests.simulation.loop import Loop
from distributions.engine.tests.simulation.network import Network
from distributions.engine.tests.simulation.process import Process
from faust_eos.at_least_once import AtLeastOnce, AtLeastOncePartition, run_in_batch
from faust_eos.batch import current_batch
from faust_eos.options import Options
from faust_eos.transaction import Output
from faust_eos.window import Progress
from tests.doubles.index import MemoryIndex
from tests.doubles.stores import MemoryEpisodes, MemoryMessages, at_once
from tests.samples import NOON, Changed, a_closed_episode, an_amendment, an_episode_message, some_calls
from tests.summarizer_world import a_handler, a_step_runner

SOURCE = TopicPartition("episode.closed", 0)
SUMMARIES = TopicPartition("summary.created", 0)
CURRENT = TopicPartition("afterword.current", 0)
"""Both compacted topics."""
DEAD_LETTERS = TopicPartition("episode.closed.dlq", 0)
AWAY = ProviderUnavailable(problem="away")
ENGINE = Options(
    max_in_flight=4, commit_interval_seconds=1.0, offset_metadata_bytes=19, max_written_bytes=100, clock=lambda: 0
)
"""Small limits, so that histories reach them."""
PAUSE_SECONDS = 0.2
RETRY = Retry(attempts=10**6, first_delay_seconds=PAUSE_SECONDS, longest_delay_seconds=PAUSE_SECONDS)
FALLBACK = Quality(source="fallback", reason=AWAY.error_type)
CONVERSATIONS = "abc"
SIZE = 3
ROW_TOKENS = 60
"""Tokens that complete a row of the first worker, about two or three episodes. The others have other limits."""
OVERLAP = 2
CHANGING = "bc"
"""Conversations whose messages are changed and whose summaries are redone. In all others, each record has an output."""
ANSWERING = "c"
"""Conversations in which every question has two answers, of which the second replaces the first."""
TODAY = Maker("model", "prompt")
MARK = re.compile(r"\b[abc]-m\d+-v\d+\b")


async def answers() -> None:
    """Do nothing: the LLM can always be reached."""


def marks(text: str) -> set[str]:
    return set(MARK.findall(text))


@dataclass
class Talk:
    """A conversation as its messages are now."""

    name: str
    closed: list[EpisodeClosed] = field(default_factory=list)
    pending: list[EpisodeMessage] = field(default_factory=list)
    """Messages after the last closed episode."""
    records: dict[str, MessageCreated] = field(default_factory=dict)
    """The last record of each message, by id."""
    left: dict[str, EpisodeMessage] = field(default_factory=dict)
    """Messages of episodes, by id, without deleted ones."""
    said: int = 0
    versions: int = 0
    begun_anew: bool = False
    user: str = "u1"
    """To whom the messages belong now, all of which u1 has sent."""

    def say(self, offset: int) -> MessageCreated:
        text, fields = f"{self.name}-m{self.said}-v0", dict[str, Any]()
        if self.name in ANSWERING and self.said % SIZE:
            fields = {"role": "assistant", "reply_to": f"m{self.said - self.said % SIZE}"}
        message = an_episode_message(f"m{self.said}", self.said, content=text, offset=offset, **fields)
        self.said += 1
        self.pending.append(message)
        self.records[message.id] = MessageCreated(
            conversation_id=self.name, tenant_id="t1", **message.model_dump(exclude={"changed", "offset"})
        )
        return self.records[message.id]

    def close(self, first: int, last: int) -> EpisodeClosed | None:
        """Close the next episode, between these offsets; None if nothing is pending."""
        core, self.pending = tuple(self.pending), []
        if not core:
            return None
        before = self.closed[-1].messages if self.closed and not self.begun_anew else ()
        overlap = tuple(self.left[m.id] for m in before[-OVERLAP:] if m.id in self.left)
        texts = {"messages": core, "overlap": overlap, "message_count": len(core), "fingerprint": fingerprint(core)}
        source = Source(topic="messages", partition=0, first_offset=first, last_offset=last)
        self.closed.append(a_closed_episode(len(self.closed) + 1, self.name, source=source, **texts))
        self.left |= {message.id: message for message in core}
        self.begun_anew = False
        return self.closed[-1]

    def told(self, ids: Iterable[str]) -> set[str]:
        """Return the texts to summarize of these messages, without an answer that the next one replaces."""
        left = {int(name[1:]): self.left[name].content for name in ids if name in self.left}
        is_replaced = self.name in ANSWERING
        return {text for n, text in left.items() if not (is_replaced and n % SIZE == 1 and n + 1 in left)}

    def edit(self, message_id: str, offset: int) -> MessageEdited:
        self.versions += 1
        content = f"{self.name}-{message_id}-v{self.versions}"
        changed = {"content": content, "changed": offset}
        self.pending = [m.model_copy(update=changed) if m.id == message_id else m for m in self.pending]
        if message_id in self.left:
            self.left[message_id] = self.left[message_id].model_copy(update=changed)
        return MessageEdited(id=message_id, conversation_id=self.name, tenant_id="t1", content=content)

    def confirm(self, message_id: str, _: int) -> MessageEdited:
        """Edit the message to what it already says."""
        known = {message.id: message for message in (*self.pending, *self.left.values())}
        content = known[message_id].content if message_id in known else "gone"
        return MessageEdited(id=message_id, conversation_id=self.name, tenant_id="t1", content=content)

    def repeat(self, message_id: str, offset: int) -> MessageEdited:
        """Send the message again with another text."""
        content = self.edit(message_id, offset).content
        self.records[message_id] = self.records[message_id].model_copy(update={"content": content})
        return self.records[message_id].as_edit

    def delete(self, message_id: str, _: int) -> MessageDeleted:
        self.pending = [message for message in self.pending if message.id != message_id]
        self.left.pop(message_id, None)
        return MessageDeleted(id=message_id, conversation_id=self.name, tenant_id="t1")

    def assign(self, _: str, __: int) -> ConversationAssigned:
        """Hand the messages on to the next user; the third one hands them back to the first."""
        before, self.user = self.user, {"u1": "u2", "u2": "u3", "u3": "u1"}[self.user]
        return ConversationAssigned(conversation_id=self.name, tenant_id="t1", from_user_id=before, user_id=self.user)

    def delete_all(self) -> ConversationDeleted:
        self.left.clear()
        self.begun_anew, self.user = True, "u1"
        return ConversationDeleted(conversation_id=self.name, tenant_id="t1")


@dataclass
class Shared:
    """State that outlives every worker."""

    episodes: MemoryEpisodes = field(default_factory=MemoryEpisodes)
    messages: MemoryMessages = field(default_factory=MemoryMessages)
    index: MemoryIndex = field(default_factory=MemoryIndex)
    sent: list[Event] = field(default_factory=list)
    """Sent events, committed or not. A record's value is the event's position in this list."""
    answers: int = 0
    llm_is_away: bool = False

    def answer(self, request: SummaryRequest) -> Summary:
        """Answer differently each time, as an LLM does."""
        self.answers += 1
        episode = request.episode
        said = " ".join(message.content for message in (*episode.overlap, *episode.messages))
        text = f"{episode.ordinal} told the {self.answers}. time: {said}"
        return Summary(
            title=text,
            short_summary=text,
            long_summary=text,
            rolling_summary=f"{request.previous_rolling} {text}".strip(),
            quality=FALLBACK if self.llm_is_away else Quality(source="llm"),
            model=TODAY.model,
            prompt_version=TODAY.prompt_version,
            calls=some_calls(Usage(prompt_tokens=1, completion_tokens=1)),
        )


class Remote:
    """A store behind a simulated network."""

    def __init__(self, network: Network, process: Process, store: Any) -> None:
        self._network, self._process, self._store = network, process, store

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._network.call(self._process, name, lambda: at_once(method(*args, **kwargs)), writes=True)

        return call


class Worker(Process):
    """One process of the summarizer."""

    def __init__(self, name: str, world: "World") -> None:
        super().__init__(name, world.network, world.broker, ENGINE, {}, "summarizer")
        self.world = world
        self._episodes = AtLeastOnce(order=lane_of)
        summarizer: Any = SimpleNamespace(summarize=self._summarize, summarize_without_fallback=self._ask_llm)
        reconciler = Reconciler(
            episodes=self._remote(world.shared.episodes),
            messages=self._remote(world.shared.messages),
            index=self._remote(world.shared.index),
            summarizer=summarizer,
            embedder=None,
            publish=self._publish,
            keep=self._keep,
            steps=a_step_runner(backoff=lambda *_: PAUSE_SECONDS),
            rules=SummaryRules(rolling_max_tokens=ROW_TOKENS * (1 + int(name[1:]))),
            retry=RETRY,
            clock=lambda: NOON,
        )
        self._handler = a_handler(reconciler, self._send_dead_letter, ENGINE.clock)
        self._lanes = Lanes[Hashable](lambda _, error: self.stop_worker(error))

    def _remote(self, store: Any) -> Any:
        return Remote(self.network, self, store)

    def new_partition(self, source: TopicPartition) -> AtLeastOncePartition:
        return AtLeastOncePartition(self, source, self._episodes)

    async def agent(self) -> None:
        """Handle events as `attach` does."""
        async for event in self.events():
            self._lanes.submit(lane_of(event.value), partial(run_in_batch, event, self._handler.handle))

    async def before_taking(self) -> None:
        await self.take_its_time()

    async def after_release(self) -> None:
        await self._lanes.cancel()

    async def _summarize(self, request: SummaryRequest) -> Summary:
        return await self.network.call(self, "summarize", lambda: self.world.shared.answer(request))

    async def _ask_llm(self, request: SummaryRequest) -> Summary:
        answer = await self._summarize(request)
        if answer.quality == FALLBACK:
            raise AWAY
        return answer

    async def _publish(self, event: Event) -> None:
        self.world.shared.sent.append(event)
        send(SUMMARIES, None, b"%d" % (len(self.world.shared.sent) - 1), [])

    async def _keep(self, event: Event) -> None:
        self.world.shared.sent.append(event)
        key = current_output(Kafka(), event).key
        send(CURRENT, key, b"%d" % (len(self.world.shared.sent) - 1), [])

    def _send_dead_letter(self, letter: Output) -> None:
        send(DEAD_LETTERS, letter.key, letter.value, [])


def send(where: TopicPartition, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]]) -> None:
    """Send with the batch of the record that is being handled, which the header names."""
    batch, of = current_batch(), get_contextvars()
    assert batch is not None
    cause = ("cause", f"{of['topic']} {of['offset']}".encode())
    batch.send(Output(where.topic, key, value, headers=[*headers, cause], partition=where.partition))


class World:
    """The broker, the stores and all workers."""

    def __init__(self, workers: int) -> None:
        self.loop = Loop()
        self.network = Network(self.loop)
        self.broker = Broker(self.network.post)
        self.broker.on_commit = self.check_offsets
        self.shared = Shared()
        self.passed_over = False
        """True once an offset was committed past an unfinished record."""
        self.unnamed = False
        """True once a transaction had an output of a record that it does not name as finished."""
        self.too_long = False
        """True once a commit's metadata was longer than the broker accepts."""
        self.talks = {name: Talk(name) for name in CONVERSATIONS}
        self.offset = 0
        """Offset of the next record of `messages`."""
        self.archiver_is_behind = False
        self.unarchived: deque[ArchivedMessage | ArchiveChange] = deque()
        """Records of `messages` that the archiver has not read yet."""
        self.segmenter_is_behind = False
        self.unsegmented: deque[tuple[str, bytes, str]] = deque()
        """Records that the segmenter will write."""
        self.looks = 0
        """Number of times that the timer has looked for fallbacks."""
        self.timer = FallbackTimer(
            self.shared.episodes,
            SimpleNamespace(check=answers),
            self._request,
            RETRY,
            self._later,  # type: ignore[arg-type]
        )
        self.workers = [self._new_worker(f"w{n}") for n in range(workers)]

    def close_episode(self, conversation: str, changes: Sequence[tuple[str, int]] = ()) -> None:
        """Close an episode of three messages. `changes` has the kinds and numbers of earlier changes."""
        talk, first = self.talks[conversation], self.offset
        for _ in range(SIZE):
            self._say(ArchivedMessage(talk.say(self.offset), 0, self.offset))
        last = self.offset - 1
        for kind, number in changes:
            self._change(talk, kind, f"m{talk.said - 1 - number}")
        if episode := talk.close(first, last):
            self._segment(conversation, episode.to_json())

    def repeat_episode(self, conversation: str, ordinal: int) -> None:
        closed = self.talks[conversation].closed
        if ordinal <= len(closed):
            self._segment(conversation, closed[ordinal - 1].to_json())

    def change(self, conversation: str, kind: str, number: int) -> None:
        """Change a message of a closed episode, or assign or delete the whole conversation."""
        talk = self.talks[conversation]
        if not talk.closed:
            return
        offset, event = self.offset, self._change(talk, kind, f"m{number % talk.said}")
        if event:
            self._segment(conversation, an_amendment(event, offset).to_json(), EPISODE_AMENDED)

    def _change(self, talk: Talk, kind: str, message_id: str) -> Changed | None:
        """Archive a change, and return it; None for a record that is sent again, which the segmenter drops."""
        if kind == "send_again":
            self._say(ArchivedMessage(talk.records[message_id], 0, self.offset))
            return None
        event: Changed = talk.delete_all() if kind == "delete_all" else getattr(talk, kind)(message_id, self.offset)
        is_repeat = kind == "repeat"
        archived = ArchivedMessage(talk.records[message_id], 0, self.offset) if is_repeat else None
        self._say(archived or ArchiveChange(event, 0, self.offset))
        return event

    def redo(self, conversation: str, ordinal: int, revision: int, times: int) -> None:
        """Request another summary of a stored episode. A `revision` of 0 means the stored one, and there are no later
        ones, because whoever requests one has read it.
        """
        closed = self.talks[conversation].closed
        if ordinal > len(closed):
            return
        stored = self.shared.episodes.episodes.get(closed[ordinal - 1].episode_id)
        if stored is None:
            return
        redo = EpisodeRedo(
            conversation_id=conversation,
            tenant_id="t1",
            episode_id=closed[ordinal - 1].episode_id,
            revision=min(revision or stored.summary.revision, stored.summary.revision),
            attempt=stored.attempt,
            requested_at=NOON,
        )
        for _ in range(times):
            self._append(conversation, redo.to_json(), EPISODE_REDO)

    def look_for_fallbacks(self) -> None:
        """Let the timer ask for what is due."""
        self.looks += 1
        at_once(self.timer.tick())

    async def _request(self, redo: EpisodeRedo) -> None:
        self._append(redo.conversation_id, redo.to_json(), EPISODE_REDO)

    def _later(self) -> datetime:
        return NOON + timedelta(hours=self.looks)

    def segment(self, is_behind: bool, number: int) -> None:
        """Let the segmenter write all that it has not, or `number` records of it if it stays behind."""
        self.segmenter_is_behind = is_behind
        for _ in range(min(number, len(self.unsegmented)) if is_behind else len(self.unsegmented)):
            self._append(*self.unsegmented.popleft())

    def archive(self, is_behind: bool, number: int) -> None:
        """Let the archiver catch up, or archive `number` records if it stays behind."""
        self.archiver_is_behind = is_behind
        for _ in range(min(number, len(self.unarchived))):
            self._archive()

    def _segment(self, conversation: str, value: bytes, ce_type: str = "") -> None:
        self.unsegmented.append((conversation, value, ce_type))
        self.segment(self.segmenter_is_behind, 0)

    def _say(self, said: ArchivedMessage | ArchiveChange) -> None:
        self.offset += 1
        self.unarchived.append(said)
        self.network.post("archive", self._archive, ready=lambda: not self.archiver_is_behind)

    def _archive(self) -> None:
        """Archive the next records."""
        if not self.unarchived:
            return
        said, archive = self.unarchived.popleft(), self.shared.messages
        if isinstance(said, ArchiveChange):
            at_once(archive.change(said))
        else:
            at_once(archive.put_many([said]))

    def append_rubbish(self, conversation: str) -> None:
        self._append(conversation, b"{")

    def _append(self, conversation: str, value: bytes, ce_type: str = "") -> None:
        headers = ((CE_TYPE, ce_type.encode()),) if ce_type else ()
        self.broker.append(SOURCE, [(conversation.encode(), value, 0, headers)])

    @property
    def events(self) -> list[Event]:
        """Events that a reader of committed records has read."""
        return [self.shared.sent[int(record.value or b"")] for record in self.broker.log(SUMMARIES).read(0)]

    @property
    def current(self) -> dict[str, Event]:
        """Return the last records of the compacted topics by key, including tombstones, for a reader of committed
        records.
        """
        records = self.broker.log(CURRENT).read(0)
        return {(one.key or b"").decode(): self.shared.sent[int(one.value or b"")] for one in records}

    @property
    def announced(self) -> list[SummaryCreated | SummaryDeleted]:
        return [event for event in self.events if not isinstance(event, ConversationUpdated)]

    def outputs(self) -> list[Record]:
        """Return committed records, whether their markers are written or not."""
        return [record for transaction in self.broker.committed for record in transaction.written]

    def check_offsets(self, transaction: Transaction) -> None:
        """Check offsets without raising: a caller of commit might take an error for an answer."""
        causes = {cause_of(record) for record in self.outputs()}
        for source, (offset, metadata) in transaction.offsets.items():
            self.too_long |= len(metadata) > ENGINE.offset_metadata_bytes
            progress = Progress.read(offset, metadata)
            sent_for = [of for topic, of in map(cause_of, transaction.written) if topic == source.topic]
            self.unnamed |= not all(map(progress.covers, sent_for))
            for record in self.broker.log(source).read(0):
                if progress.covers(record.offset) and (record.topic, record.offset) not in causes:
                    self.passed_over |= self._is_unfinished(record)

    def _is_unfinished(self, record: Record) -> bool:
        """Return whether a record without an output should have one: it is invalid, or produced what is stored."""
        headers = dict(record.headers)
        if CE_TYPE in headers:
            return False
        try:
            episode_id = EpisodeClosed.model_validate_json(record.value or b"").episode_id
        except ValidationError:
            return True
        found = at_once(self.shared.episodes.lookup([episode_id])).get(episode_id)
        return found is None or found.cause.offset == record.offset

    def repeated(self) -> list[Record]:
        """Return committed outputs of records that had been finished before."""
        seen: set[tuple[str, tuple[str, int], str]] = set()
        found = []
        for record in self.outputs():
            has_event = record.topic in (SUMMARIES.topic, CURRENT.topic)
            event = self.shared.sent[int(record.value or b"")].event_id if has_event else ""
            what = (record.topic, cause_of(record), event)
            if what in seen:
                found.append(record)
            seen.add(what)
        return found

    def take(self, number: int) -> None:
        """Assign the partition to a worker, in a new generation. A dead worker first starts again."""
        if self.workers[number].dead:
            self.workers[number] = self._new_worker(self.workers[number].name)
        worker = self.workers[number]
        if worker.partition is None:
            self.broker.generation += 1
            worker.generation = self.broker.generation
            worker.assign(self.loop, SOURCE)

    def is_outdated(self, number: int) -> bool:
        """Return whether the group no longer considers the worker the owner, as its next heartbeat will show."""
        return self.workers[number].generation != self.broker.generation

    def kill(self, number: int) -> None:
        self.workers[number].kill(self.loop)

    def close(self) -> None:
        for worker in self.workers:
            worker.kill(self.loop)

    def _new_worker(self, name: str) -> Worker:
        worker = Worker(name, self)
        worker.start(self.loop)
        return worker


def cause_of(output: Record) -> tuple[str, int]:
    """Return the topic and offset of the record whose handling sent it."""
    topic, offset = dict(output.headers)["cause"].decode().split()
    return topic, int(offset)
