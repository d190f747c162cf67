"""The driver of MongoDB: errors of bulk writes, values that no server stores, and how long a connection is tried."""

import time

import bson
import pytest
from bson.errors import BSONError
from pydantic import SecretStr

from afterword.embedded.claims import HOST, free_ports
from afterword.streams.errors import StoreUnavailable
from afterword.streams.settings import Mongo
from afterword.streams.stores import mongo
from afterword.streams.stores.mongo import duplicates, mongo_errors


def details(*codes: int, concern: tuple[int, ...] = ()) -> dict[str, object]:
    return {
        "writeErrors": [{"index": index, "code": code} for index, code in enumerate(codes)],
        "writeConcernErrors": [{"code": code} for code in concern],
        "nInserted": 7,
    }


def test_duplicates_are_named_by_their_position() -> None:
    assert duplicates(details(11000, 11000)) == [0, 1]


@pytest.mark.parametrize("found", [details(11000, 13), details(11000, concern=(64,)), details(concern=(91,))])
def test_other_write_errors_are_raised(found: dict[str, object]) -> None:
    with pytest.raises(StoreUnavailable, match="write error"):
        duplicates(found)


@pytest.mark.parametrize("value", [2**70, object(), "\ud800"])
def test_value_no_server_can_store_is_no_outage(value: object) -> None:
    with pytest.raises((OverflowError, BSONError, UnicodeEncodeError)), mongo_errors():
        bson.encode({"value": value})


async def test_absent_mongodb_is_tried_as_long_as_configured() -> None:
    [port] = free_ports(1)
    settings = Mongo(uri=SecretStr(f"mongodb://{HOST}:{port}")).answering_within(0.5)
    database = mongo.connect(settings)
    began = time.monotonic()
    try:
        with pytest.raises(StoreUnavailable):
            await mongo.ping(database)
    finally:
        await mongo.close(database)
    assert time.monotonic() - began < mongo.TIMEOUT_SECONDS / 2
