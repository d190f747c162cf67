import asyncio

import pytest

from afterword.streams.errors import StoreUnavailable
from afterword.streams.runtime.health import Readiness
from afterword.streams.sealing.codec import KeyNotUnwrapped
from afterword.streams.sealing.opening import STAGE, SealingWithKeys
from afterword.streams.settings import Crypto
from afterword.streams.stores.user_keys import KeyOwner, Needed, WrappedKey
from tests.doubles.stores import MemoryUserKeys

KEY = "MTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTE="
OTHER = "MjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjI="


class Away(MemoryUserKeys):
    """A store that is away for the first calls."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.left = calls

    async def current(self, owners: list[str]) -> dict[str, WrappedKey]:  # type: ignore[override]  # fewer types do
        if self.left:
            self.left -= 1
            raise StoreUnavailable(store="mongodb", problem="away")
        return await super().current(owners)


def sealing(store: MemoryUserKeys, key: str = KEY, readiness: Readiness | None = None) -> SealingWithKeys:
    return SealingWithKeys(Crypto.model_validate({"seal": "on", "key": key}), store, readiness)


async def test_keys_are_waited_for_while_their_store_is_away() -> None:
    store, readiness = Away(2), Readiness()
    fetching = asyncio.create_task(
        sealing(store, readiness=readiness).fetch(Needed(frozenset({KeyOwner(None, "ann")})))
    )
    while store.left:  # noqa: ASYNC110 – the store counts calls, and tells nobody
        await asyncio.sleep(0)
    assert readiness.reasons == {STAGE: "store_unavailable"}
    async with asyncio.timeout(5):
        await fetching
    assert readiness.reasons == {}


async def test_a_worker_does_not_start_with_a_key_that_unwraps_nothing() -> None:
    store = MemoryUserKeys()
    await sealing(store).verify()
    await sealing(store).fetch(Needed(frozenset({KeyOwner(None, "ann")})))
    await sealing(store).verify()
    await sealing(store, f"{OTHER},{KEY}").verify()
    with pytest.raises(KeyNotUnwrapped):
        await sealing(store, OTHER).verify()
