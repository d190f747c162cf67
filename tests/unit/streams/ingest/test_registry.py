"""Schemas from a registry."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from pydantic import ValidationError

from afterword.schemas import InvalidRecord
from afterword.streams.errors import ConfigurationError
from afterword.streams.ingest import registry as module
from afterword.streams.ingest.registry import RegistryUnavailable, SchemaRegistry, open_registry
from afterword.streams.settings import RegistrySettings
from tests.schema_registry import Registry, framed

TEXT: dict[str, Any] = {"type": "record", "name": "Text", "fields": [{"name": "text", "type": "string"}]}


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Registry]:
    async with Registry() as started:
        yield started


def settings_of(server: Registry, **given: Any) -> RegistrySettings:
    return RegistrySettings(url=server.url, **given)


async def test_a_schema_is_asked_for_once(server: Registry) -> None:
    number = server.add(TEXT)
    async with open_registry(settings_of(server)) as registry:
        for _ in range(3):
            schema = await registry.avro(number)
            assert schema.read(framed(number, TEXT, {"text": "hello"})[5:]) == {"text": "hello"}
    assert server.asked == [f"/schemas/ids/{number}"]


async def test_what_a_schema_refers_to_is_asked_for_too(server: Registry) -> None:
    both = {"type": "record", "name": "Both", "fields": [{"name": name, "type": "Text"} for name in ("a", "b")]}
    most = {
        "type": "record",
        "name": "Most",
        "fields": [{"name": "both", "type": "Both"}, {"name": "c", "type": "Text"}],
    }
    server.add(TEXT, subject="com.example.Text/1")
    server.add(both, subject="both", references=["com.example.Text/1"])
    number = server.add(most, references=["both", "com.example.Text/1"])
    async with open_registry(settings_of(server)) as registry:
        schema = await registry.avro(number)
    assert schema.read(b"\x02x\x02y\x02z") == {"both": {"a": {"text": "x"}, "b": {"text": "y"}}, "c": {"text": "z"}}


async def test_schemas_that_refer_to_each_other_are_refused(server: Registry) -> None:
    number = server.add({"type": "record", "name": "A", "fields": [{"name": "b", "type": "B"}]}, "AVRO", "a", ["b"])
    server.add({"type": "record", "name": "B", "fields": [{"name": "a", "type": "A"}]}, "AVRO", "b", ["a"])
    async with open_registry(settings_of(server)) as registry:
        with pytest.raises(InvalidRecord, match=f"schema {number} cannot be used"):
            await registry.avro(number)
    assert len(server.asked) == 3


async def test_a_schema_that_is_unknown_or_of_another_kind_is_a_defect_of_the_record(server: Registry) -> None:
    number = server.add({"type": "object"}, kind="JSON")
    now = 0.0
    async with open_registry(settings_of(server)) as opened:
        registry = SchemaRegistry(opened._client, lambda: now)
        for _ in range(2):
            with pytest.raises(InvalidRecord, match="unknown_schema: schema 99 cannot be used: the registry does not"):
                await registry.avro(99)
            with pytest.raises(InvalidRecord, match="it is of the type JSON, not AVRO"):
                await registry.avro(number)
        assert len(server.asked) == 2
        now = module.UNKNOWN_SECONDS + 1
        with pytest.raises(InvalidRecord):
            await registry.avro(99)
        assert len(server.asked) == 3


async def test_a_registry_that_is_away_is_an_outage_and_comes_back(server: Registry) -> None:
    number = server.add(TEXT)
    server.is_away = True
    async with open_registry(settings_of(server)) as registry:
        with pytest.raises(RegistryUnavailable, match="it answers with 503"):
            await registry.avro(number)
        server.is_away = False
        await registry.avro(number)
    gone = settings_of(server)
    await server.__aexit__()
    async with open_registry(gone) as registry:
        with pytest.raises(RegistryUnavailable, match="ConnectError"):
            await registry.avro(number)


async def test_basic_authentication_is_sent_and_a_refusal_names_the_setting() -> None:
    async with Registry(user="ingest:secret") as server:
        number = server.add(TEXT)
        async with open_registry(settings_of(server, username="ingest", password="secret")) as registry:
            await registry.check()
            await registry.avro(number)
        async with open_registry(settings_of(server, username="ingest", password="wrong")) as registry:
            with pytest.raises(ConfigurationError, match="AFTERWORD_REGISTRY__USERNAME: the registry answers with 401"):
                await registry.check()


def test_a_user_without_a_password_is_refused() -> None:
    with pytest.raises(ValidationError, match="belong together"):
        RegistrySettings(username="ingest")
