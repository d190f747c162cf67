"""Erases a person: lists their data, deletes it through the log, waits until it is gone, and writes the receipt.

Deletions go through `messages`, so the log orders them with live traffic. Every step can be repeated, so an interrupted
erasure starts again from the beginning. Only the request and the conversations found so far are stored, because nothing
else names them once they are deleted. `ErasureRunner` carries out erasures in a server.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Self
from uuid import uuid4

import structlog

from afterword.operating.dlq import DeadLetterQueue, open_queue
from afterword.operating.person import (
    Person,
    Receipt,
    TheirDeadLetters,
    TopicDate,
    conversations_of,
    deleted_but_indexed,
    gone_by,
    person_of,
)
from afterword.operating.topics import read_configs, wanted_topics
from afterword.schemas import ConversationDeleted, MessageDeleted
from afterword.schemas.base import message_key, utc_milliseconds
from afterword.streams.errors import AfterwordError, StoreUnavailable, snake_case
from afterword.streams.kafka.clients import broker_errors, position_of
from afterword.streams.settings import Settings, load_settings
from afterword.streams.stores.bookkeeping import ErasedConversation, Erasure, Erasures
from afterword.streams.stores.episodes import StoredEpisode, all_episodes
from afterword.streams.stores.messages import Selection
from afterword.streams.stores.opening import Stores, open_stores
from afterword.streams.tasks import FairTurns
from afterword.writing.producer import Producer

WAIT_SECONDS = 600.0
POLL_SECONDS = 0.2
AT_A_TIME = 4
"""Number of erasures that one server carries out at once."""
OF_A_TENANT = 2
"""At most this many of them are of one tenant."""
MOST_OPEN = 50
"""A key gets no more erasures while it has asked for this many that are not done."""
ATTEMPT_SECONDS = 300.0
"""After this time another erasure gets its turn."""
RETRY_SECONDS = 30.0

log = structlog.get_logger(__name__)


class NotErased(AfterwordError):
    """not erased after {seconds:g} s: {left:,} {what}. Run it again to continue, with a longer --timeout if needed"""


class UserNotArchived(AfterwordError):
    """{number} conversations have episodes of this user and others, but the archive has no message of the user, so
    their words cannot be told apart. Delete these conversations as a whole with Producer.delete_conversation; the
    first is {first}"""


class TooManyErasures(AfterwordError):
    """more than {limit} erasures of this key are under way"""


Report = Callable[[str, int], Awaitable[None]]
"""Called with what an erasure is waiting for, which begins with a plural noun, and how many of them are left."""


@dataclass
class Run:
    """One run of an erasure, with the conversations found by this and earlier runs.

    It waits for at most `seconds` in total, and reports the remaining work whenever it has changed.
    """

    person: Person
    erasure: Erasure
    seconds: float
    report: Report | None
    began: float = field(default_factory=time.monotonic)
    found: dict[str, ErasedConversation] = field(default_factory=dict)
    reported: tuple[str, int] | None = None

    def note(self, conversation: ErasedConversation) -> None:
        known = self.found.get(conversation.conversation_id)
        self.found[conversation.conversation_id] = conversation.merged(known) if known else conversation

    async def check(self, what: str, left: int) -> None:
        """Report what is left. Raises: NotErased if the time is up."""
        if self.report and self.reported != (what, left):
            self.reported = what, left
            await self.report(what, left)
        if time.monotonic() > self.began + self.seconds:
            raise NotErased(seconds=self.seconds, left=left, what=what)

    async def until_none(self, what: str, count: Callable[[], Awaitable[int]]) -> None:
        """Wait until nothing is left. Raises: NotErased."""
        while left := await count():
            await self.check(what, left)
            await asyncio.sleep(POLL_SECONDS)


class Eraser:
    """Erases people's data. Use it with `async with`.

    All methods raise StoreUnavailable, BrokerUnavailable and TopicMissing.
    """

    def __init__(self, settings: Settings, stores: Stores, queue: DeadLetterQueue, producer: Producer) -> None:
        self._settings = settings
        self._stores = stores
        self._queue = queue
        self._log = queue.log
        self._producer = producer

    @classmethod
    @asynccontextmanager
    async def from_settings(cls, settings: Settings) -> AsyncIterator[Self]:
        async with (
            open_stores(settings) as stores,
            open_queue(settings) as queue,
            Producer.from_settings(settings) as producer,
        ):
            yield cls(settings, stores, queue, producer)

    @classmethod
    def open(cls) -> AbstractAsyncContextManager[Self]:
        """Open an eraser with the settings of the environment and the file it names. Raises: ConfigurationError."""
        return cls.from_settings(load_settings())

    async def plan(self, user_id: str, tenant_id: str | None) -> dict[str, int]:
        """Count what an erasure would delete now, without changing anything.

        These are the counts of a receipt, and `shared_conversations`, in which others wrote too. Messages that are not
        archived yet are not counted.
        """
        person = person_of(user_id, tenant_id)
        conversations = {each.conversation_id: each async for each in self._conversations(person)}
        with broker_errors(self._settings.kafka.bootstrap_servers):
            theirs = await self._dead_letters(person, conversations)
            counts = [await self._queue.count(topic, theirs, "discarded") for topic in await self._queue.topics()]
        shared = sum(not each.alone for each in conversations.values())
        return _counts(conversations, sum(each.resolved for each in counts)) | {"shared_conversations": shared}

    async def erase(
        self,
        user_id: str,
        tenant_id: str | None,
        *,
        asked_by: str | None = None,
        timeout_seconds: float = WAIT_SECONDS,
        progress: Report | None = None,
    ) -> Receipt:
        """Delete every message of the user, wait until nothing is left, and return the receipt.

        `tenant_id`: None means messages without a tenant, not those of all tenants. The receipt is also stored. An
        interrupted request keeps its id when it is repeated.

        Raises: NotErased if the time is up; UserNotArchived.
        """
        person = person_of(user_id, tenant_id)
        await self._stores.prepare_database()
        erasure = await self._stores.erasures.begin(new_erasure(person, asked_by))
        run = Run(person, erasure, timeout_seconds, progress)
        for known in await self._stores.erasures.conversations(erasure):
            run.note(known)
        with broker_errors(self._settings.kafka.bootstrap_servers):
            while await self._delete_what_there_is(run):
                pass
            for name in run.found:
                await run.until_none("episodes in the index", partial(deleted_but_indexed, self._stores, name))
            # the archiver writes dead letters too
            await self._until_read(run, "archiver", self._settings.kafka.group_of("archiver"))
            theirs = await self._dead_letters(person, run.found)
            topics = await self._queue.topics()
            discarded = 0
            for topic in topics:
                if (await self._queue.count(topic, theirs, "discarded")).resolved:  # opening a producer takes long
                    discarded += (await self._queue.resolve(topic, theirs, "discarded")).resolved
            await self._stores.messages.forget_user(user_id, tenant_id)
            await self._stores.index.push_out_removed()
            now = utc_milliseconds(datetime.now(UTC))
            receipt = Receipt(
                receipt_id=erasure.erasure_id,
                asked_by=erasure.asked_by,
                asked_at=erasure.asked_at,
                finished_at=now,
                person=person.digest(erasure.erasure_id),
                deleted_conversations=tuple(sorted(theirs.alone)),
                shared_conversations=tuple(sorted(theirs.shared)),
                counts=_counts(run.found, discarded),
                topics=await self._topic_dates(now),
            )
        await self._stores.erasures.end(erasure, receipt.model_dump_json())
        return receipt

    async def _conversations(self, person: Person) -> AsyncIterator[ErasedConversation]:
        """Yield the conversations of which the stores have messages or episodes of the person."""
        messages, episodes = self._stores.messages, self._stores.episodes
        async for name in conversations_of(episodes, messages, person):
            every = Selection(name, person.tenant_id)
            said = (await messages.count(every)).messages
            own = (await messages.count(replace(every, user_id=person.user_id))).messages
            taken_part, users = 0, set[str]()
            async for episode in all_episodes(episodes, name):
                if isinstance(episode, StoredEpisode):
                    taken_part += person.took_part_in(episode)
                    users.update(episode.participants)
            if own or taken_part:
                # other people's messages may have expired while their episodes have not
                alone = own == said and users <= {person.user_id}
                moves = (await messages.present_users(name, person.tenant_id)).moves
                yield ErasedConversation(name, alone, own, taken_part, tuple(moves))

    async def _delete_what_there_is(self, run: Run) -> bool:
        """Delete the person's data in the stores, once the workers are done. Returns whether there was any.

        The archiver must have read all of `messages`, and the other workers what concerns the person. Other people's
        episodes are not waited for, because they may be waiting for an unavailable LLM.

        Raises: NotErased, UserNotArchived.
        """
        kafka = self._settings.kafka
        await self._until_read(run, "archiver", kafka.group_of("archiver"))
        if run.found:
            await self._until_read(run, "segmenter", kafka.group_of("segmenter"))
            await self._until_summarized(run)
        deleted = 0
        undeletable: list[str] = []
        async for conversation in self._conversations(run.person):
            if not (conversation.messages or conversation.alone):
                undeletable.append(conversation.conversation_id)
                continue
            run.note(conversation)
            await self._stores.erasures.add(run.erasure, [conversation])
            await self._producer.send_all(await self._deletions(run, conversation))
            deleted += 1
        if undeletable and not deleted:
            raise UserNotArchived(number=len(undeletable), first=undeletable[0])
        if deleted:
            await run.check("conversations in which something was deleted", deleted)
        return bool(deleted)

    async def _deletions(
        self, run: Run, conversation: ErasedConversation
    ) -> list[ConversationDeleted | MessageDeleted]:
        name, tenant_id, reason = (
            conversation.conversation_id,
            run.person.tenant_id,
            f"erasure {run.erasure.erasure_id}",
        )
        if conversation.alone:
            return [ConversationDeleted(conversation_id=name, tenant_id=tenant_id, reason=reason)]
        theirs = self._stores.messages.newest(Selection(name, tenant_id, user_id=run.person.user_id))
        return [
            MessageDeleted(id=archived.message.id, conversation_id=name, tenant_id=tenant_id, reason=reason)
            async for archived in theirs
        ]

    async def _until_read(self, run: Run, role: str, group: str) -> None:
        """Wait until the group has read what is now on `messages`."""
        topic = self._settings.kafka.messages_topic
        ends = await self._log.ends(topic)
        await run.until_none(f"records that the {role} has not processed", lambda: self._log.left(group, topic, ends))

    async def _until_summarized(self, run: Run) -> None:
        """Wait until the summarizer has finished the person's records that are now on its topic."""
        group, topic = self._settings.kafka.group_of("summarizer"), self._settings.kafka.episodes_topic
        unread = self._log.unread(group, topic, await self._log.ends(topic))
        theirs = {
            position_of(record) async for record in unread if (record.key or b"").decode(errors="replace") in run.found
        }

        async def left() -> int:
            return len(await self._log.unfinished(group, topic, theirs)) if theirs else 0

        await run.until_none("records that the summarizer has not processed", left)

    async def _dead_letters(self, person: Person, conversations: Mapping[str, ErasedConversation]) -> TheirDeadLetters:
        """Select the person's dead letters.

        An edit in a shared conversation is theirs, unless the archive shows that it edits somebody else's message.
        """
        alone = frozenset(name for name, each in conversations.items() if each.alone)
        moves = {name: each.moves for name, each in conversations.items()}
        shared = frozenset(conversations) - alone
        theirs = TheirDeadLetters(person, alone, shared, moves=moves, sources=self._queue.sources)
        edits: dict[str, str] = {}
        if theirs.shared:
            topic = self._settings.kafka.dead_letters(self._settings.kafka.messages_topic)
            async for letter in self._queue.unresolved(topic, theirs):
                edited = theirs.edited(letter)
                if letter.conversation_id is not None and edited is not None:
                    edits[letter.address] = message_key(letter.conversation_id, edited, person.tenant_id)
        written = await self._stores.messages.get_many(sorted(set(edits.values())))
        others = {key for key, each in written.items() if each.message.user_id != person.user_id}
        return replace(theirs, others=frozenset(address for address, key in edits.items() if key in others))

    async def _topic_dates(self, now: datetime) -> tuple[TopicDate, ...]:
        kafka = self._settings.kafka
        ours = (topic.name for topic in wanted_topics(self._settings))
        names = {*ours, *await self._queue.topics()}
        dates = []
        for topic, config in sorted((await read_configs(self._settings, sorted(names))).items()):
            ends = {where.partition: end for where, end in (await self._log.ends(topic)).items()}
            is_ours = topic != kafka.messages_topic
            dates.append(TopicDate(topic=topic, gone_by=gone_by(config, now), ends=ends, ours=is_ours))
        return tuple(dates)


