"""Schemas from a registry."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from pydantic import ValidationError
from structlog.testing import capture_logs

from afterword.schemas import InvalidRecord
from afterword.streams.errors import ConfigurationError
from afterword.streams.http import MOST_RESPONSE_BYTES
from afterword.streams.ingest import registry as module
from afterword.streams.ingest.agent import Ingester
from afterword.streams.ingest.registry import RegistryUnavailable, SchemaRegistry, SchemaUnavailable, open_registry
from afterword.streams.settings import RegistrySettings, Settings
from afterword.streams.telemetry.metrics import Metrics
from faust_eos.health import Readiness
from tests.endpoints import serving as serving_route
from tests.protobuf_schemas import CHAT, descriptor
from tests.schema_registry import Registry, framed
from tests.unit.streams.ingest.records import Foreign, source

TEXT: dict[str, Any] = {"type": "record", "name": "Text", "fields": [{"name": "text", "type": "string"}]}


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Registry]:
    async with Registry() as started:
        yield started


def settings_of(server: Registry, **given: Any) -> RegistrySettings:
    return RegistrySettings(url=server.url, **given)


async def test_schema_is_requested_once(server: Registry) -> None:
    number = server.add(TEXT)
    async with open_registry(settings_of(server)) as registry:
        for _ in range(3):
            read = await registry.reader("avro", number)
            assert read(framed(number, TEXT, {"text": "hello"})[5:]) == {"text": "hello"}
    assert server.asked == [f"/schemas/ids/{number}"]


@pytest.mark.parametrize(
    ("answer", "headers"),
    [(b'"' + b"x" * MOST_RESPONSE_BYTES + b'"', {}), (b"{}", {"Content-Encoding": "gzip"})],
    ids=["too long", "compressed"],
)
async def test_oversized_or_compressed_answer_is_an_outage(answer: bytes, headers: dict[str, str]) -> None:
    async def answers(_: web.Request) -> web.Response:
        return web.Response(body=answer, content_type="application/json", headers=headers)

    async with (
        serving_route(answers, "GET", "/schemas/ids/1") as url,
        open_registry(RegistrySettings(url=url)) as registry,
    ):
        with pytest.raises(RegistryUnavailable, match="ProviderUnavailable"):
            await registry.reader("avro", 1)


async def test_referenced_schemas_are_requested(server: Registry) -> None:
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
        read = await registry.reader("avro", number)
    assert read(b"\x02x\x02y\x02z") == {"both": {"a": {"text": "x"}, "b": {"text": "y"}}, "c": {"text": "z"}}


def of_another(name: str, other: str) -> tuple[Any, FileDescriptorProto]:
    """Return a record, and a file of a message, that each have a field of another's type."""
    record = {"type": "record", "name": name, "fields": [{"name": "other", "type": other}]}
    field = f'field {{ name: "other" number: 1 type: TYPE_MESSAGE type_name: ".{other}" label: LABEL_OPTIONAL }}'
    return record, descriptor(f'syntax: "proto3" dependency: "{other}" message_type {{ name: "{name}" {field} }}')


@pytest.mark.parametrize("form", ["avro", "protobuf"])
async def test_circular_schemas_are_refused(server: Registry, form: Any) -> None:
    pairs = [(name, other, of_another(name, other)[form == "protobuf"]) for name, other in ("AB", "BA")]
    numbers = [server.add(schema, form.upper(), name, [other]) for name, other, schema in pairs]
    async with open_registry(settings_of(server)) as registry:
        with pytest.raises(InvalidRecord, match=f"schema {numbers[0]} cannot be used"):
            await registry.reader(form, numbers[0])
    assert len(server.asked) == 3


