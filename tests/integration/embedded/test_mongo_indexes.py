"""The embedded MongoDB answers by its indexes what it would answer by reading everything."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bson import Decimal128, Int64, ObjectId
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient
from pymongo.errors import DuplicateKeyError, PyMongoError

from afterword.embedded.java import Java
from afterword.embedded.mongo import MongoServer
from tests.processes import until

pytestmark = pytest.mark.nightly

INDEXES = (
    (("owner", 1), ("at", 1), ("source.offset", 1)),
    (("owner", 1), ("tags", 1)),
    (("owner", 1), ("changes.id", 1)),
    (("number", 1),),
)
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def java() -> Java:
    prepared = Java()
    prepared.prepare()
    return prepared


@pytest.fixture(scope="module")
def client(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MongoClient[dict[str, Any]]]:
    server = MongoServer(java, tmp_path_factory.mktemp("mongo"))
    server.start()
    with MongoClient[dict[str, Any]](server.uri, tz_aware=True) as connected:
        for keys in INDEXES:
            connected.test.indexed.create_index(list(keys))
        yield connected
    server.stop()


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


owners = st.sampled_from(["a", "a\x00", "ab", "ä", "😀", ""])
times = st.integers(-3, 3).map(lambda hours: START + timedelta(hours=hours))
numbers = st.sampled_from([-2, -1.5, 0, 1, 2**40, 0.25])
tags = st.sampled_from(["x", "y", "z"])
values: dict[str, st.SearchStrategy[Any]] = {
    "owner": optional(owners),
    "at": optional(times),
    "number": optional(numbers),
    "tags": st.lists(tags, max_size=3) | tags,
    "source": st.builds(lambda offset: {"offset": offset}, numbers),
    "changes": st.lists(st.builds(lambda one: {"id": one}, tags), max_size=2),
}
documents = st.lists(st.fixed_dictionaries({}, optional=values), max_size=25)


def bounds(found: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    low, high = st.sampled_from(["$gt", "$gte"]), st.sampled_from(["$lt", "$lte"])
    return st.builds(lambda name, value: {name: value}, low | high, found) | st.builds(
        lambda first, one, second, other: {first: one, second: other}, low, found, high, found
    )


def matching(found: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    equal = optional(found)
    return equal | st.builds(lambda one: {"$eq": one}, equal) | st.builds(lambda some: {"$in": some}, st.lists(equal))


conditions: dict[str, st.SearchStrategy[Any]] = {
    "owner": matching(owners) | bounds(owners) | st.just({"$ne": "a"}),
    "at": matching(times) | bounds(times),
    "number": matching(numbers) | bounds(numbers) | st.just({"$not": {"$gt": 0}}),
    "tags": matching(tags),
    "source.offset": matching(numbers) | bounds(numbers),
    "changes.id": matching(tags),
    "_id": st.builds(lambda some: {"$in": some}, st.lists(st.integers(0, 25).map(str)))
    | bounds(st.integers(0, 25).map(str)),
}
plain = st.fixed_dictionaries({}, optional=conditions)
queries = plain | st.builds(lambda one, some: {**one, "$or": some}, plain, st.lists(plain, min_size=1, max_size=3))
ORDERS = (
    None,
    [("at", 1), ("source.offset", 1), ("_id", 1)],
    [("at", -1), ("source.offset", -1), ("_id", -1)],
    [("at", 1), ("source.offset", -1), ("_id", 1)],
    [("_id", -1)],
    [("number", -1), ("_id", -1)],
    [("owner", 1), ("at", 1), ("source.offset", 1), ("_id", 1)],
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    documents=documents,
    query=queries,
    order=st.sampled_from(ORDERS),
    limit=st.sampled_from([0, 1, 3]),
    batch=st.sampled_from([1, 2, 101]),
    skip=st.sampled_from([0, 0, 2]),
)
def test_an_indexed_collection_answers_as_one_without_indexes(
    client: MongoClient[dict[str, Any]],
    documents: list[dict[str, Any]],
    query: dict[str, Any],
    order: list[tuple[str, int]] | None,
    limit: int,
    batch: int,
    skip: int,
) -> None:
    indexed, scanned = client.test.indexed, client.test.scanned
    stored = [{**document, "_id": str(number)} for number, document in enumerate(documents)]
    for collection in (indexed, scanned):
        collection.delete_many({})
        if stored:
            collection.insert_many(stored)
    # a pipeline that does not begin with the query reads all documents
    wanted = list(scanned.aggregate([{"$sort": {"_id": 1}}, {"$match": query}, {"$sort": dict(order or [("_id", 1)])}]))
    found = list(indexed.find(query, sort=order, limit=limit, skip=skip).batch_size(batch))
    if order is None and (limit or skip):  # any of them
        assert len(found) == len(wanted[skip:][: limit or None])
        assert all(one in wanted for one in found)
    elif order is None:
        assert sorted(found, key=lambda one: one["_id"]) == sorted(wanted, key=lambda one: one["_id"])
    else:
        assert found == wanted[skip:][: limit or None]
    counted = list(indexed.aggregate([{"$match": query}, {"$group": {"_id": None, "n": {"$sum": 1}}}]))
    assert (counted[0]["n"] if counted else 0) == len(wanted)
    assert sorted(map(str, indexed.distinct("_id", query))) == sorted(one["_id"] for one in wanted)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents=documents, query=queries, changed=st.fixed_dictionaries({}, optional=values), deleted=queries)
def test_indexes_follow_updates_and_deletions(
    client: MongoClient[dict[str, Any]],
    documents: list[dict[str, Any]],
    query: dict[str, Any],
    changed: dict[str, Any],
    deleted: dict[str, Any],
) -> None:
    indexed, scanned = client.test.indexed, client.test.scanned
    for collection in (indexed, scanned):
        collection.delete_many({})
        for number, document in enumerate(documents):
            collection.replace_one({"_id": str(number), "gone": None}, document, upsert=True)
        if changed:
            collection.update_many(query, {"$set": changed})
        collection.delete_many(deleted)
    assert list(indexed.find({}, sort=[("_id", 1)])) == list(scanned.find({}, sort=[("_id", 1)]))
    for owner in ("a", "ab", None):
        by_index = {one["_id"] for one in indexed.find({"owner": owner})}
        assert by_index == {one["_id"] for one in scanned.find({"owner": owner})}


NUMBERS = (-(2.0**60), -2, -1.5, -0.25, 0, 0.25, 1, 2**40)
TEXTS = ("", "a", "a\x00", "a\x00b", "a\x01", "ab", "b", "ä")


def test_an_index_orders_values_as_mongodb_does(client: MongoClient[dict[str, Any]]) -> None:
    collection = client.test.ordered
    collection.create_index([("number", 1)])
    collection.create_index([("text", 1), ("at", 1)])
    for number, text in zip(NUMBERS, TEXTS, strict=True):
        collection.insert_one({"number": number, "text": text, "at": START})
    assert [one["number"] for one in collection.find({}, sort=[("number", 1)])] == list(NUMBERS)
    assert [one["number"] for one in collection.find({}, sort=[("number", -1)])] == list(NUMBERS)[::-1]
    for at, (number, text) in enumerate(zip(NUMBERS, TEXTS, strict=True)):
        above = collection.find({"number": {"$gte": number}}, sort=[("number", 1)])
        assert [one["number"] for one in above] == list(NUMBERS[at:])
        below = collection.find({"text": {"$lt": text}}, sort=[("text", -1)])
        assert [one["text"] for one in below] == list(TEXTS[:at])[::-1]
        assert [one["number"] for one in collection.find({"text": text}, sort=[("at", 1)])] == [number]


def test_ids_are_answered_in_their_order(client: MongoClient[dict[str, Any]]) -> None:
    collection, ids = client.test.ids, [f"m{number}" for number in range(30)]
    collection.insert_many([{"_id": one} for one in ids])
    assert [one["_id"] for one in collection.find({"_id": {"$in": ids[::-1]}})] == sorted(ids)


def test_documents_are_deleted_when_their_time_has_come(client: MongoClient[dict[str, Any]]) -> None:
    now, collection = datetime.now(UTC), client.test.expiring
    collection.create_index("at", expireAfterSeconds=3600)
    old = [{"_id": n, "at": now - timedelta(seconds=3601 + n)} for n in range(2500)]
    kept = [
        {"_id": "new", "at": now},
        {"_id": "none"},
        {"_id": "text", "at": "2020-01-01"},
        {"_id": "null", "at": None},
    ]
    collection.insert_many([*old, *kept])
    until(lambda: collection.count_documents({}) == len(kept))
    assert {found["_id"] for found in collection.find()} == {each["_id"] for each in kept}


def test_an_order_that_no_index_has_is_made(client: MongoClient[dict[str, Any]]) -> None:
    collection = client.test.mixed
    collection.create_index([("text", 1), ("at", 1)])
    keys = [(text, START + timedelta(hours)) for text in ("a", "b") for hours in (2, 1, 0)]
    collection.insert_many([{"text": text, "at": at} for text, at in sorted(keys)])
    assert [(one["text"], one["at"]) for one in collection.find({}, sort=[("text", 1), ("at", -1)])] == keys


def test_a_long_answer_is_read_while_its_documents_change(client: MongoClient[dict[str, Any]]) -> None:
    collection = client.test.indexed
    collection.delete_many({})
    collection.insert_many([{"_id": f"{n:04}", "owner": "a", "at": START + timedelta(n)} for n in range(2000)])
    seen = []
    for one in collection.find({"owner": "a"}, sort=[("at", 1)]).batch_size(7):
        seen.append(one["_id"])
        collection.delete_one({"_id": one["_id"]})
    assert seen == [f"{n:04}" for n in range(2000)]


def replace_all(uri: str, ids: list[str]) -> None:
    with MongoClient[dict[str, Any]](uri) as client:
        for one in ids:
            client.test.indexed.replace_one({"_id": one}, {"gone": True})


def test_a_document_that_is_changed_while_it_is_sent_is_sent_as_it_was_found(
    client: MongoClient[dict[str, Any]],
) -> None:
    collection, ids = client.test.indexed, [f"{n:04}" for n in range(900)]
    collection.delete_many({})
    collection.insert_many([{"_id": one, "owner": "a", "text": "x" * 200} for one in ids])
    writer = threading.Thread(target=replace_all, args=(client_uri(client), ids))
    writer.start()
    try:
        while writer.is_alive():
            for query in ({"owner": "a"}, {"gone": None}):
                assert {frozenset(one) for one in collection.find(query)} <= {frozenset(("_id", "owner", "text"))}
    finally:
        writer.join()


def client_uri(client: MongoClient[dict[str, Any]]) -> str:
    host, port = client.address or ("", 0)
    return f"mongodb://{host}:{port}"


def test_an_id_is_taken_until_its_document_is_deleted(java: Java, tmp_path: Path) -> None:
    server = MongoServer(java, tmp_path)
    ids = ["a", ObjectId(b"twelve bytes"), b"\x00\xff", datetime(2026, 11, 24, tzinfo=UTC)]
    for start in (0, 1):
        server.start()
        with MongoClient[dict[str, Any]](server.uri) as client:
            collection = client.test.ids
            for one in ids:
                if not start:
                    collection.insert_one({"_id": one, "n": 0})
                with pytest.raises(DuplicateKeyError):
                    collection.insert_one({"_id": one, "n": 1})
                assert collection.update_one({"_id": one}, {"$setOnInsert": {"n": 1}}, upsert=True).matched_count == 1
                assert (collection.find_one({"_id": one}) or {})["n"] == 0
        server.stop()
    server.start()
    with MongoClient[dict[str, Any]](server.uri) as client:
        for one in ids:
            assert client.test.ids.delete_one({"_id": one}).deleted_count == 1
            client.test.ids.insert_one({"_id": one})
        assert client.test.ids.count_documents({}) == len(ids)
        assert list(client.test.ids.index_information()) == ["_id_"]
    server.stop()


kinds: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-(2**31), 2**31 - 1)
    | st.integers(-(2**63), 2**63 - 1).map(Int64)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.datetimes(timezones=st.just(UTC)).map(lambda at: at.replace(microsecond=0))
    | st.binary(max_size=9)
    | st.just(ObjectId(b"twelve bytes"))
    | st.just(Decimal128("1.5"))
)
names = st.text("ab\u00e4\U0001f600", min_size=1, max_size=3)
nested = st.recursive(kinds, lambda some: st.lists(some, max_size=3) | st.dictionaries(names, some, max_size=3))


def typed(value: Any) -> Any:
    """The value with its type, which numbers that are equal may not have in common."""
    if isinstance(value, dict):
        return [(name, typed(one)) for name, one in value.items()]
    return [typed(one) for one in value] if isinstance(value, list) else (type(value), value)


def test_documents_are_read_from_the_file_as_they_were_written(java: Java, tmp_path: Path) -> None:
    written: dict[int, dict[str, Any]] = {}

    @settings(database=None)
    @given(st.dictionaries(names, nested, max_size=4))
    def note(document: dict[str, Any]) -> None:
        number = len(written)
        written[number] = {"_id": number, **document}

    note()
    server = MongoServer(java, tmp_path)
    server.start()
    with MongoClient[dict[str, Any]](server.uri, tz_aware=True) as client:
        client.test.kinds.insert_many(written.values())
    server.stop()
    server.start()
    with MongoClient[dict[str, Any]](server.uri, tz_aware=True) as client:
        found = {one["_id"]: typed(one) for one in client.test.kinds.find({})}
    server.stop()
    assert found == {number: typed(one) for number, one in written.items()}


@pytest.mark.parametrize("length", [0, 1, 2, 4, 5, 100])
def test_beginnings_of_texts_are_counted_in_characters(client: MongoClient[dict[str, Any]], length: int) -> None:
    """The library's own count is of UTF-16, and cuts a character in two."""
    collection = client.test.beginnings
    collection.delete_many({})
    texts = ("", "a", "\u00e4b", "\U0001f600\U0001f600", "\U0001f600b\U0001f600d", "abcdef", None)
    stored = [{"_id": f"m{n}", "text": text, "at": text and {"n": n}, "more": 1} for n, text in enumerate(texts)]
    collection.insert_many([*stored, {"_id": "m7", "more": 1}])
    match = {"$match": {"_id": {"$in": [f"m{n}" for n in range(9)]}}}
    fields = {"text": {"$substrCP": ["$text", 0, length]}, "at": 1}
    expected = [{"_id": one["_id"], "text": (one["text"] or "")[:length], "at": one["at"]} for one in stored]
    found = list(collection.aggregate([match, {"$project": fields}], batchSize=1000))
    assert found == [*expected, {"_id": "m7", "text": ""}]


