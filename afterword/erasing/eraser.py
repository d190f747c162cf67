"""Erasing a person, from the first look to the receipt; killed at any point, the same request goes on.

What is deleted goes through `messages`, in the order of the log: an erasure and live traffic meet nowhere else. Which
conversations are under way is stored before anything of them is deleted, for afterwards nothing else tells.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import NamedTuple, Self
from uuid import uuid4

from aiokafka import AIOKafkaConsumer, TopicPartition

from afterword.audit.log import Log, open_log
from afterword.dlq import DeadLetterQueue, Filters, open_queue, queue_topics
from afterword.erasing.receipt import Receipt, TopicDate, gone_by, salted_digest
from afterword.erasing.remains import Person, edited_id, holds, person_of
from afterword.producer import Producer
from afterword.schemas import ConversationDeleted, MessageDeleted
from afterword.schemas.base import utc_milliseconds
from afterword.schemas.dead_letters import WEBHOOKS, DeadLetter
from afterword.schemas.ids import message_key
from afterword.streams.errors import AfterwordError
from afterword.streams.kafka import broker_errors
from afterword.streams.segmenter.state import TABLES
from afterword.streams.settings import Settings, load_settings
from afterword.streams.stores.episodes import DeletedEpisode, StoredEpisode, scope_of
from afterword.streams.stores.erasures import ErasedConversation, Erasure
from afterword.streams.stores.messages import Selection
from afterword.streams.stores.opening import Stores, open_stores
from afterword.streams.summarizer.retries import waits_for_archive
from afterword.streams.visible import many
from afterword.topics import read_configs

WAIT_SECONDS = 600.0
PAGE = 20
"""Conversations that are looked at together: others wait for MongoDB meanwhile."""
PAGE_EPISODES = 50
ROUND = 20
"""Episodes that change before the workers are waited for: live ones wait behind so many, not behind all."""
FIRST_POLL_SECONDS = 0.02
LONGEST_POLL_SECONDS = 1.0
LONGEST_ROUND_POLL_SECONDS = 0.04


class NotErased(AfterwordError):
    """not erased yet after {seconds:g} s: {left:,} {what}. Run it again to go on, with a longer --timeout if need be"""


Left = Callable[[], Awaitable[int]]


class UserNotArchived(AfterwordError):
    """{number} conversations have episodes of this user and others, and the archive has no message of the user: it is
    not known which words are theirs. Delete these conversations as a whole, with Producer.delete_conversation; the
    first is {first}"""


@dataclass(frozen=True)
class ErasurePlan:
    """Counts of what an erasure would find now; messages that the archive does not have yet are not in it."""

    conversations: int = 0
    shared_conversations: int = 0
    """Those of them in which others wrote, too."""
    messages: int = 0
    episodes: int = 0
    dead_letters: int = 0


class ErasureProgress(NamedTuple):
    """Things that are waited for: their name, which begins with a plural, and their number."""

    stage: str
    left: int

    def line(self) -> str:
        first, _, rest = self.stage.partition(" ")
        return f"{many(self.left, first.removesuffix('s'), first)} {rest}"


class Look(NamedTuple):
    """Everything of the person on one page of conversations."""

    own: Mapping[str, int]
    """Numbers of messages by conversation, where there are any."""
    shared: frozenset[str]
    """Those in which others have messages, or episodes."""
    episodes: Mapping[str, int]


class Eraser:
    """Erases persons; to be used with `async with`.

    All methods raise StoreUnavailable, BrokerUnavailable and TopicMissing.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._running = AsyncExitStack()
        self._stores: Stores
        self._log: Log
        self._producer: Producer
        self._episodes_reader: AIOKafkaConsumer
        self._queue: DeadLetterQueue
        self._round: list[ConversationDeleted | MessageDeleted] = []
        self._changing = 0
        """Episodes that the round changes."""

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Build an eraser for the servers of these settings; entering it connects."""
        return cls(settings)

    @classmethod
    def open(cls) -> Self:
        """Build it with the settings of the environment, and of the file that it names. Raises: ConfigurationError."""
        return cls(load_settings())

    async def __aenter__(self) -> Self:
        kafka = self._settings.kafka
        async with AsyncExitStack() as opening:
            self._stores = await opening.enter_async_context(open_stores(self._settings))
            self._queue = await opening.enter_async_context(open_queue(kafka))
            self._log = await opening.enter_async_context(open_log(kafka))
            self._producer = await opening.enter_async_context(Producer.from_settings(self._settings))
            with broker_errors(kafka.bootstrap_servers):
                reader = self._log.reader(kafka.episodes_topic, isolation_level="read_uncommitted")
                self._episodes_reader = await opening.enter_async_context(reader)
            self._episodes_reader.pause(*self._episodes_reader.assignment())  # only the ends are read
            self._running = opening.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._running.__aexit__(kind, error, traceback)

    async def plan(self, user_id: str, tenant_id: str | None, conversation_id: str | None = None) -> ErasurePlan:
        """Count what an erasure would delete, and change nothing."""
        person = person_of(user_id, tenant_id, conversation_id)
        found = ErasurePlan()
        async for page in self._pages(person):
            look = await self._look(page, person)
            there = look.own.keys() | look.episodes.keys()
            found = ErasurePlan(
                found.conversations + len(there),
                found.shared_conversations + len(look.shared & there),
                found.messages + sum(look.own.values()),
                found.episodes + sum(look.episodes.values()),
            )
        theirs = await self._dead_letters(person, None)
        counts = [await self._queue.count(topic, theirs, "discarded") for topic in queue_topics(self._settings.kafka)]
        return replace(found, dead_letters=sum(one.resolved for one in counts))

    async def erase(
        self,
        user_id: str,
        tenant_id: str | None,
        conversation_id: str | None = None,
        *,
        asked_by: str | None = None,
        timeout_seconds: float = WAIT_SECONDS,
        progress: Callable[[ErasureProgress], None] = lambda _: None,
        keep: Callable[[Receipt], Awaitable[None] | None] = lambda _: None,
        receipt_id: str | None = None,
    ) -> Receipt:
        """Delete every message of the user, wait until nothing is left of them, and return the receipt.

        `tenant_id`: None means messages without a tenant, never those of all. `conversation_id`: only this one.
        `keep`: writes the receipt where it stays; then the request is forgotten. Until then the same request goes on
        wherever it was interrupted, and its receipt has the same id: `receipt_id`, or a random one.

        Raises: NotErased when the time is over; UserNotArchived.
        """
        person = person_of(user_id, tenant_id, conversation_id)
        self._round, self._changing = [], 0
        run = await self._begin(fresh_erasure(person, asked_by, receipt_id), person, Waiting(timeout_seconds, progress))
        await self._delete_everything(run)
        await self._tidy(run)
        receipt = await self._receipt(run)
        if (kept := keep(receipt)) is not None:
            await kept
        await self._stores.erasures.end(run.erasure)
        return receipt

    # Looking

    async def _pages(self, person: Person) -> AsyncIterator[list[str]]:
        """Ids of conversations that may have something of the person, page by page, each once."""
        if person.conversation_id is not None:
            yield [person.conversation_id]
            return
        after: str | None = None
        asked = (person.user_id, person.tenant_id)
        while True:
            written = await self._stores.messages.conversations_of(*asked, after, PAGE)
            summarized = await self._stores.episodes.conversations_of(*asked, after, PAGE)
            page = sorted({*written, *summarized}, key=str.encode)[:PAGE]
            if not page:
                return
            yield page
            after = page[-1]

    async def _look(self, page: Sequence[str], person: Person) -> Look:
        authors = await self._stores.messages.authors(page, person.user_id, person.tenant_id)
        episodes = await self._stores.episodes.taken_part_in(page, person.user_id, person.tenant_id)
        own = {name: found.own for name, found in authors.items() if found.own}
        shared = {name for name, found in authors.items() if found.others}
        # messages of others may have expired, and their episodes not
        for name in own.keys() - shared:
            if await self._stores.episodes.users_of(name) - {person.user_id}:
                shared.add(name)
        return Look(own, frozenset(shared), episodes)

    # Deleting

    async def _begin(self, fresh: Erasure, person: Person, waiting: "Waiting") -> "Run":
        await self._stores.prepare_database()
        return Run(person, await self._stores.erasures.begin(fresh), waiting)

    async def _delete_everything(self, run: "Run") -> bool:
        """Delete until there is nothing; return whether there was something."""
        has_deleted = False
        while await self._delete_messages(run) or await self._delete_what_the_archive_lacks(run):
            await self._until_derived(run)
            has_deleted = True
        return has_deleted

    async def _delete_messages(self, run: "Run") -> bool:
        """Delete what the archive has of the person, again and again until it has nothing; False if it had nothing."""
        has_deleted = False
        while True:
            await self._until_archived(run)
            found = 0
            async for page in self._pages(run.person):
                look = await self._look(page, run.person)
                await self._delete(run, look)
                found += sum(look.own.values())
            if not found:
                return has_deleted
            run.waiting.check("messages of before the last look", found)
            has_deleted = True

    async def _delete(self, run: "Run", look: Look) -> None:
        """Delete the messages of one page, after it is stored which conversations they are in."""
        if not look.own:
            return
        known = await self._stores.erasures.known(run.erasure, list(look.own))
        rows = []
        for name, number in look.own.items():
            row = known.get(name) or ErasedConversation(name, whole=False)
            is_whole = row.whole or name not in look.shared
            open_messages = max(row.open_messages, number)
            episodes = max(row.episodes, look.episodes.get(name, 0))
            rows.append(replace(row, whole=is_whole, open_messages=open_messages, episodes=episodes))
        await self._stores.erasures.put(run.erasure, rows)
        for row in rows:
            if row.conversation_id in look.shared:
                await self._delete_each(run, row.conversation_id)
            else:
                await self._delete_conversation(run, row.conversation_id, row.episodes)
        await self._send_round()
        settled = [replace(row, messages=row.messages + row.open_messages, open_messages=0) for row in rows]
        await self._stores.erasures.put(run.erasure, settled)

    async def _delete_conversation(self, run: "Run", conversation_id: str, episodes: int) -> None:
        tenant_id, reason = run.person.tenant_id, run.reason
        event = ConversationDeleted(conversation_id=conversation_id, tenant_id=tenant_id, reason=reason)
        await self._send(run, event, episodes)

    async def _delete_each(self, run: "Run", conversation_id: str) -> None:
        user_id, tenant_id, _ = run.person
        newest = self._stores.messages.newest(Selection(conversation_id, tenant_id, user_id=user_id))
        ids = [found.message.id async for found in newest]  # a cursor would not outlive the waits in between
        for message_id in ids:
            event = MessageDeleted(
                id=message_id, conversation_id=conversation_id, tenant_id=tenant_id, reason=run.reason
            )
            await self._send(run, event, 1)

    async def _send(self, run: "Run", event: ConversationDeleted | MessageDeleted, episodes: int) -> None:
        """Send an event with others; when so many `episodes` change as ROUND, wait until the workers have changed them.

        What is left of a round is sent by `_send_round`.
        """
        self._round.append(event)
        self._changing += max(1, episodes)
        if self._changing >= ROUND:
            await self._until_nearly_processed(run, await self._send_round())

    async def _send_round(self) -> dict[TopicPartition, int]:
        """Send what waits; returns the offset after it on each partition of `messages`."""
        events, self._round, self._changing = self._round, [], 0
        ends: dict[TopicPartition, int] = {}
        for partition, offset in await self._producer.send_all(events):
            where = TopicPartition(self._settings.kafka.messages_topic, partition)
            ends[where] = max(offset + 1, ends.get(where, 0))
        return ends

    async def _delete_what_the_archive_lacks(self, run: "Run") -> bool:
        """Delete conversations of the person alone of which only episodes are left; False if there is none.

        Raises: UserNotArchived.
        """
        await self._until_derived(run)
        unknown: list[str] = []
        deleted = 0
        async for page in self._pages(run.person):
            look = await self._look(page, run.person)
            for name, number in look.episodes.items():
                if name in look.own:
                    deleted += 1  # it has come meanwhile, and goes with the messages
                elif name in look.shared or not await self._is_alone(name, run.person):
                    unknown.append(name)
                else:
                    row = ErasedConversation(name, whole=True, episodes=number)
                    await self._stores.erasures.put(run.erasure, [row])
                    await self._delete_conversation(run, name, number)
                    deleted += 1
            await self._send_round()
        if unknown and not deleted:
            raise UserNotArchived(number=len(unknown), first=unknown[0])
        run.waiting.check("conversations with episodes", deleted)
        return bool(deleted)

    async def _is_alone(self, conversation_id: str, person: Person) -> bool:
        """Tell whether the conversation's episodes are known to be of nobody else."""
        async for episode in self._episodes(conversation_id):
            if isinstance(episode, StoredEpisode):
                users = {*episode.participants, episode.summary.user_id}
                if users != {person.user_id} or episode.summary.tenant_id != person.tenant_id:
                    return False
        return True

    async def _episodes(self, conversation_id: str) -> AsyncIterator[StoredEpisode | DeletedEpisode]:
        after: str | None = None
        is_more = True
        while is_more:
            page = await self._stores.episodes.of_conversation(conversation_id, after, PAGE_EPISODES)
            for episode in page:
                yield episode
            is_more = len(page) == PAGE_EPISODES
            after = page[-1].event.episode_id if page else None

    # Waiting

    async def _until_archived(self, run: "Run") -> None:
        kafka = self._settings.kafka
        await self._until_read(run, "archiver", kafka.archiver_id, kafka.messages_topic)

    async def _until_derived(self, run: "Run") -> None:
        """Wait until segmenter and summarizer have made everything of what was deleted so far."""
        await self._until_processed(run)
        await run.waiting.until("changes on the retry topic", lambda: self._changes_put_aside(run))

    async def _until_processed(self, run: "Run") -> None:
        """Wait until segmenter and summarizer have taken what is there, apart from what they have put aside."""
        kafka = self._settings.kafka
        await self._until_read(run, "segmenter", kafka.segmenter_id, kafka.messages_topic)
        await self._until_read(run, "summarizer", kafka.summarizer_id, kafka.episodes_topic)

    async def _until_nearly_processed(self, run: "Run", sent: Mapping[TopicPartition, int]) -> None:
        """Wait until segmenter and summarizer have taken what was `sent`: the offset after it, by partition.

        The last record of a partition is not waited for where it may be a marker of a transaction, which a worker that
        has nothing to send passes a second later.
        """
        kafka = self._settings.kafka
        await self._until_near(run, "segmenter", kafka.segmenter_id, kafka.messages_topic, sent, 0)
        with broker_errors(kafka.bootstrap_servers):
            ends = await self._episodes_reader.end_offsets(list(self._episodes_reader.assignment()))
        await self._until_near(run, "summarizer", kafka.summarizer_id, kafka.episodes_topic, ends, 1)

    async def _until_near(
        self, run: "Run", role: str, group: str, topic: str, ends: Mapping[TopicPartition, int], slack: int
    ) -> None:
        async def left() -> int:
            with broker_errors(self._settings.kafka.bootstrap_servers):
                lags = await self._log.lags(group, topic, ends)
            return sum(max(0, lag - slack) for lag in lags.values())

        await run.waiting.until(f"records that the {role} has not taken", left, LONGEST_ROUND_POLL_SECONDS)

    async def _until_read(self, run: "Run", role: str, group: str, topic: str) -> None:
        """Wait until the group has taken everything that is on the topic now."""
        ends = await self._ends(topic)
        await run.waiting.until(f"records that the {role} has not taken", lambda: self._unread(group, topic, ends))

    async def _unread(self, group: str, topic: str, ends: Mapping[TopicPartition, int]) -> int:
        with broker_errors(self._settings.kafka.bootstrap_servers):
            return await self._log.left(group, topic, ends)

    async def _changes_put_aside(self, run: "Run") -> int:
        """Count changes of this erasure's conversations that wait on `episode.retry` for the archive.

        A fallback of a change waits there for the LLM: it has nothing of what was deleted.
        """
        kafka = self._settings.kafka
        ends = await self._ends(kafka.retry_topic)
        with broker_errors(kafka.bootstrap_servers):
            unread = self._log.unread(kafka.summarizer_id, kafka.retry_topic, ends)
            changes = [one.key or b"" async for one in unread if waits_for_archive(one)]
        keys = [key.decode(errors="replace") for key in changes]
        known = await self._stores.erasures.known(run.erasure, list(set(keys)))
        return sum(key in known for key in keys)

    async def _ends(self, topic: str) -> dict[TopicPartition, int]:
        with broker_errors(self._settings.kafka.bootstrap_servers):
            return await self._log.ends(topic)

    # What no event reaches

    async def _tidy(self, run: "Run") -> None:
        """Drop cached answers, discard dead letters, and see that the index has nothing of what was deleted."""
        async for rows in self._rows(run):
            gone = [name for row in rows for name in await self._tidy_conversation(row.conversation_id)]
            await run.waiting.until("episodes in the index", lambda: self._indexed(gone))  # noqa: B023 – awaited here
        theirs, discarded = await self._dead_letters(run.person, run), 0
        for topic in queue_topics(self._settings.kafka):
            discarded += (await self._queue.resolve(topic, theirs, "discarded")).resolved
        await self._stores.erasures.count(run.erasure, {"dead_letters": discarded})

    async def _rows(self, run: "Run") -> AsyncIterator[list[ErasedConversation]]:
        after: str | None = None
        while rows := await self._stores.erasures.following(run.erasure, after, PAGE):
            yield rows
            after = rows[-1].conversation_id

    async def _tidy_conversation(self, conversation_id: str) -> list[str]:
        """Drop answers once more: one that was under way when the summarizer did so may have been cached since.

        Returns the ids of the conversation's deleted episodes.
        """
        gone, scopes = [], set()
        async for episode in self._episodes(conversation_id):
            scopes.add(scope_of(episode.event))
            if isinstance(episode, DeletedEpisode):
                gone.append(episode.event.episode_id)
        for scope in scopes:
            await self._stores.replies.forget(scope, 0)
        return gone

    async def _indexed(self, gone: Sequence[str]) -> int:
        """Count deleted episodes that the index still has."""
        return len(await self._stores.index.revisions(gone)) if gone else 0

    async def _dead_letters(self, person: Person, run: "Run | None") -> "TheirDeadLetters":
        """Select the person's dead letters, by conversations that were only theirs and by what is in the letters."""
        whole: set[str] = set()
        shared: set[str] = set()
        if run is None:
            async for page in self._pages(person):
                look = await self._look(page, person)
                whole |= (look.own.keys() | look.episodes.keys()) - look.shared
                shared |= look.shared
        else:
            async for rows in self._rows(run):
                whole |= {row.conversation_id for row in rows if row.whole}
                shared |= {row.conversation_id for row in rows if not row.whole}
        edits = await self._edits(person, shared)
        if run is not None and edits:
            await self._until_archived(run)  # the message of an edit comes before it
        return TheirDeadLetters(person, frozenset(whole), frozenset(shared), await self._without_author(person, edits))

    async def _edits(self, person: Person, shared: Collection[str]) -> dict[str, str]:
        """Find dead letters that edit messages of shared conversations: the messages' keys, by address."""
        found: dict[str, str] = {}
        if not shared:
            return found
        kafka = self._settings.kafka
        async for letter in self._queue.unresolved(kafka.dead_letters(kafka.messages_topic), Filters()):
            name = letter.conversation_id
            message_id = edited_id(letter.value, letter.headers, person) if name in shared else None
            if name is not None and message_id is not None:
                found[letter.address] = message_key(name, message_id, person.tenant_id)
        return found

    async def _without_author(self, person: Person, edits: Mapping[str, str]) -> frozenset[str]:
        """Select the edits of messages that nobody else has: they are the person's, or can never be made."""
        found = set[str]()
        rows = list(edits.items())
        for first in range(0, len(rows), PAGE):
            some = rows[first : first + PAGE]
            living = await self._stores.messages.get_many([key for _, key in some])
            others = {key for key, one in living.items() if one.message.user_id != person.user_id}
            found.update(address for address, key in some if key not in others)
        return frozenset(found)

    # The receipt

    async def _receipt(self, run: "Run") -> Receipt:
        person = run.person
        erasure = await self._stores.erasures.find(run.erasure) or run.erasure
        now = utc_milliseconds(datetime.now(UTC))
        whole: list[str] = []
        shared: list[str] = []
        messages = episodes = 0
        async for rows in self._rows(run):
            for row in rows:
                (whole if row.whole else shared).append(
                    salted_digest(erasure.salt, "conversation", row.conversation_id)
                )
                messages += row.messages + row.open_messages
                episodes += row.episodes
        counts = {"messages": messages, "conversations": len(whole) + len(shared), "episodes": episodes}
        only = person.conversation_id
        return Receipt(
            receipt_id=erasure.receipt_id,
            asked_by=erasure.asked_by,
            asked_at=erasure.asked_at,
            finished_at=now,
            salt=erasure.salt,
            user=salted_digest(erasure.salt, "user", person.user_id),
            tenant=None if person.tenant_id is None else salted_digest(erasure.salt, "tenant", person.tenant_id),
            conversation=None if only is None else salted_digest(erasure.salt, "conversation", only),
            deleted_conversations=tuple(sorted(whole)),
            shared_conversations=tuple(sorted(shared)),
            counts={**counts, "dead_letters": 0, **erasure.counts},
            topics=tuple([await self._date(name, configs, now) for name, configs in (await self._configs()).items()]),
        )

    async def _configs(self) -> dict[str, dict[str, str]]:
        return await read_configs(self._settings, [self._settings.kafka.messages_topic, *own_topics(self._settings)])

    async def _date(self, topic: str, configs: Mapping[str, str], now: datetime) -> TopicDate:
        date, because = gone_by(configs, now)
        ends = {tp.partition: end for tp, end in (await self._ends(topic)).items()}
        ours = topic != self._settings.kafka.messages_topic
        return TopicDate(topic=topic, gone_by=date, because=because, ends=ends, ours=ours)


