"""How long a connection to MongoDB is tried."""

import time

import pytest
from pydantic import SecretStr

from afterword.embedded.claims import HOST, free_ports
from afterword.streams.errors import StoreUnavailable
from afterword.streams.settings import Mongo
from afterword.streams.stores import mongo


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
