from dataclasses import replace

import pytest

from afterword.streams.stores.user_keys import UserKeys, WrappedKey

ANN = WrappedKey(b"a" * 16, "ann", b"wrapped", "first")
BOB = WrappedKey(b"b" * 16, "bob", b"wrapped too", "first")


async def test_the_first_key_of_an_owner_is_the_current_one(user_keys: UserKeys) -> None:
    assert await user_keys.current(["ann"]) == {}
    assert await user_keys.add(ANN) == ANN
    assert await user_keys.add(replace(ANN, key_id=b"c" * 16)) == ANN
    assert await user_keys.add(BOB) == BOB
    assert await user_keys.current(["ann", "bob", "carl"]) == {"ann": ANN, "bob": BOB}
    assert await user_keys.find([ANN.key_id, b"c" * 16]) == {ANN.key_id: ANN}


async def test_a_retired_key_still_opens_and_the_next_text_has_another(user_keys: UserKeys) -> None:
    await user_keys.add(ANN)
    assert await user_keys.retire("ann") == [ANN.key_id]
    assert await user_keys.current(["ann"]) == {}
    second = replace(ANN, key_id=b"c" * 16)
    assert await user_keys.add(second) == second
    assert await user_keys.find([ANN.key_id, second.key_id]) == {ANN.key_id: ANN, second.key_id: second}
    assert sorted(await user_keys.retire("ann")) == [ANN.key_id, second.key_id]
    assert await user_keys.retire("bob") == []


async def test_of_a_destroyed_key_nothing_is_left_but_that_it_was(user_keys: UserKeys) -> None:
    await user_keys.add(ANN)
    await user_keys.add(BOB)
    await user_keys.destroy(await user_keys.retire("ann"))
    await user_keys.destroy([BOB.key_id, b"x" * 16])
    assert await user_keys.find([ANN.key_id, BOB.key_id, b"x" * 16]) == {ANN.key_id: None, BOB.key_id: BOB}
    assert await user_keys.retire("ann") == []
    assert await user_keys.wrapped_by() == {"first": 1}
    await user_keys.destroy([ANN.key_id])


async def test_keys_are_wrapped_anew_unless_they_were_destroyed(user_keys: UserKeys) -> None:
    await user_keys.add(ANN)
    await user_keys.add(BOB)
    [retired] = await user_keys.retire("bob")
    rewrapped = replace(ANN, wrapped=b"anew", wrapped_by="second")
    await user_keys.rewrap(ANN, rewrapped)
    await user_keys.rewrap(ANN, replace(ANN, wrapped=b"late", wrapped_by="third"))
    assert await user_keys.current(["ann"]) == {"ann": rewrapped}
    assert await user_keys.wrapped_by() == {"first": 1, "second": 1}
    assert await user_keys.wrapped_by_others("second", 10) == [BOB]
    await user_keys.destroy([retired])
    await user_keys.rewrap(BOB, replace(BOB, wrapped=b"anew", wrapped_by="second"))
    assert await user_keys.find([retired]) == {retired: None}


@pytest.mark.parametrize("owner", [{"$ne": None}, None, 1])
async def test_an_owner_is_a_text(user_keys: UserKeys, owner: object) -> None:
    with pytest.raises(TypeError):
        await user_keys.retire(owner)  # type: ignore[arg-type]  # what the test is about
    with pytest.raises(TypeError):
        await user_keys.current([owner])  # type: ignore[list-item]  # what the test is about
