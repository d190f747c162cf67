"""Small stores beside messages and episodes: erasures, budgets of LLM tokens, keys and ended sessions of the server."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal, Protocol
from uuid import uuid4

from pydantic import TypeAdapter

from afterword.schemas.base import escape
from afterword.schemas.messages import Move
from afterword.streams.tasks import Batches, gather_or_cancel, in_parts

RecordKind = Literal[
    "api_keys",
    "assignments",
    "budgets",
    "ended_sessions",
    "erasures",
    "erased_conversations",
    "erasure_receipts",
    "llm_servers",
    "llm_settings",
]

SESSION_RETENTION = timedelta(days=1)
"""Longer than anybody can have a valid cookie of a session."""
HOUR, HOUR_CHARACTERS = "%Y-%m-%dT%H", 13
"""The form of an hour, with which the key of its counter begins."""
MOST_CHANGES = 100
"""At most this many changes of counters are stored together."""


class Records(Protocol):
    """Small records, each a JSON text under its kind and key. All methods raise StoreUnavailable."""

    async def read(self, kind: RecordKind, key: str) -> str | None:
        return (await self.read_some(kind, [key])).get(key)

    async def read_some(self, kind: RecordKind, keys: Sequence[str]) -> dict[str, str]:
        """Return those of these records that there are, by their keys."""
        ...

    async def read_all(self, kind: RecordKind) -> dict[str, str]:
        """Return all records of this kind by their keys."""
        ...

    async def replace(self, kind: RecordKind, key: str, before: str | None, after: str | None) -> bool:
        """Store `after` in place of `before`, where None means that there is no record.

        Returns False, having written nothing, if anything else is stored. `before` and `after` must not both be None.
        """
        ...


@dataclass(frozen=True)
class ErasedConversation:
    """A conversation in which the person wrote. Once the conversation is deleted, this is its only trace."""

    conversation_id: str
    alone: bool
    """True if nobody else wrote in it, so that all of it is deleted."""
    messages: int = 0
    """The largest number of the person's messages that were found in it at one time."""
    episodes: int = 0
    """Number of episodes in which the person took part."""
    moves: tuple[Move, ...] = ()
    """Assignments of its messages, which its deletion forgets."""

    def merged(self, earlier: "ErasedConversation") -> "ErasedConversation":
        """Combine this with the result of an earlier run."""
        return ErasedConversation(
            self.conversation_id,
            self.alone or earlier.alone,
            max(self.messages, earlier.messages),
            max(self.episodes, earlier.episodes),
            tuple(sorted({*self.moves, *earlier.moves})),
        )


@dataclass(frozen=True)
class Erasure:
    """A request to erase a person. Once it is done, only the receipt and the tenant are left."""

    erasure_id: str
    user_id: str | None
    """None once the erasure is done."""
    tenant_id: str | None
    asked_at: datetime
    asked_by: str | None = None
    stage: str | None = None
    """Name of the work that the erasure is waiting for; None if no server has begun, or the last attempt failed."""
    left: int = 0
    """Number of remaining items of that work."""
    problem: str | None = None
    """`error_type` of the error that ended the last attempt."""
    detail: str = ""
    receipt: str | None = None
    """The receipt as JSON."""
    key_id: str | None = None
    """Name of the key that asked for it; None for a command."""

    def done(self, receipt: str) -> "Erasure":
        """Return the finished erasure, which no longer names the person."""
        return Erasure(self.erasure_id, None, self.tenant_id, self.asked_at, receipt=receipt)


ERASURE: TypeAdapter[Erasure] = TypeAdapter(Erasure)
CONVERSATIONS: TypeAdapter[Sequence[ErasedConversation]] = TypeAdapter(Sequence[ErasedConversation])