async def test_unknown_schema_is_a_defect_of_the_record(server: Registry) -> None:
    number = server.add({"type": "object"}, kind="JSON")
    now = 0.0
    async with open_registry(settings_of(server)) as opened:
        registry = SchemaRegistry(opened._client, lambda: now)
        for _ in range(2):
            with pytest.raises(InvalidRecord, match="unknown_schema: schema 99 cannot be used: the registry does not"):
                await registry.reader("avro", 99)
            with pytest.raises(InvalidRecord, match="it is of the type JSON, not AVRO"):
                await registry.reader("avro", number)
        assert len(server.asked) == 2
        now = module.UNKNOWN_SECONDS + 1
        with pytest.raises(InvalidRecord):
            await registry.reader("avro", 99)
        assert len(server.asked) == 3


async def test_protobuf_descriptor_is_requested_with_its_imports(server: Registry) -> None:
    common = descriptor("""
        package: "acme" syntax: "proto3"
        message_type { name: "Text" field { name: "text" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL } }
    """)
    between = FileDescriptorProto(dependency=["common.proto"], public_dependency=[0], syntax="proto3")
    whole = descriptor("""
        syntax: "proto3" dependency: "between.proto"
        message_type {
          name: "M" field { name: "text" number: 1 type: TYPE_MESSAGE type_name: ".acme.Text" label: LABEL_OPTIONAL }
        }
    """)
    server.add(common, "PROTOBUF", "common.proto")
    server.add(between, "PROTOBUF", "between.proto", ["common.proto"])
    number = server.add(whole, "PROTOBUF", references=["between.proto", "common.proto"])
    async with open_registry(settings_of(server)) as registry:
        read = await registry.reader("protobuf", number)
        assert read(b"\0\x0a\x04\x0a\x02hi") == {"text": {"text": "hi"}}
        assert await registry.reader("protobuf", number) is read
        assert len(server.asked) == 3
        with pytest.raises(InvalidRecord, match="it is of the type PROTOBUF, not AVRO"):
            await registry.reader("avro", number)
        server.add(TEXT)
        with pytest.raises(InvalidRecord, match="it is of the type AVRO, not PROTOBUF"):
            await registry.reader("protobuf", number + 1)


@pytest.mark.parametrize("status", [0, 400, 422, 500, 501])
async def test_plain_answer_is_used_where_serialized_ones_fail(server: Registry, status: int) -> None:
    number = server.add(CHAT, "PROTOBUF")
    server.refuses, server.serializes = status, False
    async with open_registry(settings_of(server)) as registry:
        with pytest.raises(InvalidRecord, match=r"\.proto text only: register its descriptor"):
            await registry.reader("protobuf", number)
    server.is_plain = True
    async with open_registry(settings_of(server)) as registry:
        assert (await registry.reader("protobuf", number))(b"\0")["body"] == ""


async def test_damaged_descriptor_is_never_used(server: Registry) -> None:
    number = server.add(CHAT, "PROTOBUF")
    server.damages = True
    async with open_registry(settings_of(server)) as registry:
        with pytest.raises(InvalidRecord, match=r"\.proto text only: register its descriptor"):
            await registry.reader("protobuf", number)


async def test_failing_schema_is_requested_seldom_and_given_up(server: Registry) -> None:
    good, bad = server.add(TEXT), server.add(TEXT)
    server.fails.add(bad)
    now = 0.0
    outcomes: list[type[Exception]] = []
    async with open_registry(settings_of(server)) as opened:
        registry = SchemaRegistry(opened._client, lambda: now)
        for at in range(1000):
            now = at / 10
            await registry.reader("avro", good)
            with pytest.raises((RegistryUnavailable, InvalidRecord), match="it answers with 500") as failed:
                await registry.reader("avro", bad)
            outcomes.append(failed.type)
        waits = outcomes.count(SchemaUnavailable)
        assert outcomes == [SchemaUnavailable] * waits + [InvalidRecord] * (1000 - waits)
        assert 600 < waits < 700
        assert server.asked.count(f"/schemas/ids/{bad}") < 12
        server.fails.clear()
        now = 200.0
        await registry.reader("avro", bad)