def fresh_erasure(person: Person, asked_by: str | None, receipt_id: str | None = None) -> Erasure:
    """Make the record of a request that is asked for now."""
    now = utc_milliseconds(datetime.now(UTC))
    return Erasure(person.key, receipt_id or str(uuid4()), secrets.token_hex(16), now, asked_by)


class Waiting:
    """Time that is left, and who is told what is waited for."""

    def __init__(self, seconds: float, progress: Callable[[ErasureProgress], None]) -> None:
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._progress = progress

    def report(self, what: str, left: int) -> None:
        self._progress(ErasureProgress(what, left))

    def check(self, what: str, left: int) -> None:
        """Raises: NotErased when the time is over."""
        if left:
            self.report(what, left)
            if time.monotonic() > self._deadline:
                raise NotErased(seconds=self._seconds, left=left, what=what)

    async def until(self, what: str, left: Left, longest_poll: float = LONGEST_POLL_SECONDS) -> None:
        """Wait until nothing is left. Raises: NotErased."""
        wait = FIRST_POLL_SECONDS
        while number := await left():
            self.check(what, number)
            await asyncio.sleep(wait)
            wait = min(1.5 * wait, longest_poll)


class Run(NamedTuple):
    """One call of `erase`."""

    person: Person
    erasure: Erasure
    waiting: Waiting

    @property
    def reason(self) -> str:
        return f"erasure {self.erasure.receipt_id}"


