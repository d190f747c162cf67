"""Records that a producer makes, and the trace that begins with them and that the segmenter continues."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from aiokafka.errors import KafkaTimeoutError
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, Tracer

from afterword.consumers.subscriber import SummarySubscriber
from afterword.schemas import ConversationFlush, MessageCreated, decode_input
from afterword.schemas.messages import MessageChanges
from afterword.schemas.records import ProducerRecord, to_record
from afterword.streams.errors import BrokerUnavailable
from afterword.streams.segmenter.processor import Segmenter
from afterword.streams.settings import Settings
from afterword.writing.produce import parse
from afterword.writing.producer import EditedFields, Producer, WrittenAt
from tests.blocking import MOST_SHARE, blocking
from tests.unit.segmenter.chat import DEAD_LETTERS, EPISODES, NOON, Sent, characters, limits

NOW = datetime(2026, 3, 1, tzinfo=UTC)
TOPIC = "messages"
SECRET = "hunter2"


class Broker:
    """Acknowledges, or not."""

    def __init__(self, error: Exception | None = None) -> None:
        self.records: list[Sent] = []
        self._error = error

    async def send(self, _topic: str, value: bytes, key: bytes, headers: Any) -> asyncio.Future[Any]:
        delivery = asyncio.get_running_loop().create_future()
        self.records.append(Sent(key, value, headers=tuple(headers)))
        if self._error:
            delivery.set_exception(self._error)
        else:
            delivery.set_result(SimpleNamespace(partition=3, offset=len(self.records) - 1))
        return delivery

    async def flush(self) -> None:
        await asyncio.sleep(0)


def messages(count: int) -> list[ProducerRecord]:
    line = '{"id": "%d", "conversation_id": "c1", "user_id": "u1", "role": "user", "content": "%s"}'
    return [parse((line % (n, SECRET)).encode(), NOW) for n in range(count)]


class Connected(Producer):
    """A producer whose broker is a double."""

    def __init__(self, broker: Any, tracer: Tracer | None = None) -> None:
        super().__init__(bootstrap_servers="127.0.0.1:9", topic=TOPIC, tracer=tracer)
        self._client = broker


async def sent(broker: Any, tracer: Tracer | None, records: list[ProducerRecord]) -> None:
    producer = Connected(broker, tracer)
    for record in records:
        await producer.enqueue(record)
    await producer.drain()


ANSWER = MessageCreated(id="a1", conversation_id="c1", user_id="u1", role="assistant", content="")


def contents(broker: Broker) -> list[str]:
    return [orjson.loads(record.value or b"")["content"] for record in broker.records]


async def test_streamed_answer_is_sent_while_it_is_written() -> None:
    async def parts() -> AsyncIterator[str]:
        for part in ("The ", "key ", "is "):
            yield part
        await asyncio.sleep(0.05)
        yield "under "
        yield "the pot."

    broker = Broker()
    message = await Connected(broker).stream(ANSWER, parts(), every_seconds=0.05)
    assert contents(broker) == ["The key is under ", "The key is under the pot."]
    assert message.content == "The key is under the pot."
    assert {orjson.loads(record.value or b"")["id"] for record in broker.records} == {"a1"}


async def test_broken_stream_leaves_what_was_written_so_far() -> None:
    async def parts(*texts: str) -> AsyncIterator[str]:
        for text in texts:
            yield text
        raise ConnectionResetError

    broker = Broker()
    for texts in ((), ("The ", "key")):
        with pytest.raises(ConnectionResetError):
            await Connected(broker).stream(ANSWER, parts(*texts))
    assert contents(broker) == ["The key"]


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


async def test_segmenters_span_continues_one_message_and_links_others(
    spans: InMemorySpanExporter, tracer: Tracer
) -> None:
    broker = Broker()
    await sent(broker, tracer, [*messages(3), to_record(ConversationFlush(conversation_id="c1"), NOW)])
    segmenter = Segmenter(limits(), EPISODES, DEAD_LETTERS, {}, {}, characters, tracer)
    segmenter.process(broker.records, NOON)
    first, second, last, _ = (span.context for span in named(spans, f"send {TOPIC}"))
    [episode] = named(spans, f"send {EPISODES}")
    assert episode.parent
    assert (episode.parent.trace_id, episode.parent.span_id) == (last.trace_id, last.span_id)
    assert [link.context.span_id for link in episode.links] == [first.span_id, second.span_id]


async def test_each_message_has_a_span_with_place_without_content(spans: InMemorySpanExporter, tracer: Tracer) -> None:
    await sent(Broker(), tracer, messages(2))
    found = named(spans, f"send {TOPIC}")
    places = [(span.attributes or {})["messaging.kafka.offset"] for span in found]
    assert places == [0, 1]
    assert {span.kind for span in found} == {SpanKind.PRODUCER}
    assert len({span.context.trace_id for span in found}) == 2
    assert [(span.attributes or {})["messaging.message.id"] for span in found] == ["c1:0", "c1:1"]
    assert SECRET not in "".join(span.to_json() for span in found)


async def test_unacknowledged_message_is_an_error_of_its_span(spans: InMemorySpanExporter, tracer: Tracer) -> None:
    with pytest.raises(BrokerUnavailable):
        await sent(Broker(KafkaTimeoutError(SECRET)), tracer, messages(1))
    [span] = named(spans, f"send {TOPIC}")
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "KafkaTimeoutError"
    assert SECRET not in span.to_json()


async def test_untraced_message_has_no_trace_header() -> None:
    broker = Broker()
    await sent(broker, None, messages(1))
    assert "traceparent" not in dict(broker.records[0].headers)


async def test_span_is_a_child_of_the_callers(spans: InMemorySpanExporter, tracer: Tracer) -> None:
    with tracer.start_as_current_span("request") as request:
        await sent(Broker(), tracer, messages(1))
    [span] = named(spans, f"send {TOPIC}")
    assert span.parent
    assert span.parent.span_id == request.get_span_context().span_id


async def test_large_send_rests_and_awaits_acknowledgements_last() -> None:
    class Late(Broker):
        async def send(self, *given: Any, **options: Any) -> asyncio.Future[Any]:
            delivery, late = await super().send(*given, **options), asyncio.get_running_loop().create_future()
            waiting.append((late, delivery.result()))
            return late

    waiting: list[tuple[asyncio.Future[Any], Any]] = []
    sending = Connected(Late()).send_all(messages(1000))

    async def acknowledged() -> list[WrittenAt]:
        task = asyncio.create_task(sending)
        while len(waiting) < 1000:  # noqa: ASYNC110 – it is sent in steps
            await asyncio.sleep(0)
        for late, written in waiting:
            late.set_result(written)
        return await task

    positions, share = await blocking(acknowledged())
    assert [at.offset for at in positions] == [*range(1000)]
    assert share < MOST_SHARE


async def test_failure_is_raised_once() -> None:
    producer = Connected(Broker(KafkaTimeoutError()))
    await producer.enqueue(messages(1)[0])
    with pytest.raises(BrokerUnavailable):
        await producer.drain()
    await producer.drain()


async def test_nothing_is_sent_after_a_failure() -> None:
    broker = Broker(KafkaTimeoutError())
    producer = Connected(broker)
    await producer.enqueue(messages(1)[0])
    await asyncio.sleep(0)
    with pytest.raises(BrokerUnavailable):
        await producer.enqueue(messages(1)[0])
    assert len(broker.records) == 1


def test_message_and_flush_become_valid_records() -> None:
    flush = ConversationFlush(conversation_id="c", agent_id="a")
    assert decode_input(b"c", to_record(flush, NOW).value, to_record(flush, NOW).headers, 0) == flush
    message = MessageCreated(id="1", conversation_id="ü", user_id="u", role="user", content="Hello", sent_at=NOW)
    record = to_record(message, NOW, "crm")
    assert decode_input("ü".encode(), record.value, record.headers, 0) == message
    assert dict(record.headers) == {
        "ce_specversion": b"1.0",
        "ce_id": "ü:1".encode(),
        "ce_type": b"message.created",
        "ce_source": b"crm",
        "ce_time": b"2026-03-01T00:00:00.000Z",
        "content-type": b"application/json",
    }


async def test_settings_say_where_and_how_to_connect() -> None:
    away = Settings(kafka={"bootstrap_servers": "127.0.0.1:9", "messages_topic": "chat"})
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:9"):
        async with Producer.from_settings(away):
            pass


@pytest.mark.parametrize("make", [Producer, partial(SummarySubscriber, group_id="g")])
async def test_request_timeout_limits_the_clients_topic_check(make: Callable[..., Any]) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1024):
            pass
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1")
    address = "{}:{}".format(*server.sockets[0].getsockname())
    try:
        async with asyncio.timeout(60):
            with pytest.raises(BrokerUnavailable):
                await make(bootstrap_servers=address, request_timeout_ms=100).__aenter__()
    finally:
        server.close()
        await server.wait_closed()


def test_edit_takes_every_field_of_the_event() -> None:
    differing = EditedFields.__annotations__.keys() ^ MessageChanges.model_fields.keys()
    assert differing == set(), "EditedFields in afterword/writing/producer.py"


@pytest.mark.parametrize("make", [Producer.from_settings, partial(SummarySubscriber.from_settings, group_id="g")])
async def test_broker_error_names_where_its_address_came_from(
    make: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AFTERWORD_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:9")
    with pytest.raises(BrokerUnavailable) as failed:
        async with make():
            pass
    assert failed.value.__notes__ == ["its address is from AFTERWORD_KAFKA__BOOTSTRAP_SERVERS"]