def _counts(conversations: Mapping[str, ErasedConversation], dead_letters: int) -> dict[str, int]:
    return {
        "messages": sum(each.messages for each in conversations.values()),
        "conversations": len(conversations),
        "episodes": sum(each.episodes for each in conversations.values()),
        "dead_letters": dead_letters,
    }


def new_erasure(person: Person, asked_by: str | None, key_id: str | None = None) -> Erasure:
    now = utc_milliseconds(datetime.now(UTC))
    return Erasure(str(uuid4()), *person, asked_at=now, asked_by=asked_by, key_id=key_id)


@dataclass(frozen=True)
class ErasureRunner:
    """Accepts requests and carries them out while it runs, including those that were in progress when it started.

    `prepare` prepares the database. `open_eraser` builds an eraser, which connects to Kafka when it is entered.
    """

    erasures: Erasures
    prepare: Callable[[], Awaitable[None]]
    open_eraser: Callable[[], AbstractAsyncContextManager[Eraser]]
    _asked: asyncio.Queue[Erasure] = field(default_factory=asyncio.Queue)
    _turns: FairTurns = field(default_factory=partial(FairTurns, OF_A_TENANT, AT_A_TIME))
    """Turns by tenant."""

    async def ask(self, person: Person, asked_by: str | None, key_id: str | None = None) -> Erasure:
        """Store and return a request of a key, or return the person's request in progress.

        Raises: StoreUnavailable, TooManyErasures.
        """
        await self.prepare()
        of_key = [one for one in await self.erasures.under_way() if one.key_id == key_id is not None]
        if len(of_key) >= MOST_OPEN and all((one.user_id, one.tenant_id) != person for one in of_key):
            raise TooManyErasures(limit=MOST_OPEN)
        erasure = await self.erasures.begin(new_erasure(person, asked_by, key_id))
        self._asked.put_nowait(erasure)
        return erasure

    async def find(self, erasure_id: str) -> Erasure | None:
        """Return an erasure by its id. Raises: StoreUnavailable."""
        return await self.erasures.find(erasure_id)

    async def run(self) -> None:
        """Carry out requests until cancelled."""
        tasks: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            group.create_task(self._resume())
            while True:
                erasure = await self._asked.get()
                tasks = {erasure_id: task for erasure_id, task in tasks.items() if not task.done()}
                if erasure.erasure_id not in tasks:
                    tasks[erasure.erasure_id] = group.create_task(self._carry_out(erasure))

    async def _resume(self) -> None:
        while True:
            try:
                for erasure in await self.erasures.under_way():
                    self._asked.put_nowait(erasure)
            except StoreUnavailable as error:
                log.warning("erasures_not_read", stage="serve", error_type=error.error_type)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _carry_out(self, erasure: Erasure) -> None:
        about = {"stage": "serve", "erasure_id": erasure.erasure_id}
        while True:
            async with self._turns.of(repr(erasure.tenant_id)):
                log.info("erasure_started", **about)
                [error] = await asyncio.gather(self._attempt(erasure), return_exceptions=True)
            if error is None:
                log.info("erasure_ended", **about)
                return
            problem = error.error_type if isinstance(error, AfterwordError) else snake_case(type(error))
            # the texts of other errors may name servers
            detail = str(error) if isinstance(error, NotErased | UserNotArchived) else ""
            log.warning("erasure_postponed", error_type=problem, **about)
            try:
                await self.erasures.report(replace(erasure, stage=None, problem=problem, detail=detail))
            except StoreUnavailable as unavailable:
                log.warning("erasure_not_reported", stage="serve", error_type=unavailable.error_type)
            await asyncio.sleep(RETRY_SECONDS)

    async def _attempt(self, erasure: Erasure) -> None:
        known = await self.erasures.find(erasure.erasure_id)
        if known is None or known.receipt is not None:  # another server finished it first
            return
        assert erasure.user_id is not None  # noqa: S101 – it is in progress
        person = Person(erasure.user_id, erasure.tenant_id)

        async def report(stage: str, left: int) -> None:
            await self.erasures.report(replace(erasure, stage=stage, left=left, problem=None, detail=""))

        async with self.open_eraser() as eraser:
            await eraser.erase(*person, asked_by=erasure.asked_by, timeout_seconds=ATTEMPT_SECONDS, progress=report)
