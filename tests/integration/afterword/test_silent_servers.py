"""Servers that accept a connection and never answer: for commands they are away after a short time."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from pydantic import SecretStr

from afterword.embedded.claims import HOST, free_ports
from afterword.streams.errors import BrokerUnavailable, StoreUnavailable
from afterword.streams.kafka.clients import admin_client
from afterword.streams.settings import Kafka, Mongo, Qdrant, Settings
from afterword.streams.stores import mongo
from afterword.streams.stores.qdrant import connect_qdrant
from afterword.writing.producer import Producer
from tests.endpoints import silent

PATIENCE = 0.3
FAR_LESS_SECONDS = 120.0
"""Timeouts of requests are 300 seconds here, and a busy machine takes a minute to start a process."""


@pytest_asyncio.fixture
async def silent_port() -> AsyncIterator[int]:
    async with silent() as port:
        yield port


@contextmanager
def soon() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < FAR_LESS_SECONDS


async def test_silent_broker_is_unavailable_after_the_connect_timeout(silent_port: int) -> None:
    kafka = Kafka(bootstrap_servers=f"{HOST}:{silent_port}", request_timeout_seconds=300).answering_within(PATIENCE)
    with soon(), pytest.raises(BrokerUnavailable) as raised:
        async with admin_client(kafka):
            pass
    assert str(raised.value) == f"Kafka at {HOST}:{silent_port} cannot be reached: it did not answer within 0.3 s"


async def test_silent_and_refusing_brokers_are_told_apart(silent_port: int) -> None:
    servers = f"{HOST}:{silent_port},{HOST}:{free_ports(1)[0]},nobody.invalid:9092"
    kafka = Kafka(bootstrap_servers=servers, request_timeout_seconds=300).answering_within(PATIENCE * 10)
    with soon(), pytest.raises(BrokerUnavailable) as raised:
        async with admin_client(kafka):
            pass
    assert "it refused the connection" in str(raised.value)
    assert "it did not answer within 3 s" in str(raised.value)
    assert "the name of its host cannot be resolved" in str(raised.value)


async def test_producer_waits_for_a_silent_broker_equally_long(silent_port: int) -> None:
    kafka = Kafka(bootstrap_servers=f"{HOST}:{silent_port}", request_timeout_seconds=300).answering_within(PATIENCE)
    with soon(), pytest.raises(BrokerUnavailable, match="did not answer"):
        async with Producer.from_settings(Settings(kafka=kafka)):
            pass


async def test_silent_database_is_unavailable_after_its_selection_timeout(silent_port: int) -> None:
    uri = SecretStr(f"mongodb://{HOST}:{silent_port}")
    database = mongo.connect(Mongo(uri=uri).answering_within(PATIENCE))
    try:
        with soon(), pytest.raises(StoreUnavailable, match="no server answered in time"):
            await mongo.ping(database)
    finally:
        await mongo.close(database)


async def test_silent_index_is_unavailable_after_the_connect_timeout(silent_port: int) -> None:
    url = f"http://{HOST}:{silent_port}"
    connection = connect_qdrant(Qdrant(url=url).answering_within(PATIENCE))
    try:
        with soon(), pytest.raises(StoreUnavailable) as raised:
            await connection.run(lambda client: client.get_collections())
    finally:
        await connection.close()
    assert str(raised.value) == f"qdrant at {url} cannot be reached: it did not answer in time"


async def test_search_names_the_silent_server_and_its_setting(silent_port: int, tmp_path: Path) -> None:
    (tmp_path / "afterword.toml").write_text(
        f'[mongo]\nuri = "mongodb://{HOST}:{silent_port}"\n[qdrant]\nurl = "http://{HOST}:{silent_port}"\n'
    )
    command = [sys.executable, "-m", "afterword", "recall", "pin", "--user", "u"]
    running = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, env={"AFTERWORD_CONFIG": "afterword.toml"}, stderr=subprocess.PIPE
    )
    with soon():
        _, err = await running.communicate()
    assert running.returncode == 1
    said, server = err.decode(), f"{HOST}:{silent_port}"
    assert said in (
        f"afterword: qdrant at http://{server} cannot be reached: it did not answer in time; "
        "its address is from afterword.toml\n",
        "afterword: mongodb cannot be reached: no server answered in time (ServerSelectionTimeoutError); "
        f"its address mongodb://{server} is from afterword.toml\n",
    )


async def test_check_names_each_silent_server_its_address_and_remedy(silent_port: int, tmp_path: Path) -> None:
    (tmp_path / "afterword.toml").write_text(
        f'[kafka]\nbootstrap_servers = "{HOST}:{silent_port}"\n[mongo]\nuri = "mongodb://me:secret@{HOST}:{silent_port}"\n'
        f'[qdrant]\nurl = "http://{HOST}:{silent_port}"\n'
    )
    command = [sys.executable, "-m", "afterword", "check"]
    environment = {"AFTERWORD_CONFIG": "afterword.toml", "PATH": "/usr/bin"}
    running = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    with soon():
        out, _ = await running.communicate()
    lines = {line.split()[1]: line for line in out.decode().splitlines()}
    for name in ("kafka", "topics", "commits", "mongodb", "qdrant"):
        assert lines[name].startswith("FAIL")
        assert f"{HOST}:{silent_port}" in lines[name]
        assert lines[name].endswith("is from afterword.toml")
    assert b"secret" not in out
