"""Keys are stored under their digests."""

from contextlib import suppress

from afterword.serving.requests import key_digest, new_key
from afterword.streams.stores.bookkeeping import ApiKeys


async def test_api_key_is_found_by_its_digest_only(keys: ApiKeys) -> None:
    key, record = new_key(("read", "write"), "t1", None)
    _, other = new_key(("admin",), None, "u1")
    await keys.put(record)
    await keys.put(other)
    assert await keys.find(key_digest(key)) == record
    assert await keys.find(key) is None
    assert {found.key_id for found in await keys.list()} == {record.key_id, other.key_id}


async def test_removed_api_key_is_gone(keys: ApiKeys) -> None:
    key, record = new_key(("read",), "t1", "u1")
    await keys.put(record)
    assert await keys.remove(record.key_id)
    assert not await keys.remove(record.key_id)
    assert await keys.find(key_digest(key)) is None


async def test_operator_neither_finds_nor_removes_an_api_key(keys: ApiKeys) -> None:
    _, record = new_key(("read",), "t1", "u1")
    await keys.put(record)
    for call in (keys.find, keys.remove):
        with suppress(TypeError):  # SQLite refuses it
            assert not await call({"$ne": None})  # type: ignore[arg-type]  # as in a request's JSON
    assert await keys.list() == [record]