class Erasures:
    """Stores erasures by their ids.

    The conversations of an erasure are records of their own, because a record has a limited size in MongoDB. All
    methods raise StoreUnavailable.
    """

    def __init__(self, records: Records) -> None:
        self._records = records

    async def begin(self, erasure: Erasure) -> Erasure:
        """Store the erasure unless one for the same person is under way; return the one under way.

        Two requests at the same time may both be stored; then both are carried out.
        """
        for known in await self.under_way():
            if (known.user_id, known.tenant_id) == (erasure.user_id, erasure.tenant_id):
                return known
        await self._records.replace("erasures", erasure.erasure_id, None, ERASURE.dump_json(erasure).decode())
        return erasure

    async def add(self, erasure: Erasure, conversations: Sequence[ErasedConversation]) -> None:
        """Add conversations that were found; the same one may be added several times."""
        text = CONVERSATIONS.dump_json(conversations).decode()
        await self._records.replace("erased_conversations", f"{erasure.erasure_id}/{uuid4()}", None, text)

    async def conversations(self, erasure: Erasure) -> list[ErasedConversation]:
        """Return all conversations that were added."""
        stored = await self._records.read_all("erased_conversations")
        own = [text for key, text in stored.items() if key.startswith(f"{erasure.erasure_id}/")]
        return [conversation for text in own for conversation in CONVERSATIONS.validate_json(text)]

    async def report(self, erasure: Erasure) -> None:
        """Store the erasure's progress and its problem; does nothing if it is done."""
        reported = {name: getattr(erasure, name) for name in ("stage", "left", "problem", "detail")}
        await self._revise(erasure, lambda known: replace(known, **reported))

    async def under_way(self) -> list[Erasure]:
        """Return all erasures that are not done."""
        return [ERASURE.validate_json(stored) for stored in (await self._records.read_all("erasures")).values()]

    async def find(self, erasure_id: str) -> Erasure | None:
        """Return the erasure with this id, whether under way or done."""
        # in this order: if `end` was interrupted, both records exist, and the erasure has to be carried out again
        under_way = await self._records.read("erasures", erasure_id)
        stored = under_way or await self._records.read("erasure_receipts", erasure_id)
        return ERASURE.validate_json(stored) if stored else None

    async def end(self, erasure: Erasure, receipt: str) -> None:
        """Store the receipt. Remove the person's identity, and the conversations of every finished erasure.

        Repeating this does nothing.
        """
        done = ERASURE.dump_json(erasure.done(receipt)).decode()
        await self._records.replace("erasure_receipts", erasure.erasure_id, None, done)
        # in this order, because an erasure is stored before its conversations
        conversations = await self._records.read_all("erased_conversations")
        under_way = {each.erasure_id for each in await self.under_way()} - {erasure.erasure_id}
        for key, text in conversations.items():
            if key.partition("/")[0] not in under_way:
                await self._records.replace("erased_conversations", key, text, None)
        await self._revise(erasure, lambda _: None)  # last, so that an interrupted `end` is repeated

    async def _revise(self, erasure: Erasure, revised: Callable[[Erasure], Erasure | None]) -> None:
        """Change the erasure, or remove it, unless it is done."""
        while stored := await self._records.read("erasures", erasure.erasure_id):
            after = revised(ERASURE.validate_json(stored))
            text = None if after is None else ERASURE.dump_json(after).decode()
            if await self._records.replace("erasures", erasure.erasure_id, stored, text):
                return


