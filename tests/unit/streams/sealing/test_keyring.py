import pytest

from afterword.streams.sealing.codec import KeyNotUnwrapped, WrappingKeys, digest_of_owner
from afterword.streams.sealing.keyring import KeyRing, KeyUnknown, rewrap_keys
from afterword.streams.stores.user_keys import KeyOwner, KeysNeeded, Needed
from tests.doubles.stores import MemoryUserKeys

ANN, BOB = KeyOwner("acme", "ann"), KeyOwner("acme", "bob")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def ring(store: MemoryUserKeys, clock: Clock | None = None, secret: bytes = b"1" * 32) -> KeyRing:
    return KeyRing(store, WrappingKeys([secret]), 15.0, clock or Clock())


async def test_a_key_that_is_not_at_hand_is_asked_for_and_then_there() -> None:
    keys = ring(MemoryUserKeys())
    with pytest.raises(KeysNeeded) as asked:
        keys.current([ANN, BOB])
    assert asked.value.needed == Needed(owners=frozenset({ANN, BOB}))
    await keys.fetch(asked.value.needed)
    ann, bob = keys.current([ANN, BOB])
    assert ann != bob
    with pytest.raises(KeysNeeded) as asked:
        keys.known([ann.key_id])
    await keys.fetch(asked.value.needed)
    assert keys.known([ann.key_id]) == [ann]


async def test_processes_seal_with_one_key() -> None:
    store = MemoryUserKeys()
    first, second = ring(store), ring(store)
    for one in (first, second):
        await one.fetch(Needed(frozenset({ANN})))
    assert first.current([ANN]) == second.current([ANN])


async def test_a_key_is_used_for_no_longer_than_is_set() -> None:
    store, clock = MemoryUserKeys(), Clock()
    keys = ring(store, clock)
    await keys.fetch(Needed(frozenset({ANN})))
    [before] = keys.current([ANN])
    await keys.fetch(Needed(key_ids=frozenset({before.key_id})))
    await store.destroy(await store.retire(digest_of_owner(ANN)))
    clock.now = 14.9
    assert keys.current([ANN]) == [before]
    clock.now = 15.0
    with pytest.raises(KeysNeeded):
        keys.current([ANN])
    with pytest.raises(KeysNeeded):
        keys.known([before.key_id])
    await keys.fetch(Needed(frozenset({ANN}), frozenset({before.key_id})))
    assert keys.current([ANN]) != [before]
    assert keys.known([before.key_id]) is None


async def test_a_key_that_nobody_knows_is_an_error_and_not_a_destroyed_one() -> None:
    with pytest.raises(KeyUnknown, match="00ff"):
        await ring(MemoryUserKeys()).fetch(Needed(key_ids=frozenset({b"\x00\xff"})))


async def test_another_wrapping_key_opens_nothing_and_rewrapping_replaces_it() -> None:
    store = MemoryUserKeys()
    await ring(store).fetch(Needed(frozenset({ANN, BOB})))
    with pytest.raises(KeyNotUnwrapped):
        await ring(store, secret=b"2" * 32).fetch(Needed(frozenset({ANN})))
    wrapping = WrappingKeys([b"2" * 32, b"1" * 32])
    assert await rewrap_keys(store, wrapping) == 2
    assert await rewrap_keys(store, wrapping) == 0
    assert await store.wrapped_by() == {wrapping.first: 2}
    await ring(store, secret=b"2" * 32).fetch(Needed(frozenset({ANN})))
