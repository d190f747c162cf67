"""Keys of users: their store, and those that a process has at hand for a short time.

What decides and seals must not wait, so a key that is not at hand ends it with KeysNeeded; whoever called fetches the
keys and calls again.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from afterword.streams.errors import AfterwordError
from afterword.streams.sealing.codec import UserKey, WrappingKeys, digest_of_owner
from afterword.streams.stores.user_keys import KeyOwner, KeysNeeded, Needed, UserKeys

MOST_CACHED = 50_000
"""Keys at hand: some 20 MB."""
BATCH = 1000
"""Keys that the store is asked for at once."""
ADDED_TOGETHER = 50

K = TypeVar("K")
V = TypeVar("V")


class KeyUnknown(AfterwordError):
    """MongoDB has no key {key_id}, and does not know that it was destroyed: it is another database, or an older
    backup of it"""


class KeyRing:
    """Keys at hand, each for at most `cache_seconds` after it was read."""

    def __init__(
        self,
        store: UserKeys,
        wrapping: WrappingKeys,
        cache_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._wrapping = wrapping
        self._clock = clock
        self._current = TimedCache[KeyOwner, UserKey](cache_seconds, MOST_CACHED)
        self._by_id = TimedCache[bytes, UserKey | None](cache_seconds, MOST_CACHED)

    def current(self, owners: Iterable[KeyOwner]) -> list[UserKey]:
        """Keys to seal with, in the order of their owners. Raises: KeysNeeded."""
        now = self._clock()
        found = {owner: self._current.get(owner, now) for owner in owners}
        missing = frozenset(owner for owner, entry in found.items() if entry is None)
        if missing:
            raise KeysNeeded(Needed(owners=missing))
        return [entry[0] for entry in found.values() if entry]

    def known(self, key_ids: Iterable[bytes]) -> list[UserKey] | None:
        """Keys to open with; None if one of them was destroyed. Raises: KeysNeeded."""
        now = self._clock()
        found = {key_id: self._by_id.get(key_id, now) for key_id in key_ids}
        missing = frozenset(key_id for key_id, entry in found.items() if entry is None)
        if missing:
            raise KeysNeeded(Needed(key_ids=missing))
        keys = [entry[0] for entry in found.values() if entry]
        living = [key for key in keys if key is not None]
        return living if len(living) == len(keys) else None

    async def fetch(self, needed: Needed) -> None:
        """Put these keys at hand; owners without a key get one.

        Raises: StoreUnavailable, KeyNotUnwrapped, KeyUnknown.
        """
        now = self._clock()  # before they are read: one that is retired meanwhile is not used for longer
        owners = {digest_of_owner(owner): owner for owner in needed.owners}
        for batch in _batches(list(owners)):
            found = await self._store.current(batch)
            new = [self._wrapping.new_key(digest) for digest in batch if digest not in found]
            for at in range(0, len(new), ADDED_TOGETHER):
                for stored in await asyncio.gather(*map(self._store.add, new[at : at + ADDED_TOGETHER])):
                    found[stored.owner] = stored
            for digest in batch:
                self._current.put(owners[digest], self._wrapping.unwrapped(found[digest]), now)
        for ids in _batches(sorted(needed.key_ids)):
            known = await self._store.find(ids)
            for key_id in ids:
                if key_id not in known:
                    raise KeyUnknown(key_id=key_id.hex())
                wrapped = known[key_id]
                self._by_id.put(key_id, None if wrapped is None else self._wrapping.unwrapped(wrapped), now)


async def rewrap_keys(store: UserKeys, wrapping: WrappingKeys) -> int:
    """Wrap all keys with the first key of the setting; return how many were wrapped with another.

    Raises: StoreUnavailable, KeyNotUnwrapped.
    """
    done = 0
    while page := await store.wrapped_by_others(wrapping.first, BATCH):
        for key in page:
            await store.rewrap(key, wrapping.wrapped(wrapping.unwrapped(key), key.owner))
        done += len(page)
    return done


class TimedCache(Generic[K, V]):
    """The `most` entries that were put last, each for so many seconds."""

    def __init__(self, seconds: float, most: int) -> None:
        self._seconds = seconds
        self._most = most
        self._entries: OrderedDict[K, tuple[V, float]] = OrderedDict()

    def get(self, key: K, now: float) -> tuple[V] | None:
        """The value, in a tuple; None if there is none any more."""
        found = self._entries.get(key)
        return (found[0],) if found and now < found[1] else None

    def put(self, key: K, value: V, now: float) -> None:
        self._entries[key] = value, now + self._seconds
        self._entries.move_to_end(key)
        if len(self._entries) > self._most:
            self._entries.popitem(last=False)


def _batches(values: list[K]) -> Iterable[list[K]]:
    return (values[at : at + BATCH] for at in range(0, len(values), BATCH))
