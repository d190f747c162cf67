"""Stores are opened on first use, and each of their methods is called with hostile arguments somewhere."""

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import bson
import pytest
from bson.errors import BSONError
from pydantic import SecretStr

from afterword.embedded.claims import HOST, free_ports
from afterword.streams.errors import ConfigurationError, StoreUnavailable
from afterword.streams.settings import Mongo, Settings
from afterword.streams.stores import mongo
from afterword.streams.stores.episodes import EpisodeQueries
from afterword.streams.stores.index import EpisodeIndex
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.stores.mongo import MongoEpisodes, MongoMessages, MongoRecords, duplicates, mongo_errors
from afterword.streams.stores.opening import open_stores
from tests.contract.stores.test_foreign_arguments import EPISODES, INDEX, MESSAGES
from tests.integration.stores.test_mongo import CALLS

NOBODY = {"mongo": {"uri": "mongodb://127.0.0.1:1"}, "qdrant": {"url": "http://127.0.0.1:1"}}
DOCUMENTS_ONLY = """
import asyncio, sys
from afterword.streams.settings import Settings
from afterword.streams.stores.opening import open_stores

async def main():
    async with open_stores(Settings(mongo={"uri": "mongodb://127.0.0.1:1"})) as stores:
        stores.episodes, stores.messages, stores.budgets
    print(*sys.modules)

asyncio.run(main())
"""


async def test_stores_connect_on_first_use() -> None:
    async with open_stores(Settings(**NOBODY)) as stores:
        assert stores.index is stores.index


def test_wrong_setting_is_reported_when_stores_open() -> None:
    with pytest.raises(ConfigurationError, match="AFTERWORD_MONGO__URI"):
        open_stores(Settings(mongo={"uri": "http://127.0.0.1"}))


def test_process_without_search_does_not_load_the_index_client() -> None:
    done = subprocess.run([sys.executable, "-c", DOCUMENTS_ONLY], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "motor" in loaded
    assert "qdrant_client" not in loaded


async def test_each_backend_has_a_check_with_its_result(tmp_path: Path) -> None:
    away = Settings(mongo=Mongo.model_validate(NOBODY["mongo"]).answering_within(0.2), qdrant=NOBODY["qdrant"])
    async with open_stores(away) as stores:
        for name, check in stores.checks.items():
            with pytest.raises(StoreUnavailable, match=name):
                await check()
    path = tmp_path / "afterword.sqlite"
    async with open_stores(Settings(sqlite={"path": path})) as stores:
        assert {name: await check() for name, check in stores.checks.items()} == {"sqlite": str(path)}


def test_sqlite_process_loads_no_server_client(tmp_path: Path) -> None:
    code = DOCUMENTS_ONLY.replace('mongo={"uri": "mongodb://127.0.0.1:1"}', f'sqlite={{"path": "{tmp_path}/a.sqlite"}}')
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"motor", "pymongo", "qdrant_client"} & set(done.stdout.split())


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


CHECKED_BEFORE = {
    *("put", "put_row", "put_conversation", "put_many", "assign", "copy", "copy_assignments", "change"),
    *("of_present_users", "hand_over", "search"),
}
"""Methods that take records, events and queries, whose models have checked every field."""
WITHOUT_ARGUMENTS = {"count", "total", "all_messages", "pages", "prepare", "push_out_removed", "close"}


@pytest.mark.parametrize(
    ("protocol", "calls"), [(EpisodeQueries, EPISODES), (MessageArchive, MESSAGES), (EpisodeIndex, INDEX)]
)
def test_every_method_is_called_with_operators(protocol: type, calls: Mapping[str, object]) -> None:
    methods = {name for name in dir(protocol) if name[0] != "_"} - CHECKED_BEFORE - WITHOUT_ARGUMENTS
    missing = methods - {name.partition(" ")[0] for name in calls}
    assert missing == set(), "tests/contract/stores/test_foreign_arguments.py"


def test_every_method_of_mongodbs_own_is_called() -> None:
    stores = (MongoEpisodes, MongoMessages, MongoRecords)
    methods = {f"{store.__name__}.{name}" for store in stores for name in vars(store) if name[0] != "_"}
    missing = methods - {name.partition(" ")[0] for name in CALLS}
    assert missing == set(), "CALLS in tests/integration/stores/test_mongo.py"
