"""Telemetry of the archiver: spans that link the messages' own, durations of writes and rebalances, counts."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracer, StatusCode, Tracer

from afterword.schemas import ConversationAssigned
from afterword.schemas.records import owner_header
from afterword.streams.archiver.agent import MAX_WRITE_BYTES, MAX_WRITE_RECORDS, MOST_SECONDS, Archiver
from afterword.streams.errors import StateUnreadable
from afterword.streams.steps import StepRunner
from afterword.streams.stores.messages import ArchiveChange, ArchivedMessage
from afterword.streams.telemetry.metrics import Metrics
from afterword.streams.telemetry.tracing import MAX_LINKS
from distributions.engine.tests.simulation.virtual_time import run_in_virtual_time
from faust_eos.health import Readiness
from tests.doubles.stores import MemoryMessages

SECRET = "hunter2"
GROUP = "afterword-archiver"


class BrokenMessages(MemoryMessages):
    """Fails in a way that a retry does not repair."""

    async def put_many(self, messages: Sequence[ArchivedMessage], *, repeats_edit: bool = True) -> None:
        raise StateUnreadable(problem=SECRET)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("archiver", "1.2.3")


def archiver(metrics: Metrics, tracer: Tracer, archive: MemoryMessages | None = None) -> Archiver:
    return Archiver(archive or MemoryMessages(), StepRunner(Readiness(), metrics, tracer), metrics, tracer)


def record(offset: int, span: int | None = None) -> Any:
    headers = [("traceparent", f"00-{0xABC:032x}-{span:016x}-01".encode())] if span else []
    message = {"id": str(offset), "conversation_id": "c", "user_id": "u", "role": "user", "content": SECRET}
    return SimpleNamespace(
        headers=headers,
        key=b"c",
        value=orjson.dumps(message),
        timestamp=1,
        topic="messages",
        partition=0,
        offset=offset,
    )


def batch(*spans: int | None) -> list[Any]:
    return [record(offset, span) for offset, span in enumerate(spans)]


def by_name(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


def count(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"afterword_{name}_count", labels)


def of_user(offset: int, user_id: str, claim: bool = True) -> Any:
    said = record(offset)
    said.value = orjson.dumps(orjson.loads(said.value) | {"user_id": user_id})
    said.headers = [owner_header(None, user_id)] if claim else []
    return said


async def test_message_claiming_another_users_conversation_is_not_archived(metrics: Metrics) -> None:
    archive = MemoryMessages()
    archiving = archiver(metrics, NoOpTracer(), archive)
    await archiving.handle([of_user(0, "u1"), of_user(1, "u2"), of_user(2, "u1")], GROUP)
    await archiving.handle([of_user(3, "u2"), of_user(4, "u1"), of_user(5, "u3", claim=False)], GROUP)
    found = await archive.get_many([f"c:{n}" for n in range(6)])
    assert {one.offset for one in found.values()} == {0, 2, 4, 5}


def gives(offset: int, kind: str = "assigned") -> Any:
    change = record(offset)
    users = {"from_user_id": "u1", "user_id": "u2"} if kind == "assigned" else {}
    change.value = orjson.dumps({"type": f"conversation.{kind}", "conversation_id": "c", **users})
    return change


@pytest.mark.parametrize("at_a_time", [1, 2, 6])
@pytest.mark.parametrize("kind", ["assigned", "deleted"])
async def test_new_owners_messages_are_archived_in_the_same_batch(metrics: Metrics, at_a_time: int, kind: str) -> None:
    archive = MemoryMessages()
    archiving = archiver(metrics, NoOpTracer(), archive)
    given = [of_user(0, "u1"), gives(1, kind), of_user(2, "u2"), of_user(3, "u2"), of_user(4, "u3"), of_user(5, "u2")]
    for first in range(0, len(given), at_a_time):
        await archiving.handle(given[first : first + at_a_time], GROUP)
    kept = {one.offset for one in (await archive.get_many([f"c:{n}" for n in range(6)])).values()}
    assert kept == {2, 3, 5} | ({0} if kind == "assigned" else set())


@pytest.mark.parametrize("is_ahead", [True, False])
async def test_claim_of_an_assigned_user_is_archived(metrics: Metrics, is_ahead: bool) -> None:
    """Whether it came before the assignment, which the summarizer has applied already, or after it."""
    archive = MemoryMessages()
    archiving = archiver(metrics, NoOpTracer(), archive)
    await archiving.handle([of_user(0, "u1")], GROUP)
    change = ConversationAssigned(conversation_id="c", from_user_id="u1", user_id="u2")
    await archive.change(ArchiveChange(change, 0, 3 if is_ahead else 1))
    await archiving.handle([of_user(2, "u1")], GROUP)
    found = await archive.get_many(["c:0", "c:2"])
    assert [one.message.user_id for one in found.values()] == ["u2", "u2"]


async def test_batch_is_a_span_that_links_its_messages(
    metrics: Metrics, tracer: Tracer, spans: InMemorySpanExporter
) -> None:
    await archiver(metrics, tracer).handle(batch(1, None, 2, 1), GROUP)
    process, archive = by_name(spans)["process messages"], by_name(spans)["archive"]
    assert [link.context.span_id for link in process.links] == [1, 2]
    assert process.parent is None
    assert process.attributes is not None
    assert process.attributes["messaging.batch.message_count"] == 4
    assert archive.parent is not None
    assert archive.parent.span_id == process.context.span_id
    assert archive.attributes is not None
    assert archive.attributes["afterword.message_count"] == 4
    assert SECRET not in process.to_json() + archive.to_json()


async def test_batch_of_many_messages_has_bounded_links(
    metrics: Metrics, tracer: Tracer, spans: InMemorySpanExporter
) -> None:
    await archiver(metrics, tracer).handle(batch(*range(1, 2000)), GROUP)
    links = by_name(spans)["process messages"].links
    assert [link.context.span_id for link in links] == list(range(2000 - MAX_LINKS, 2000))


async def test_failure_is_named_by_its_type(metrics: Metrics, tracer: Tracer, spans: InMemorySpanExporter) -> None:
    with pytest.raises(StateUnreadable):
        await archiver(metrics, tracer, BrokenMessages()).handle(batch(1), GROUP)
    assert len(by_name(spans)) == 2
    for span in by_name(spans).values():
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes is not None
        assert span.attributes["error.type"] == "state_unreadable"
        assert SECRET not in span.to_json()
    assert not count(metrics, "step_duration_seconds", step="archive")


async def test_archive_step_is_measured_without_a_trace_collector(metrics: Metrics) -> None:
    await archiver(metrics, NoOpTracer()).handle(batch(1), GROUP)
    assert count(metrics, "step_duration_seconds", step="archive") == 1


async def test_every_record_is_counted_by_its_outcome(metrics: Metrics) -> None:
    found = batch(None, None, None, None)
    found[0].value = orjson.dumps({**orjson.loads(found[0].value), "skip_summarization": True})
    found[1].value = b"no JSON"
    found[2].value = orjson.dumps({"type": "conversation.flush", "conversation_id": "c"})
    await archiver(metrics, NoOpTracer()).handle(found, GROUP)
    value = metrics.registry.get_sample_value
    outcomes = ("archived", "invalid", "other")
    assert [value("afterword_archived_records_total", {"outcome": name}) for name in outcomes] == [2, 1, 1]


class Writes(MemoryMessages):
    """Remembers how many messages and bytes each write had."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[tuple[int, int]] = []

    async def put_many(self, messages: Sequence[ArchivedMessage], *, repeats_edit: bool = True) -> None:
        self.sizes.append((len(messages), sum(len(one.message.content) for one in messages)))
        await super().put_many(messages, repeats_edit=repeats_edit)