async def test_absent_registry_is_retried_after_growing_pauses(server: Registry) -> None:
    number, now = server.add(TEXT), 0.0
    server.is_away = True
    async with open_registry(settings_of(server)) as opened:
        registry = SchemaRegistry(opened._client, lambda: now)
        for at in range(3000):
            now = at / 10
            with pytest.raises(RegistryUnavailable, match="it answers with 503"):
                await registry.reader("avro", number)
        assert server.asked.count(f"/schemas/ids/{number}") < 20
        server.is_away = False
        now += module.LONGEST_PAUSE_SECONDS
        await registry.reader("avro", number)


class TakenBatch:
    """A batch of which nothing is written."""

    most_bytes = 1_000_000

    def send(self, output: Any) -> None:
        raise AssertionError(output)

    def take_first(self, count: int) -> None:
        assert count == 0


async def test_waiting_record_is_logged_once(server: Registry) -> None:
    server.fails.add(number := server.add(TEXT))
    settings, readiness = Settings(registry=settings_of(server)), Readiness()
    worker: Any = SimpleNamespace(settings=settings, readiness=readiness, metrics=Metrics("ingest", "0"))
    records: Any = [Foreign(framed(number, TEXT, {"text": "hello"}), offset=n) for n in range(3)]
    batch: Any = TakenBatch()
    async with open_registry(settings.registry) as registry:
        gate: Any = None
        ingester = Ingester(gate, worker, source(above='format = "avro"'), 1, registry, gate)
        with capture_logs() as logs:
            for attempt in (records, records, records[1:]):
                await ingester.handle(attempt, batch)
    assert [one["error_type"] for one in logs] == ["schema_unavailable"] * 2
    assert readiness.reasons == {"registry": "schema_unavailable"}


GUID = "137ff296-ed42-440a-a19e-b4cd436591c2"


CHAT_MESSAGE: dict[str, Any] = {
    "type": "record",
    "name": "ChatMessage",
    "fields": [
        *({"name": name, "type": "string"} for name in ("messageId", "sessionId", "userId")),
        {"name": "direction", "type": {"type": "enum", "name": "Direction", "symbols": ["INBOUND", "OUTBOUND"]}},
        {"name": "body", "type": ["null", "string"]},
        {"name": "sentAt", "type": "long"},
    ],
}
DATA = "066d2d3106742d3106752d3100022e48656c6c6f2c206d79206b6574746c65206c65616b732ef685d2849767"
"""A message as the serializers of Confluent 2.16.1, Apicurio 3.1.7, Glue 1.1.25 and Azure 1.0.0 wrote it."""
GLUE = "123456789abc4def8123456789abcdef"


@pytest.mark.parametrize(
    ("headers", "framing", "refused"),
    [
        ({}, "0000000001", ""),
        ({"__value_schema_id": "0000000001"}, "", ""),
        ({"__value_schema_id": "01137ff296ed42440aa19eb4cd436591c2"}, "", ""),
        ({"apicurio.value.contentId": "0000000000000001", "apicurio.value.encoding": b"BINARY".hex()}, "", ""),
        ({}, "000000000000000001", r"seems to have 8 bytes \(Apicurio 2\)"),
        ({"content-type": b"avro/binary+a0b1c2d3e4f5460788990a1b2c3d4e5f".hex()}, "", r"content-type \(Azure\)"),
        *(({f"apicurio.value.{name}": "00000001"}, "", "header in another form") for name in ("contentId", "globalId")),
        *(({"__value_schema_id": header}, "", "header in another form") for header in ("", "01137f", f"02{GLUE}")),
        ({}, f"0300{GLUE}", r"\(AWS Glue\)"),
        ({}, f"0305{GLUE}", r"\(AWS Glue\)"),
    ],
)
async def test_each_serializers_value_is_read_or_refused(
    server: Registry, headers: dict[str, str], framing: str, refused: str
) -> None:
    server.add(CHAT_MESSAGE, guid=GUID)
    value, given = bytes.fromhex(framing + DATA), [(name, bytes.fromhex(text)) for name, text in headers.items()]
    async with open_registry(settings_of(server)) as registry:
        if not refused:
            found = await registry.decode("avro", value, given)
            assert (found["messageId"], found["body"]) == ("m-1", "Hello, my kettle leaks.")
            key = [(name.replace("value", "key"), data) for name, data in given]
            assert await registry.decode("avro", value, key, "key") == found
            refused = "set format to avro"
        for form in ("avro", "json") if refused != "set format to avro" else ("json",):
            with pytest.raises(InvalidRecord, match=refused):
                await registry.decode(form, value, given)  # type: ignore[arg-type]


