"""Opening the stores: what is loaded, connected and served, and when."""

import subprocess
import sys
from pathlib import Path

import pytest

from afterword.streams.errors import ConfigurationError, StoreUnavailable
from afterword.streams.settings import Mongo, Settings
from afterword.streams.stores.opening import open_stores

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
