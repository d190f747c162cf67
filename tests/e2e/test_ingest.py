"""Strangers' topics in six shapes, those of docs/how-to/connect-a-topic.md: init, source try, worker ingest, audit."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest
import pytest_asyncio
from aiokafka.admin import NewTopic

from afterword.operating.audit import Report
from afterword.streams.ingest.sources import Source, parse_sources
from afterword.streams.kafka.clients import admin_client, running_producer
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.roles import ALWAYS_RUN
from afterword.streams.settings import Settings
from tests.e2e.deployment import WAIT_SECONDS, Deployment, afterword, deployed
from tests.protobuf_schemas import CHAT, chat_message
from tests.schema_registry import Registry, framed
from tests.waiting import until

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "connect-a-topic.md"
BLOCKS = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.S)
MESSAGES, CONVERSATIONS = 24, 4
FIRST_MS = 1_793_610_900_000
AVRO = {
    "type": "record",
    "name": "ChatMessage",
    "namespace": "com.example.chat",
    "fields": [
        {"name": "messageId", "type": "string"},
        {"name": "sessionId", "type": "string"},
        {"name": "userId", "type": "long"},
        {"name": "direction", "type": {"type": "enum", "name": "Direction", "symbols": ["INBOUND", "OUTBOUND"]}},
        {"name": "body", "type": "string"},
        {"name": "sentAt", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "channel", "type": ["null", "string"], "default": None},
    ],
}
Record = tuple[bytes, bytes | None, list[tuple[str, bytes]]]
"""Value, key and headers."""


class Shape(NamedTuple):
    """One of the page's blocks, with records for it. `edits` change or delete earlier messages."""

    block: int
    topic: str
    records: Callable[[], Sequence[Record]]
    edits: int = 0
    messages: int = 0
    """The number of messages, if that is not the number of records."""


def text(n: int) -> str:
    return f"Question number {n}: where is the order that I placed on Monday?"


def flat() -> list[Record]:
    names = ("customer", "bot")
    values = [
        {"message_id": f"m-{n}", "conversation": f"c-{n % CONVERSATIONS}", "user": f"dana-{n % CONVERSATIONS}"}
        | {"sender": names[n % 2], "text": text(n), "created_at": f"2026-11-02T09:15:{n:02d}Z"}
        for n in range(MESSAGES)
    ]
    return [(orjson.dumps(value), None, []) for value in values]


def nested() -> list[Record]:
    tenant = [("tenant", b"acme")]

    def value(n: int, kind: str, said: str) -> bytes:
        parts = [
            {"type": "text", "text": said},
            {"type": "image_url", "image_url": {"url": "https://example.com/i.png"}},
        ]
        of = {"event": {"uuid": f"{n:08x}"}, "thread": {"id": f"t-{n % CONVERSATIONS}"}, "kind": kind}
        who = {"customer": {"id": 100 + n % CONVERSATIONS}, "author": {"role": ("human", "assistant")[n % 2]}}
        return orjson.dumps({**of, **who, "body": {"parts": parts}, "ts": FIRST_MS + 1000 * n})

    typing = orjson.dumps({"kind": "typing", "event": {"uuid": "ff"}, "thread": {"id": "t-1"}, "ts": FIRST_MS})
    made = [record for n in range(MESSAGES) for record in (value(n, "message", text(n)), typing)]
    changes = [value(0, "message_edited", "Corrected: where is it?"), value(1, "message_deleted", "")]
    return [(one, None, tenant) for one in [*made, *changes]]


def avro(number: int = 1) -> list[Record]:
    values = [
        {"messageId": f"m-{n}", "sessionId": f"a-{n % CONVERSATIONS}", "userId": 500 + n % CONVERSATIONS}
        | {"direction": ("INBOUND", "OUTBOUND")[n % 2], "body": text(n), "sentAt": FIRST_MS + n}
        for n in range(MESSAGES)
    ]
    plain = json.loads(json.dumps(AVRO).replace(', "logicalType": "timestamp-millis"', ""))
    return [(framed(number, plain, value), None, []) for value in values]


def protobuf() -> list[Record]:
    return [
        (
            b"\0\0\0\0\x02"
            + chat_message(
                message_id=f"m-{n}",
                session_id=f"p-{n % CONVERSATIONS}",
                user_id=700 + n % CONVERSATIONS,
                direction=("INBOUND", "OUTBOUND")[n % 2],
                body=text(n),
                sent_ms=FIRST_MS + n,
            ),
            None,
            [],
        )
        for n in range(MESSAGES)
    ]