class TheirDeadLetters(NamedTuple):
    """Dead letters of a person: of conversations that were theirs alone, and those with something of them inside.

    A summary of a conversation that they shared may have their words, and a higher revision follows it: all are theirs.
    """

    person: Person
    whole: frozenset[str]
    shared: frozenset[str] = frozenset()
    edits: frozenset[str] = frozenset()
    """Addresses of edits in the shared ones."""

    def match(self, dead_letter: DeadLetter) -> bool:
        if self.person.conversation_id not in (None, dead_letter.conversation_id):
            return False
        # another tenant's record in their conversation was rejected for that alone
        is_of_theirs = dead_letter.conversation_id in self.whole and dead_letter.error_type != "tenant_mismatch"
        may_be = dead_letter.stage == WEBHOOKS and dead_letter.conversation_id in self.shared
        return is_of_theirs or may_be or dead_letter.address in self.edits or holds(dead_letter.value, self.person)


def own_topics(settings: Settings) -> list[str]:
    """Name the topics and changelogs that Afterword writes."""
    kafka = settings.kafka
    return [
        *(kafka.episodes_topic, kafka.retry_topic, kafka.summaries_topic, kafka.deletions_topic),
        *queue_topics(kafka),
        *(kafka.changelog(table) for table in TABLES),
    ]