async def test_indexes_follow_the_guid_in_the_header(server: Registry) -> None:
    server.add(CHAT, "PROTOBUF", guid=GUID)
    headers = [("__value_schema_id", b"\x01" + bytes.fromhex(GUID.replace("-", "")) + b"\0")]
    async with open_registry(settings_of(server)) as registry:
        assert (await registry.decode("protobuf", b"\x2a\x05hello", headers))["body"] == "hello"


async def test_global_id_is_looked_up_at_apicurios_own_api(server: Registry) -> None:
    number = server.add(TEXT)
    server.global_ids[7] = number
    data = framed(number, TEXT, {"text": "hello"})[5:]
    headers = [("apicurio.value.globalId", b"\0\0\0\0\0\0\0\x07")]
    async with open_registry(RegistrySettings(url=f"{server.url}/apis/ccompat/v7")) as registry:
        assert await registry.decode("avro", data, headers) == {"text": "hello"}
        with pytest.raises(InvalidRecord, match="the registry does not have it"):
            await registry.decode("avro", data, [("apicurio.value.globalId", b"\0" * 7 + b"\x09")])
    async with open_registry(settings_of(server)) as registry:
        with pytest.raises(InvalidRecord, match="which only Apicurio has"):
            await registry.decode("avro", data, headers)


@pytest.mark.parametrize(
    ("values", "form"),
    [
        ([b'{"a": 1}'], "json"),
        ([b'\0\0\0\0\x01{"a": 1}', b"\0\0\0\0\x02[]"], "json-schema"),
        ([b"\0\0\0\0\x01\x02a", b'\0\0\0\0\x01{"a"'], "avro"),
        ([], "json"),
        ([b"\0\0\0\0\x01\x02a", b'{"a": 1}'], "json"),
    ],
)
async def test_first_bytes_tell_the_format(values: list[bytes], form: str) -> None:
    async with open_registry(RegistrySettings()) as registry:
        assert await registry.format_of([(value, ()) for value in values]) == form


async def test_registry_names_the_format_of_a_value(server: Registry) -> None:
    numbers = [server.add(TEXT), server.add(CHAT, "PROTOBUF"), server.add({}, "JSON"), 99]
    async with open_registry(settings_of(server)) as registry:
        values = [(b"\0" + number.to_bytes(4) + b"\0", ()) for number in numbers]
        found = [await registry.format_of([value]) for value in values]
        server.fails.add(numbers[0])
        found.append(await registry.format_of([values[1], values[0], values[3]]))
    assert found == ["avro", "protobuf", "json-schema", "avro", "protobuf"]


async def test_unreachable_registry_is_an_outage(server: Registry) -> None:
    gone = settings_of(server)
    await server.__aexit__()
    async with open_registry(gone) as registry:
        with pytest.raises(RegistryUnavailable, match="ConnectError"):
            await registry.reader("avro", 1)


async def test_basic_authentication_is_sent_and_its_refusal_explained() -> None:
    async with Registry(user="ingest:secret") as server:
        number = server.add(TEXT)
        async with open_registry(settings_of(server, username="ingest", password="secret")) as registry:
            await registry.check()
            await registry.reader("avro", number)
        async with open_registry(settings_of(server, username="ingest", password="wrong")) as registry:
            with pytest.raises(ConfigurationError, match="AFTERWORD_REGISTRY__USERNAME: the registry answers with 401"):
                await registry.check()


def test_user_without_a_password_is_refused() -> None:
    with pytest.raises(ValidationError, match="username needs password"):
        RegistrySettings(username="ingest")
