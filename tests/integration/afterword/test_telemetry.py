"""Workers on real servers, and their metrics, status and traces."""

import asyncio
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from afterword.streams.settings import Settings
from tests.e2e.deployment import Deployment, deployed, environment_of
from tests.endpoints import serving
from tests.waiting import until

pytestmark = pytest.mark.nightly

SECONDS = 60
LISTENING = re.compile(r'"port": (\d+)[^\n]*health_server_started')
SECRET = "hunter2"
ROLES = ("segmenter", "summarizer", "archiver")
CONVERSATIONS, MESSAGES = 3, 6
LINES = [
    json.dumps(
        {"id": f"m{number}", "conversation_id": f"c{conversation}", "user_id": "u1", "role": "user", "content": "Hello"}
    ).encode()
    for conversation in range(CONVERSATIONS)
    for number in range(MESSAGES)
]


@pytest.fixture
def settings(make_settings: Callable[..., Settings]) -> Settings:
    return make_settings(
        kafka={"partitions": 1, "session_timeout_seconds": 6},
        health={"port": 0},
        llm={"api_key": SECRET},
        drain_seconds=5,
    )


@pytest_asyncio.fixture
async def deployment(settings: Settings, tmp_path) -> AsyncIterator[Deployment]:
    async with deployed(settings, tmp_path) as ready:
        for role in ROLES:
            ready.start(role)
        yield ready


@dataclass
class Worker:
    deployment: Deployment
    role: str

    async def get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False) as client:
            return await client.get(f"http://127.0.0.1:{await self.port()}{path}")

    async def port(self) -> str:
        await until(lambda: LISTENING.search(self.deployment.logs(self.role)))
        return LISTENING.findall(self.deployment.logs(self.role))[0]

    async def samples(self) -> dict[tuple[str, ...], float]:
        """Return the samples by name and label values, in the order of the labels' names."""
        families = text_string_to_metric_families((await self.get("/metrics")).text)
        return {
            (sample.name, *(sample.labels[label] for label in sorted(sample.labels))): sample.value
            for family in families
            for sample in family.samples
        }

    async def until(self, name: str, *labels: str, value: float) -> dict[tuple[str, ...], float]:
        """Return all samples, as soon as this one is as expected."""
        samples: dict[tuple[str, ...], float] = {}
        try:
            async with asyncio.timeout(SECONDS):
                while (samples := await self.samples()).get((name, *labels)) != value:  # noqa: ASYNC110 – no event tells
                    await asyncio.sleep(0.2)
        except TimeoutError:
            pytest.fail(f"{samples}\n{self.deployment.logs(self.role)}")
        return samples


async def test_workers_report_their_work_and_empty_backlog(settings: Settings, deployment: Deployment) -> None:
    kafka, count = settings.kafka, CONVERSATIONS * MESSAGES
    await deployment.produce([*LINES, *LINES[:1]])
    segmenter, summarizer, archiver = (Worker(deployment, role) for role in ROLES)

    told = await segmenter.until("afterword_messages_total", "duplicate", value=1)  # the last record but the flushes
    assert told["afterword_messages_total", "taken"] == count
    closed = await segmenter.until("afterword_episodes_closed_total", "flush", value=CONVERSATIONS)
    assert closed["afterword_recovery_duration_seconds_count", "segmenter"] == 1
    assert closed["afterword_rebalance_duration_seconds_count", "segmenter"] >= 1
    done = await segmenter.until("afterword_consumer_lag_records", "0", "segmenter", kafka.messages_topic, value=0)
    assert done["afterword_consumer_lag_seconds", "0", "segmenter", kafka.messages_topic] == 0
    assert done["afterword_state_bytes", "0"] > 0

    await summarizer.until("afterword_summaries_total", "extractive_provider", "fallback", value=CONVERSATIONS)
    events = 2 * CONVERSATIONS  # of each one its summary, and what follows for the conversation
    await summarizer.until("afterword_step_duration_seconds_count", "publish", value=events)
    left = await summarizer.until("afterword_consumer_lag_records", "0", "summarizer", kafka.episodes_topic, value=0)
    assert left["afterword_episodes_in_flight",] == 0

    kept = await archiver.until("afterword_archived_records_total", "archived", value=count + 1)
    assert kept["afterword_ready", "archiver"] == 1
    assert kept["afterword_step_duration_seconds_count", "archive"] >= 1
    assert kept["afterword_rebalance_duration_seconds_count", "archiver"] >= 1
    await archiver.until("afterword_consumer_lag_records", "0", "archiver", kafka.messages_topic, value=0)


async def test_status_names_version_settings_and_partitions_without_secrets(
    settings: Settings, deployment: Deployment
) -> None:
    worker = Worker(deployment, "segmenter")
    await worker.until("afterword_consumer_lag_records", "0", "segmenter", settings.kafka.messages_topic, value=0)
    answer = await worker.get("/status")
    status = answer.json()
    assert (status["role"], status["ready"], status["reasons"]) == ("segmenter", True, {})
    assert [found["topic"] for found in status["partitions"]] == [settings.kafka.messages_topic]
    assert status["settings"]["kafka"]["messages_topic"] == settings.kafka.messages_topic
    assert status["settings"]["llm"]["api_key"] is not None
    assert SECRET not in answer.text


class Receiver:
    """A stand-in for a collector, which accepts OTLP over HTTP."""

    def __init__(self) -> None:
        self.spans: dict[str, tuple[str, str]] = {}
        """Trace id and service of the last span of each name."""
        self.all: set[tuple[str, str]] = set()
        self.linked: dict[tuple[str, str], set[str]] = defaultdict(set)
        """Ids of linked traces, by name of the span and service."""

    async def take(self, request: web.Request) -> web.Response:
        sent = ExportTraceServiceRequest.FromString(await request.read())
        for resource in sent.resource_spans:
            told = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans[span.name] = span.trace_id.hex(), told["service.name"]
                    self.all.add(self.spans[span.name])
                    self.linked[span.name, told["service.name"]] |= {link.trace_id.hex() for link in span.links}
        return web.Response()


@pytest_asyncio.fixture
async def receiver(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Receiver]:
    """Run the collector, and name it in the standard variables."""
    collector = Receiver()
    async with serving(collector.take, "POST", "/v1/traces") as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        yield collector


async def test_collector_gets_one_trace_from_producer_to_summary(
    settings: Settings, receiver: Receiver, deployment: Deployment, tmp_path: Path
) -> None:
    kafka, file = settings.kafka, tmp_path / "chat.jsonl"
    file.write_bytes(LINES[0] + b"\n")
    producing = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "afterword", "produce", str(file), "--flush"), env=os.environ | environment_of(settings)
    )
    assert await producing.wait() == 0
    begin, send = f"send {kafka.messages_topic}", f"send {kafka.episodes_topic}"
    process, archive = f"process {kafka.episodes_topic}", f"process {kafka.messages_topic}"
    await until(lambda: {begin, send, process, "publish", archive, "archive"} <= receiver.spans.keys())
    trace, _ = receiver.spans[send]
    expected = {send: "afterword-segmenter", process: "afterword-summarizer", "publish": "afterword-summarizer"}
    assert {name: receiver.spans[name] for name in expected} == {name: (trace, role) for name, role in expected.items()}
    assert (trace, "afterword-produce") in receiver.all
    assert receiver.spans["archive"][1] == "afterword-archiver"
    linking = {
        (archive, "afterword-archiver"),
        (archive, "afterword-segmenter"),
    }
    await until(lambda: all(trace in receiver.linked[one] for one in linking))
