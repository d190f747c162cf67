"""Looking again, at any time after an erasure: what is still there of the person, and whether its date has passed.

Stores must have nothing. Topics keep what they had until their dates; what came after the receipt is not meant.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime

from afterword.audit.log import open_log
from afterword.erasing.eraser import PAGE
from afterword.erasing.receipt import Receipt, salted_digest
from afterword.erasing.remains import Person, Selector, person_of, remaining
from afterword.schemas.base import rfc3339
from afterword.streams.kafka import broker_errors
from afterword.streams.settings import Settings
from afterword.streams.stores.episodes import DeletedEpisode
from afterword.streams.stores.messages import Selection
from afterword.streams.stores.opening import Stores, open_stores

Pages = Callable[[str, str | None, str | None, int], Awaitable[list[str]]]

IDS = 1000
"""Episode ids that the index is asked for at once."""


@dataclass(frozen=True)
class Remains:
    """Remains in one place."""

    place: str
    number: int
    gone_by: datetime | None
    """None: it should be gone."""

    def is_late(self, now: datetime) -> bool:
        return self.gone_by is None or self.gone_by < now

    def line(self, now: datetime) -> str:
        until = f"should have gone by {rfc3339(self.gone_by)}" if self.gone_by else "should be gone"
        if not self.is_late(now) and self.gone_by:
            until = f"goes by {rfc3339(self.gone_by)}"
        return f"{self.place}: {self.number:,}, {until}"


@dataclass(frozen=True)
class Verification:
    """Findings, and the topics that nothing bounds."""

    findings: tuple[Remains, ...]
    unbounded: tuple[str, ...]
    """Topics whose settings keep what they have for ever, and that have something."""
    looked_at: datetime

    @property
    def late(self) -> tuple[Remains, ...]:
        return tuple(found for found in self.findings if found.is_late(self.looked_at))


async def verify(
    settings: Settings, receipt: Receipt, user_id: str, tenant_id: str | None, now: datetime | None = None
) -> Verification:
    """Look for what a receipt says is gone, in all stores and topics but that of the messages.

    Raises: NotTheirs for a receipt of somebody else; StoreUnavailable, BrokerUnavailable, TopicStalled.
    """
    receipt.check(user_id, tenant_id)
    person = person_of(user_id, tenant_id, None)
    async with AsyncExitStack() as opening:
        stores = await opening.enter_async_context(open_stores(settings))
        found = [
            Remains("messages in the archive", await _messages(stores, receipt, person, settings), None),
            Remains("episodes", await _episodes(stores, receipt, person), None),
            Remains("deleted episodes in the index", await _indexed(stores, receipt), None),
        ]
        unbounded: list[str] = []
        selector = Selector(receipt, person)
        with broker_errors(settings.kafka.bootstrap_servers):
            log = await opening.enter_async_context(open_log(settings.kafka))
            existing = await log.topics()
            for date in receipt.topics:
                is_theirs = selector.of(settings.kafka, date.topic)
                if is_theirs and date.topic in existing:
                    number = await remaining(log, date, is_theirs)
                    if isinstance(date.gone_by, datetime):
                        found.append(Remains(date.topic, number, date.gone_by))
                    elif number:
                        unbounded.append(date.topic)
    there = tuple(one for one in found if one.number)
    return Verification(there, tuple(unbounded), now or datetime.now(UTC))


async def _messages(stores: Stores, receipt: Receipt, person: Person, settings: Settings) -> int:
    """Count the person's messages of before the receipt: what they wrote later is theirs to keep."""
    [date] = [topic for topic in receipt.topics if topic.topic == settings.kafka.messages_topic]
    number = 0
    async for conversation in _conversations(stores.messages.conversations_of, person):
        if _is_meant(receipt, conversation):
            selection = Selection(conversation, person.tenant_id, user_id=person.user_id)
            number += sum(
                [1 async for one in stores.messages.newest(selection) if one.offset < date.ends.get(one.partition, 0)]
            )
    return number


async def _episodes(stores: Stores, receipt: Receipt, person: Person) -> int:
    """Count the person's episodes that ended before the receipt."""
    number = 0
    async for conversation in _conversations(stores.episodes.conversations_of, person):
        if not _is_meant(receipt, conversation):
            continue
        after: str | None = None
        while page := await stores.episodes.of_conversation(conversation, after, PAGE):
            for stored in page:
                users = {*getattr(stored, "participants", ()), getattr(stored.event, "user_id", None)}
                closed_at = getattr(stored.event, "closed_at", receipt.finished_at)
                number += person.user_id in users and closed_at < receipt.finished_at
            after = page[-1].event.episode_id
    return number


async def _conversations(pages: Pages, person: Person) -> AsyncIterator[str]:
    after: str | None = None
    while page := await pages(person.user_id, person.tenant_id, after, PAGE):
        for conversation in page:
            yield conversation
        after = page[-1]


def _is_meant(receipt: Receipt, conversation_id: str) -> bool:
    """Tell whether the receipt is about a conversation; one of all conversations is about each."""
    return receipt.conversation in (None, salted_digest(receipt.salt, "conversation", conversation_id))


async def _indexed(stores: Stores, receipt: Receipt) -> int:
    """Count deleted episodes of the receipt's conversations that the index still has."""
    meant = {*receipt.deleted_conversations, *receipt.shared_conversations}
    number, ids = 0, []
    async for gone in stores.episodes.all_episodes():
        if not isinstance(gone, DeletedEpisode):
            continue
        if salted_digest(receipt.salt, "conversation", gone.deletion.conversation_id) in meant:
            ids.append(gone.deletion.episode_id)
        if len(ids) == IDS:
            number += len(await stores.index.revisions(ids))
            ids.clear()
    return number + (len(await stores.index.revisions(ids)) if ids else 0)