class Budgets:
    """Hourly counters of LLM tokens, shared by all workers, each starting at 0. All methods raise StoreUnavailable.

    The counters of earlier hours are removed: an answer that comes after the end of its hour corrects nothing.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._hour = ""
        """The hour whose first counter this process has met last."""
        self._changes = defaultdict[str, Batches[tuple[int, int | None]]](lambda: Batches(self._change, MOST_CHANGES))
        """Changes of each counter: those that come while one is stored are stored together, and do not compete."""

    async def take(self, key: str, amount: int, limit: int) -> bool:
        """Add the amount unless the counter has reached the limit; in that case add nothing and return False.

        However many workers take at once, a counter exceeds its limit by less than the amount that made it reach the
        limit.
        """
        await self._begin(key[:HOUR_CHARACTERS])
        return bool(await self._changes[key].result((amount, limit), key))

    async def correct(self, key: str, amount: int) -> None:
        """Add the amount, which may be negative, to a counter if it exists."""
        await self._changes[key].result((amount, None), key)

    async def _change(self, key: str, changes: list[tuple[int, int | None]]) -> list[bool]:
        """Make those changes that the limits allow or, where there is none, the counter exists for."""
        while True:
            stored = await self._records.read("budgets", key)
            tokens, made = int(stored or 0), list[bool]()
            for amount, limit in changes:
                made.append(stored is not None if limit is None else tokens < limit)
                tokens += amount if made[-1] else 0
            if not any(made) or await self._records.replace("budgets", key, stored, str(tokens)):
                return made

    async def _begin(self, hour: str) -> None:
        """Remove the counters of all hours before the last one, once in each hour."""
        if hour != self._hour:
            self._hour = hour
            self._changes.clear()
            last = f"{datetime.fromisoformat(hour) - timedelta(hours=1):{HOUR}}"
            counters = await self._records.read_all("budgets")
            for earlier in in_parts([key for key in counters if key[:HOUR_CHARACTERS] < last], MOST_CHANGES):
                removed = (self._records.replace("budgets", key, counters[key], None) for key in earlier)
                await gather_or_cancel(*removed)


def budget_key(hour: datetime, tenant_id: str | None = None, *, of_tenant: bool = False) -> str:
    """Return the key of an hour's (UTC) counter: for all tenants, for one, or for messages without a tenant."""
    name = f"{hour:{HOUR}}"
    return f"{name}/{escape(tenant_id or '')}" if of_tenant else name


@dataclass(frozen=True)
class ApiKey:
    """The rights of a key of `afterword serve`, and whose they are. The key itself is stored nowhere."""

    digest: str
    """SHA-256 of the key, in hexadecimal. A key has 256 random bits, so nobody can find it from this."""
    key_id: str
    """The key's name in lists and logs."""
    scopes: tuple[str, ...]
    tenant_id: str | None
    """Limits the key to this tenant's data; None limits it to data without a tenant."""
    user_id: str | None
    """Limits the key to this user's data; None means every user of the tenant."""
    created_at: datetime


KEY: TypeAdapter[ApiKey] = TypeAdapter(ApiKey)


class ApiKeys:
    """Stores API keys by their digest. All methods raise StoreUnavailable."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def put(self, key: ApiKey) -> None:
        """Store a key; does nothing if it is stored."""
        await self._records.replace("api_keys", key.digest, None, KEY.dump_json(key).decode())

    async def find(self, digest: str) -> ApiKey | None:
        stored = await self._records.read("api_keys", digest)
        return KEY.validate_json(stored) if stored else None

    async def list(self) -> list[ApiKey]:
        """Return all keys, the oldest first."""
        api_keys = [KEY.validate_json(stored) for stored in (await self._records.read_all("api_keys")).values()]
        return sorted(api_keys, key=lambda key: key.created_at)

    async def remove(self, key_id: str) -> bool:
        """Remove a key; return False if there is none with this name."""
        for digest, stored in (await self._records.read_all("api_keys")).items():
            if KEY.validate_json(stored).key_id == key_id:
                return await self._records.replace("api_keys", digest, stored, None)
        return False


class EndedSessions:
    """Sessions of the page that visitors ended. All methods raise StoreUnavailable."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def add(self, session: str) -> None:
        now = datetime.now(UTC)
        for name, ended_at in (await self._records.read_all("ended_sessions")).items():
            if now - datetime.fromisoformat(ended_at) > SESSION_RETENTION:
                await self._records.replace("ended_sessions", name, ended_at, None)
        await self._records.replace("ended_sessions", session, None, now.isoformat())

    async def has(self, session: str) -> bool:
        return await self._records.read("ended_sessions", session) is not None
