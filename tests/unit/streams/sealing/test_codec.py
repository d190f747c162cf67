import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.streams.errors import SealBroken
from afterword.streams.sealing.codec import (
    Cipher,
    KeyNotUnwrapped,
    UserKey,
    WrappingKeys,
    as_text,
    digest_of_owner,
    from_text,
    key_ids,
    place_of_text,
)
from afterword.streams.stores.user_keys import KeyOwner

KEYS = st.builds(UserKey, st.binary(min_size=16, max_size=16), st.binary(min_size=32, max_size=32))
SEVERAL = st.lists(KEYS, min_size=1, max_size=4, unique_by=lambda key: key.key_id)
ANN, BOB = UserKey(b"a" * 16, b"1" * 32), UserKey(b"b" * 16, b"2" * 32)
PLACE = place_of_text("message", "acme", "c", "m")


@given(SEVERAL, st.binary(max_size=300), st.binary(max_size=50))
def test_what_is_sealed_is_opened_by_all_of_its_keys_in_any_order(
    keys: list[UserKey], text: bytes, place: bytes
) -> None:
    sealed = Cipher(keys).seal(text, place)
    assert Cipher(reversed(keys)).open(from_text(as_text(sealed)), place) == text
    assert set(key_ids(sealed)) == {key.key_id for key in keys}
    assert Cipher(keys).seal(text, place) == sealed


@given(SEVERAL, st.binary(max_size=40), st.data())
def test_any_changed_byte_is_found(keys: list[UserKey], text: bytes, data: st.DataObject) -> None:
    cipher = Cipher(keys)
    sealed = bytearray(cipher.seal(text, PLACE))
    at = data.draw(st.integers(0, len(sealed) - 1))
    sealed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(SealBroken):
        cipher.open(bytes(sealed), PLACE)
    with pytest.raises(SealBroken):
        cipher.open(bytes(sealed[:at]), PLACE)


@given(st.tuples(st.none() | st.text(), st.text(), st.text()), st.tuples(st.none() | st.text(), st.text(), st.text()))
def test_a_text_opens_in_its_own_place_only(
    place: tuple[str | None, str, str], other: tuple[str | None, str, str]
) -> None:
    try:
        here, there = place_of_text("message", *place), place_of_text("message", *other)
    except ValueError:  # not UTF-8: no id is like that
        return
    sealed = ANN.cipher.seal(b"hello", here)
    if place == other:
        assert ANN.cipher.open(sealed, there) == b"hello"
        return
    with pytest.raises(SealBroken):
        ANN.cipher.open(sealed, there)


def test_a_text_does_not_open_without_one_of_its_keys() -> None:
    sealed = Cipher([ANN, BOB]).seal(b"hello", PLACE)
    for keys in ([ANN], [BOB], [ANN, UserKey(BOB.key_id, b"3" * 32)]):
        with pytest.raises(SealBroken):
            Cipher(keys).open(sealed, PLACE)
    with pytest.raises(ValueError, match="0 keys"):
        Cipher([])


@given(st.binary(max_size=100))
def test_arbitrary_bytes_are_no_sealed_text(found: bytes) -> None:
    with pytest.raises(SealBroken):
        ANN.cipher.open(found, PLACE)


@given(st.text(max_size=60))
def test_an_arbitrary_text_is_opened_or_refused(text: str) -> None:
    try:
        ids = key_ids(from_text(text))
    except SealBroken:
        return
    assert ids


def test_different_texts_and_places_have_different_nonces() -> None:
    sealed = [ANN.cipher.seal(text, place) for text in (b"one", b"two") for place in (PLACE, b"")]
    assert len({one[19:31] for one in sealed}) == len(sealed)


def test_a_key_is_unwrapped_by_any_of_the_settings_keys_and_for_its_owner_only() -> None:
    first, second = WrappingKeys([b"1" * 32]), WrappingKeys([b"2" * 32, b"1" * 32])
    stored = first.new_key("ann")
    assert second.unwrapped(stored) == first.unwrapped(stored)
    again = second.wrapped(second.unwrapped(stored), "ann")
    assert again.wrapped_by == second.first != stored.wrapped_by
    with pytest.raises(KeyNotUnwrapped):
        first.unwrapped(again)
    with pytest.raises(KeyNotUnwrapped):
        first.unwrapped(type(stored)(stored.key_id, "bob", stored.wrapped, stored.wrapped_by))


def test_nothing_secret_is_in_a_keys_text() -> None:
    assert "1111" not in repr(ANN)
    assert "wrapped=" not in repr(WrappingKeys([b"1" * 32]).new_key("ann")).replace("wrapped_by=", "")


def test_owners_of_different_tenants_are_different() -> None:
    owners = [KeyOwner(None, "a"), KeyOwner("", "a"), KeyOwner("a", ""), KeyOwner("a", "a")]
    assert len(set(map(digest_of_owner, owners))) == len(owners)