def write_until_killed(uri: str, collection: str, acknowledged: dict[str, int]) -> None:
    with MongoClient[dict[str, Any]](uri, retryWrites=False) as client:
        written = client.test[collection]
        try:
            for keys in INDEXES[:2]:
                written.create_index(list(keys))
            for number in range(100_000):
                document = {"owner": f"o{number % 7}", "at": START, "tags": [f"t{number}", "all"]}
                written.replace_one({"_id": f"{number % 500}"}, document, upsert=True)
                acknowledged[collection] = number
        except PyMongoError:
            return


def assert_found_by_each_index(collection: Any, last: int) -> None:
    every = {one["_id"]: one for one in collection.find({})}
    assert every[f"{last % 500}"]["tags"][0] == f"t{last}"
    by_owner = [one for number in range(7) for one in collection.find({"owner": f"o{number}"})]
    assert sorted(by_owner, key=lambda one: one["_id"]) == sorted(every.values(), key=lambda one: one["_id"])
    for one in every.values():
        assert list(collection.find({"owner": one["owner"], "tags": one["tags"][0]})) == [one]


def test_a_kill_leaves_documents_and_indexes_as_one(java: Java, tmp_path: Path) -> None:
    """What is acknowledged is there, and found by each index that it should be found by."""
    server = MongoServer(java, tmp_path)
    for _ in range(3):
        acknowledged: dict[str, int] = {}
        server.start()
        writers = [
            threading.Thread(target=write_until_killed, args=(server.uri, f"of{writer}", acknowledged))
            for writer in range(3)
        ]
        for writer in writers:
            writer.start()
        while len(acknowledged) < 3 or min(acknowledged.values()) < 300:
            writers[0].join(0.05)
        server.kill()
        for writer in writers:
            writer.join()
        server.start()
        with MongoClient[dict[str, Any]](server.uri) as client:
            for name, last in acknowledged.items():
                assert_found_by_each_index(client.test[name], last)
        server.stop()
