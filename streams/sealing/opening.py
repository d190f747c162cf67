"""Sealing as a process uses it: with keys that it fetches from the configured store, for as long as that takes."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import stamina
import structlog

from afterword.streams.errors import StoreUnavailable
from afterword.streams.runtime.health import Readiness
from afterword.streams.sealing.codec import KeyNotUnwrapped, WrappingKeys
from afterword.streams.sealing.keyring import KeyRing
from afterword.streams.sealing.records import Sealing
from afterword.streams.settings import Crypto, Settings
from afterword.streams.stores.opening import open_stores
from afterword.streams.stores.user_keys import KeyOwner, KeysNeeded, Needed, UserKeys

FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 10.0
STAGE = "keys"

T = TypeVar("T")

log = structlog.get_logger()


class SealingWithKeys(Sealing):
    """Sealing whose missing keys can be waited for."""

    def __init__(self, crypto: Crypto, store: UserKeys, readiness: Readiness | None = None) -> None:
        """`crypto`: with a key. `readiness`: is told while the store is away."""
        self._store = store
        self._wrapping = WrappingKeys(crypto.wrapping_keys)
        self._ring = KeyRing(store, self._wrapping, crypto.cache_seconds)
        self._readiness = readiness or Readiness()
        super().__init__(self._ring, is_on=crypto.is_on)

    async def verify(self) -> None:
        """Check that every stored key can be unwrapped; a store that is away is checked by the first key.

        Raises: KeyNotUnwrapped.
        """
        with suppress(StoreUnavailable):
            if not self._wrapping.ids.issuperset(await self._store.wrapped_by()):
                raise KeyNotUnwrapped

    async def fetch(self, needed: Needed, ahead: frozenset[KeyOwner] = frozenset()) -> None:
        """Fetch these keys, however long the store is away. `ahead`: further owners whose keys are needed soon.

        Raises: KeyUnknown, KeyNotUnwrapped.
        """
        wanted = needed._replace(owners=needed.owners | ahead)
        async for attempt in stamina.retry_context(
            on=StoreUnavailable,
            attempts=None,
            timeout=None,
            wait_initial=FIRST_WAIT_SECONDS,
            wait_max=LONGEST_WAIT_SECONDS,
        ):
            with attempt:
                await self._fetch(wanted, attempt.num)
        self._readiness.ready(STAGE)

    async def _fetch(self, wanted: Needed, number: int) -> None:
        try:
            await self._ring.fetch(wanted)
        except StoreUnavailable as error:
            self._readiness.not_ready(STAGE, error.error_type)
            if number == 1:
                log.warning("keys_awaited", stage=STAGE, error_type=error.error_type, problem=str(error))
            raise

    async def waited(self, step: Callable[[], T]) -> T:
        """Return the step's result, with the keys that it needs. Raises: as `fetch`, and as the step."""
        while True:
            try:
                return step()
            except KeysNeeded as error:
                await self.fetch(error.needed)


@asynccontextmanager
async def open_sealing(settings: Settings, readiness: Readiness | None = None) -> AsyncIterator[SealingWithKeys]:
    """Open the store of keys. `settings`: with a key. Raises: KeyNotUnwrapped."""
    async with open_stores(settings) as stores:
        sealing = SealingWithKeys(settings.crypto, stores.user_keys, readiness)
        await sealing.verify()
        yield sealing