def keyed() -> list[Record]:
    values = [
        ({"id": n, "session_id": f"s-{n % CONVERSATIONS}", "direction": ("in", "out")[n % 2], "body": text(n)}, n)
        for n in range(MESSAGES)
    ]
    return [
        (orjson.dumps({**value, "time": FIRST_MS // 1000 + n}), b"customer-%d" % (n % CONVERSATIONS), [])
        for value, n in values
    ]


def listed() -> list[Record]:
    """Return records of two messages each, and one of another kind."""
    types = ("user", "business")

    def event(n: int) -> dict[str, Any]:
        author = {"userId": f"walt-{n // 2 % CONVERSATIONS}", "type": types[n % 2]}
        message = {"id": f"m-{n}", "author": author, "content": {"type": "text", "text": text(n)}}
        message["received"] = f"2026-11-02T09:15:{n:02d}Z"
        inside = {"conversation": {"id": f"w-{n // 2 % CONVERSATIONS}", "type": "personal"}, "message": message}
        return {"id": f"e-{n}", "type": "conversation:message", "createdAt": message["received"], "payload": inside}

    values = [{"app": {"id": "a-1"}, "events": [event(n), event(n + 1)]} for n in range(0, MESSAGES, 2)]
    return [(orjson.dumps(value), None, []) for value in values]


SHAPES = {
    "flat": Shape(0, "support.chat.v2", flat),
    "nested": Shape(1, "sales-eu-chat", nested, edits=2),
    "avro": Shape(2, "chat.avro", avro),
    "protobuf": Shape(3, "chat.protobuf", protobuf),
    "keyed": Shape(4, "crm.messages", keyed),
    "listed": Shape(5, "webhooks", listed, messages=MESSAGES),
}
BEFORE_EVERY_CHANGE = ("flat",)


@pytest_asyncio.fixture
async def registry() -> AsyncIterator[Registry]:
    async with Registry(user="ingest:secret") as started:
        assert (started.add(AVRO), started.add(CHAT, "PROTOBUF")) == (1, 2)
        yield started


@pytest.fixture
def settings(make_settings: Callable[..., Settings], registry: Registry, tmp_path: Path) -> Settings:
    return make_settings(
        kafka={"partitions": 2, "session_timeout_seconds": 6},
        episodes={"idle_seconds": 2.0},
        drain_seconds=10,
        ingest={"file": tmp_path / "afterword.toml"},
        registry={"url": registry.url, "username": "ingest", "password": "secret"},
    )


async def fill(settings: Settings, topics: dict[str, str]) -> None:
    """Make the topics with one partition each, and send the records of their shapes. `topics` is by shape."""
    async with admin_client(settings.kafka) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1) for topic in topics.values()])
    async with running_producer(settings.kafka) as producer:
        for shape, topic in topics.items():
            for value, key, headers in SHAPES[shape].records():
                await producer.send_and_wait(topic, value, key=key, headers=headers)


def fields_of(source: Source) -> dict[str, Any]:
    return {name: str(getattr(value, "path", value)) for name, value in source.map if value is not None}


@pytest.mark.parametrize(
    "shape", [pytest.param(one, marks=() if one in BEFORE_EVERY_CHANGE else pytest.mark.nightly) for one in SHAPES]
)
async def test_init_finds_the_documented_mapping(shape: str, settings: Settings, unique: Callable[[str], str]) -> None:
    topic = unique("strangers")
    await fill(settings, {shape: topic})
    code, said, _ = await afterword(settings, "init", "--topic", topic)
    assert code == 0, said
    assert "conversations" in said
    [found] = parse_sources(settings.ingest.file.read_text(), "")
    [documented] = parse_sources(BLOCKS[SHAPES[shape].block], "")
    assert (found.topics, found.format, fields_of(found)) == ((topic,), documented.format, fields_of(documented))
    code, said, _ = await afterword(settings, "source", "try", "--last", "20", "--json")
    assert code == 0, said
    tried = [json.loads(line) for line in said.splitlines()]
    assert len(tried) == min(20, len(SHAPES[shape].records()))
    assert any(one["becomes"][0]["content"].startswith("Question number") for one in tried if one["becomes"])
    settings.ingest.file.write_text(
        settings.ingest.file.read_text().replace(fields_of(found)["content"], "value.absent")
    )
    code, said, _ = await afterword(settings, "source", "try")
    assert code == 1
    assert "map.content = value.absent: finds nothing" in " ".join(said.split())


async def test_all_record_shapes_become_episodes_with_a_clean_audit(
    settings: Settings, unique: Callable[[str], str], tmp_path: Path
) -> None:
    topics = {shape: unique(given.topic) for shape, given in SHAPES.items()}
    text_of_file = "\n".join(BLOCKS)
    for shape, given in SHAPES.items():
        written = "sales-.*-chat" if shape == "nested" else given.topic
        text_of_file = text_of_file.replace(f'"{written}"', f'"{topics[shape].replace("-eu-", "-.*-")}"')
    settings.ingest.file.write_text(text_of_file)
    await fill(settings, topics)
    async with deployed(settings, tmp_path) as deployment:
        for role in ("ingest", *ALWAYS_RUN):
            deployment.start(role)
        expected = (
            sum(given.messages or len(given.records()) for given in SHAPES.values()) - MESSAGES
        )  # those that are skipped
        await until_produced(deployment, expected)
        report = await until_summarized(deployment)
        changes = sum(given.edits for given in SHAPES.values())
        assert report.messages["total"] == expected - changes
        assert report.messages["changes"] == changes
        closed = await deployment.episodes()
        assert {one.conversation_id[0] for one in closed} == {"c", "t", "a", "p", "s", "w"}
        assert {one.tenant_id for one in closed if one.conversation_id.startswith("t-")} == {"acme"}
        assert report.episodes["total"] == report.summaries["announced"]
        assert report.messages["pending"] == 0
        assert await deployment.stop("ingest") == 0


async def until_summarized(deployment: Deployment) -> Report:
    """Audit until idle conversations are closed too: the workers have read their topics before that."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            report = await deployment.audit()
            assert report.clean, report.lines()
            if not report.messages["pending"] and report.summaries["announced"] == report.episodes["total"]:
                return report


async def until_produced(deployment: Deployment, number: int) -> None:
    """Wait until this many records are on `messages`."""
    kafka = deployment.settings.kafka
    async with open_log(kafka) as log:

        async def are_there() -> bool:
            return len([None async for _ in log.records(kafka.messages_topic)]) >= number

        await until(are_there)
