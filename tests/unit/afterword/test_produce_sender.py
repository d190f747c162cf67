"""A trace begins where messages are sent, and the segmenter goes on with it."""

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaTimeoutError
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracer, SpanKind, StatusCode, Tracer

from afterword.lines import Outgoing, flush, parse
from afterword.produce_sender import Sender
from afterword.streams.segmenter import Segmenter
from afterword.streams.segmenter.tracing import EpisodeTracing
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


def messages(count: int) -> list[Outgoing]:
    line = '{"id": "%d", "conversation_id": "c1", "user_id": "u1", "role": "user", "content": "%s"}'
    return [record for n in range(count) for record in parse((line % (n, SECRET)).encode(), NOW)]


async def sent(broker: Any, tracer: Tracer, records: list[Outgoing]) -> None:
    sender = Sender(broker, TOPIC, None, tracer)
    for record in records:
        await sender.send(record)
    await sender.finish()


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


async def test_the_segmenters_span_continues_the_last_messages_and_links_the_others(
    spans: InMemorySpanExporter, tracer: Tracer
) -> None:
    broker = Broker()
    await sent(broker, tracer, [*messages(3), flush("c1", NOW)])
    segmenter = Segmenter(limits(), EPISODES, DEAD_LETTERS, {}, {}, characters, EpisodeTracing(tracer, EPISODES))
    segmenter.process(broker.records, NOON)
    first, second, last, _ = (span.context for span in named(spans, f"send {TOPIC}"))
    [episode] = named(spans, f"send {EPISODES}")
    assert episode.parent
    assert (episode.parent.trace_id, episode.parent.span_id) == (last.trace_id, last.span_id)
    assert [link.context.span_id for link in episode.links] == [first.span_id, second.span_id]


async def test_each_message_is_a_span_of_its_own_with_its_place_and_without_its_content(
    spans: InMemorySpanExporter, tracer: Tracer
) -> None:
    await sent(Broker(), tracer, messages(2))
    found = named(spans, f"send {TOPIC}")
    places = [(span.attributes or {})["messaging.kafka.offset"] for span in found]
    assert places == [0, 1]
    assert {span.kind for span in found} == {SpanKind.PRODUCER}
    assert len({span.context.trace_id for span in found}) == 2
    assert [(span.attributes or {})["messaging.message.id"] for span in found] == ["c1:0", "c1:1"]
    assert SECRET not in "".join(span.to_json() for span in found)


async def test_what_is_not_acknowledged_is_an_error_of_its_span(spans: InMemorySpanExporter, tracer: Tracer) -> None:
    with pytest.raises(KafkaTimeoutError):
        await sent(Broker(KafkaTimeoutError(SECRET)), tracer, messages(1))
    [span] = named(spans, f"send {TOPIC}")
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "KafkaTimeoutError"
    assert SECRET not in span.to_json()


async def test_without_a_tracer_there_is_no_header() -> None:
    broker = Broker()
    await sent(broker, NoOpTracer(), messages(1))
    assert "traceparent" not in dict(broker.records[0].headers)