async def test_writes_are_bounded_in_messages_and_bytes(metrics: Metrics) -> None:
    archive = Writes()
    lengths = [MAX_WRITE_BYTES, *[MAX_WRITE_BYTES // 3] * 5, *[1] * 3 * MAX_WRITE_RECORDS]
    records = batch(*[None] * len(lengths))
    for record, length in zip(records, lengths, strict=True):
        event = orjson.loads(record.value)
        record.value = orjson.dumps({**event, "content": "x" * length})
    done = await archiver(metrics, NoOpTracer(), archive).handle(records, GROUP)
    assert done == sum(count for count, _ in archive.sizes) == len(lengths)
    assert archive.sizes[0] == (1, MAX_WRITE_BYTES)
    assert all(0 < count <= MAX_WRITE_RECORDS and size <= MAX_WRITE_BYTES for count, size in archive.sizes)
    assert len(archive.sizes) <= 1 + 3 + 4


class SlowMessages(MemoryMessages):
    """Takes, for each write, half of the time that a batch may take."""

    async def put_many(self, messages: Sequence[ArchivedMessage], *, repeats_edit: bool = True) -> None:
        await asyncio.sleep(MOST_SECONDS / 2)
        await super().put_many(messages, repeats_edit=repeats_edit)


def test_slow_archive_gets_the_batch_in_parts(metrics: Metrics) -> None:
    archive = SlowMessages()

    async def handled() -> int:
        clock = asyncio.get_running_loop().time
        steps = StepRunner(Readiness(), metrics, NoOpTracer())
        archiver = Archiver(archive, steps, metrics, NoOpTracer(), clock=clock)
        return await archiver.handle(batch(*[None] * 1000), GROUP)

    assert run_in_virtual_time(handled()) == 2 * MAX_WRITE_RECORDS == len(archive.messages)
