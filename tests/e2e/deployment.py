"""A whole deployment of real processes on the stack, for one test."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
from aiokafka import AIOKafkaConsumer, TopicPartition
from pydantic import BaseModel, SecretStr

from afterword.embedded import Process
from afterword.local.dev import start_worker
from afterword.operating import audit
from afterword.operating.audit import Report
from afterword.operating.evidence import until_finished
from afterword.operating.topics import ensure_topics
from afterword.schemas import EpisodeClosed, decode_closed
from afterword.streams.kafka.clients import client_options
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.segmenter.processor import Segmenter
from afterword.streams.settings import CONFIG_FILE_VARIABLE, Settings
from afterword.writing.produce import Produced, parse, produce
from afterword_text.tokens import count_tokens
from tests.dialogues import interleaved, message_lines

CONVERSATIONS_AT_A_TIME = 50
STOP_SECONDS = 40.0
WAIT_SECONDS = 180.0
EPISODES = "episodes"


def environment_of(settings: Settings) -> dict[str, str]:
    """Return variables that give a child process the same settings."""
    return dict(_variables(settings, "AFTERWORD_"))


def _variables(section: BaseModel, prefix: str) -> Iterable[tuple[str, str]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _variables(value, f"{prefix}{name.upper()}__")
        elif value is not None:
            plain = value.get_secret_value() if isinstance(value, SecretStr) else value
            as_json = isinstance(plain, dict | list)
            yield prefix + name.upper(), orjson.dumps(plain, default=_plain).decode() if as_json else str(plain)


def _plain(value: object) -> object:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, BaseModel):
        return dict(value)
    raise TypeError(type(value))


async def afterword(settings: Settings, *arguments: str, given: str = "") -> tuple[int, str, str]:
    """Run a command in its own process, and return exit code, output and errors."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "afterword", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | environment_of(settings) | {CONFIG_FILE_VARIABLE: ""},
    )
    out, errors = await asyncio.wait_for(process.communicate(given.encode()), WAIT_SECONDS)
    assert b"Traceback" not in errors, errors
    return process.returncode or 0, out.decode(), errors.decode()


@dataclass
class Deployment:
    """Workers by name, each with its own state directory, as on a cluster."""

    settings: Settings
    directory: Path
    static: bool = False
    """Restarted workers rejoin as the same group members, without waiting for a session to end."""
    workers: dict[str, Process] = field(default_factory=dict)

    def start(self, role: str, name: str | None = None) -> None:
        name = name or role
        environment = {**environment_of(self.settings), "AFTERWORD_STATE_DIR": str(self.state(name))}
        if self.static:
            environment["AFTERWORD_KAFKA__GROUP_INSTANCE_ID"] = name
        self.workers[name] = start_worker(role, self.directory, environment, name=name)

    def state(self, name: str) -> Path:
        return self.directory / "state" / name

    def kill(self, name: str) -> None:
        self.workers[name].kill()

    async def stop(self, name: str) -> int:
        """Send SIGTERM, and return the exit code."""
        return await asyncio.to_thread(self.workers.pop(name).stop, STOP_SECONDS)

    def lose_state(self, name: str) -> None:
        shutil.rmtree(self.state(name), ignore_errors=True)

    def logs(self, name: str) -> str:
        return (self.directory / "logs" / f"{name}.log").read_text()

    async def produce(self, lines: Iterable[bytes], rate: float | None = None) -> Produced:
        """Send messages and dialogues concurrently, and end each with a flush, so that nothing stays pending."""
        mixed = interleaved(message_lines(lines), CONVERSATIONS_AT_A_TIME)
        return await produce(self.settings, mixed, rate=rate, flush=True)

    async def audit(self, wait_seconds: float = WAIT_SECONDS) -> Report:
        return await audit.run(self.settings, wait_seconds=wait_seconds)

    async def finished(self) -> None:
        """Wait until the workers have finished what is on their topics, so that every effect of it can be seen."""
        kafka = self.settings.kafka
        async with open_log(kafka) as log:
            left = await until_finished(log, kafka, WAIT_SECONDS, lambda *_: None)
        assert not left, left

    async def episodes(self) -> list[EpisodeClosed]:
        """Return everything committed to `episode.closed`, in the order of its partitions."""
        kafka = self.settings.kafka
        consumer = AIOKafkaConsumer(**client_options(kafka), isolation_level="read_committed")
        async with consumer:
            await consumer.topics()
            sources = [TopicPartition(kafka.episodes_topic, number) for number in range(kafka.partitions)]
            consumer.assign(sources)
            await consumer.seek_to_beginning()
            ends = await consumer.end_offsets(sources)
            found: list[EpisodeClosed] = []
            while any([await consumer.position(source) < ends[source] for source in sources]):
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    events = [decode_closed(record.key, record.value, record.headers) for record in records]
                    found += [event for event in events if isinstance(event, EpisodeClosed)]
        return found

    async def close(self) -> None:
        workers, self.workers = self.workers, {}
        await asyncio.gather(*[asyncio.to_thread(worker.stop, STOP_SECONDS) for worker in workers.values()])


@asynccontextmanager
async def deployed(settings: Settings, directory: Path, static: bool = False) -> AsyncIterator[Deployment]:
    """Create the topics, yield the deployment without workers, and stop all workers at the end."""
    reports = await ensure_topics(settings)
    assert all(report.fine for report in reports), reports
    deployment = Deployment(settings, directory, static)
    try:
        yield deployment
    finally:
        await deployment.close()


@dataclass
class Record:
    """A record as a consumer gets it. The records of a conversation are in the order of the log."""

    key: bytes | None
    value: bytes | None
    headers: Any
    offset: int
    timestamp: int = 0
    topic: str = "messages"
    partition: int = 0


def expected_fingerprints(lines: Iterable[bytes], settings: Settings) -> dict[str, str]:
    """Segment these lines by the rules alone, without a broker: fingerprint by `episode_id`."""
    now = datetime.now(UTC)
    sent = [parse(line, now) for line in message_lines(lines)]
    records = [Record(r.conversation_id.encode(), r.value, r.headers, n) for n, r in enumerate(sent)]
    flushes = {r.conversation_id: {"type": "conversation.flush", "conversation_id": r.conversation_id} for r in sent}
    last = [Record(name.encode(), orjson.dumps(flush), [], len(sent)) for name, flush in flushes.items()]
    return segmented([*records, *last], settings)


def segmented(records: Iterable[Record], settings: Settings) -> dict[str, str]:
    """Segment these records by the rules alone: fingerprint by `episode_id`."""
    segmenter = Segmenter(settings.episodes, EPISODES, "dead", {}, {}, count_tokens)
    outgoing = segmenter.process(list(records), 0).outgoing
    events = [orjson.loads(out.value) for out in outgoing if out.value and out.topic == EPISODES]
    return {
        e["episode_id"]: e["fingerprint"] for e in events if "fingerprint" in e
    }  # changes of other messages are passed on


def fingerprints(episodes: Iterable[EpisodeClosed]) -> dict[str, str]:
    return {episode.episode_id: episode.fingerprint for episode in episodes}


def repeated(lines: Iterable[bytes], times: int) -> list[bytes]:
    """Repeat the dialogues, each time as different conversations."""
    dialogues: list[Mapping[str, Any]] = [orjson.loads(line) for line in lines]
    return [orjson.dumps({**d, "id": f"{d['id']}-copy-{n}"}) for n in range(times) for d in dialogues]
