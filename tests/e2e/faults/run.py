"""Runs one deployment under load, injects some kinds of faults, and judges the fate of every message."""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from aiokafka.errors import KafkaError

from afterword.operating.audit import Report
from afterword.streams.errors import AfterwordError
from afterword.streams.kafka.log_reader import Log, open_log
from afterword.streams.roles import ALWAYS_RUN
from afterword.streams.settings import Kafka, Settings, load_settings
from tests.e2e.deployment import Record, deployed, fingerprints, segmented
from tests.e2e.faults import changes
from tests.e2e.faults.fault import Fault
from tests.e2e.faults.kinds.workers import SESSION_SECONDS
from tests.e2e.faults.load import Conversations, Dialogues, Load
from tests.e2e.faults.loops import Loops, probed
from tests.e2e.faults.stalls import Group, measured
from tests.e2e.faults.world import ON_SERVERS, Servers, World
from tests.openai_server import success

QUIET_SECONDS = 600.0
AUDIT_SECONDS = 3600.0
"""In the long form with little CPU, a busy machine's summarizers still have work for half an hour at the end."""
PARTITIONS = 4
NEVER_IDLE_SECONDS = 6 * 3600
"""The load closes the conversations, not silence, so that the rules' results are known."""


@dataclass(frozen=True)
class Form:
    """The form of a run. `seconds` is the time of the injections; None means the number in each kind's short form."""

    seed: int
    per_second: float
    seconds: float | None = None
    hostile: bool = False
    """True if real dialogues are the load, and event loops and the groups of all roles are measured."""
    on_servers: bool = False
    """True if every kind keeps everything in MongoDB and Qdrant."""

    @property
    def long(self) -> bool:
        return self.seconds is not None

    @property
    def has_changes(self) -> bool:
        """Whether messages are changed and summaries redone."""
        return self.long and not self.hostile


@dataclass
class Result:
    """The result of one deployment."""

    faults: Sequence[Fault]
    messages: int = 0
    episodes: int = 0
    lost: int = 0
    duplicated: int = 0
    longest_stall: float = 0.0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (self.lost or self.duplicated or self.problems)


async def run(servers: Servers, directory: Path, kinds: Sequence[type[Fault]], form: Form) -> Result:
    """Inject all of these kinds into one deployment, and judge it at the end."""
    faults = [kind() for kind in kinds]
    result = Result(faults)
    settings = settings_for(servers, directory, kinds, form)
    kafka = settings.kafka
    chance = random.Random(form.seed)
    servers.llm.usual = changes.repeats_marks if form.has_changes else success()
    talk = Dialogues(chance) if form.hostile else Conversations(chance, form.has_changes)
    load = Load(settings, talk, form.per_second)
    async with contextlib.AsyncExitStack() as opened_ones:
        deployment = await opened_ones.enter_async_context(
            deployed(settings, directory, static=True)  # nobody has to wait for the session of a killed worker
        )
        world = World(servers, deployment, load, {}, Loops(), form.long)
        if form.hostile:
            await opened_ones.enter_async_context(probed(world.targets, world.loops))
        for role in watched(form):
            world.groups[role] = await opened_ones.enter_async_context(
                measured(watched_of(kafka, role), world.loops.clock if form.hostile else time.monotonic)
            )
        try:
            async with loaded(world, faults, form):
                await inject_all(world, faults, form)
            await judge(world, faults, result)
            if form.has_changes:
                await judge_changes(world, result)
        # a timeout is an OSError
        except (AssertionError, AfterwordError, KafkaError, OSError, httpx.HTTPError) as error:
            result.problems.append(f"{type(error).__name__}: {error}")
        result.longest_stall = max(stalls.longest for stalls in world.groups.values())
        if form.hostile:
            late = f"the latest answer of an event loop came after {world.loops.latest:.2f} s on the wall"
            result.notes.append(f"a process got {world.loops.mean_pace:.0%} of a processor; {late}")
        ends = Counter(f"{gone.name} ended by itself with {gone.code}" for gone in world.ended)
        result.notes += [f"{end}, {times} times" for end, times in ends.items()]
        await close(world, result)
    return result


def watched(form: Form) -> Sequence[str]:
    return ALWAYS_RUN if form.hostile else ("segmenter",)


def watched_of(kafka: Kafka, role: str) -> Group:
    group = {
        "segmenter": kafka.group_of("segmenter"),
        "summarizer": kafka.group_of("summarizer"),
        "archiver": kafka.group_of("archiver"),
    }[role]
    topic = kafka.episodes_topic if role == "summarizer" else kafka.messages_topic
    return Group(kafka.bootstrap_servers, group, topic, kafka.partitions)


@contextlib.asynccontextmanager
async def loaded(world: World, faults: Sequence[Fault], form: Form) -> AsyncIterator[None]:
    """Run load and supervisor. After the block everything is sent; the supervisor continues until all is quiet."""
    stop = asyncio.Event()
    loading = asyncio.create_task(world.load.run(stop))
    supervising = asyncio.create_task(world.supervise())
    requests = changes.Requests(world.deployment.settings, random.Random(form.seed))
    asking = asyncio.create_task(requests.run()) if form.has_changes else None
    tasks = [loading, supervising, *([asking] if asking else [])]
    try:
        for role in faults[0].roles:
            for name in [role, *(f"{role}-{number}" for number in range(2, faults[0].workers.get(role, 1) + 1))]:
                world.start(role, name)
        await world.busy(1)
        await world.progress()
        for stalls in world.groups.values():
            stalls.begin()
        yield
        stop.set()
        await loading
        note(world, "everything is sent")
        await until_quiet(world)
        if asking:
            await requests.enough()
            asking.cancel()
            note(world, f"{requests.sent} requests to redo summaries were sent")
        if form.has_changes:
            await changes.until_summarizer_is_done(world.deployment.settings.kafka)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def inject_all(world: World, faults: Sequence[Fault], form: Form) -> None:
    """Inject every kind: the short form one after the other, the long one at random until the time is up."""
    chance = random.Random(form.seed)
    if form.seconds is None:
        for fault in faults:
            for _ in range(fault.times):
                await inject(world, fault, chance)
        return
    ends = time.monotonic() + form.seconds
    while left := [fault for fault in faults if ends > time.monotonic() or fault.injected < fault.at_least]:
        await inject(world, chance.choice(left), chance)


async def inject(world: World, fault: Fault, chance: random.Random) -> None:
    note(world, fault.name)
    await fault.inject(world, chance)
    fault.injected += 1
    await asyncio.sleep(chance.uniform(*fault.pause_seconds))


def note(world: World, what: str) -> None:
    """Append to a log beside the workers' logs."""
    with (world.deployment.directory / "injections.log").open("a") as log:
        log.write(f"{time.strftime('%H:%M:%S')} {what}\n")


async def until_quiet(world: World) -> None:
    """Wait until segmenter and archiver have consumed everything; the audit waits for the summarizer.

    Raises: TimeoutError if they consume nothing for QUIET_SECONDS. The tests' MongoDB has no indexes, so deletions take
    long once it has many messages.
    """
    kafka = world.deployment.settings.kafka
    async with open_log(kafka) as log:
        left = await _unread(world, log)
        while left:
            async with asyncio.timeout(QUIET_SECONDS):
                while (now := await _unread(world, log)) >= left:  # noqa: ASYNC110 – offsets set no event
                    await asyncio.sleep(0.3)
            left = now


async def _unread(world: World, log: Log) -> int:
    kafka = world.deployment.settings.kafka
    groups = [kafka.group_of("segmenter"), kafka.group_of("archiver")]
    ends = await log.ends(kafka.messages_topic)
    return sum([await log.left(group, kafka.messages_topic, ends) for group in groups])


async def judge(world: World, faults: Sequence[Fault], result: Result) -> None:
    deployment = world.deployment
    note(world, "everything is consumed")
    report = await deployment.audit(AUDIT_SECONDS)
    note(world, "audited")
    closed = await deployment.episodes()
    world.report = report
    result.messages, result.episodes = report.messages["total"], report.episodes["total"]
    result.lost = report.messages["lost"]
    result.duplicated = sum(_count(report, kind) for kind in ("duplicated", "committed_twice"))
    if not report.clean:
        result.problems.append("\n".join(report.lines()))
    _judge_completeness(world, report, result, faults)
    records = [Record(r.key, r.value, r.headers, n, r.timestamp_ms) for n, r in enumerate(world.load.sent)]
    known = {record.key for record in world.load.sent}
    mine = [episode for episode in closed if episode.conversation_id.encode() in known]
    if fingerprints(mine) != segmented(records, deployment.settings):
        result.problems.append("the episodes are not those of the rules")
    for fault in faults:
        await _checked(world, fault, result)


async def judge_changes(world: World, result: Result) -> None:
    """Check that nothing replaced or deleted is left, and the revisions. A damaged record may have repeated one."""
    settings = world.deployment.settings
    outcome = await changes.judged(settings, [record.value for record in world.load.sent])
    result.problems += outcome.problems
    if world.report and not world.report.summaries["with_facts"]:
        result.problems.append("the audit saw no facts")
    result.notes += outcome.notes


def _judge_completeness(world: World, report: Report, result: Result, faults: Sequence[Fault]) -> None:
    allowed = {"pending": sum(fault.strays for fault in faults), "not_consumed": 0}
    left = {name: report.messages[name] for name, most in allowed.items() if report.messages[name] > most}
    if left:
        result.problems.append(f"not done: {left}")
    counted = all(fault.counted for fault in faults)
    other = report.messages["flushes"] + report.messages["changes"]
    if counted and report.messages["total"] + other != len(world.load.sent):
        result.problems.append(f"{len(world.load.sent)} records were sent, and {report.messages} found")
    counts = {name: report.summaries.get(name, 0) for name in ("stored", "announced", "deleted")}
    stored = {"stored": counts["stored"] + counts["deleted"], "announced": counts["announced"]}
    if set(stored.values()) != {report.episodes["total"]}:
        result.problems.append(f"{report.episodes['total']} episodes, and summaries {stored}")


async def _checked(world: World, fault: Fault, result: Result) -> None:
    try:
        await fault.check(world)
    except AssertionError as error:
        result.problems.append(f"{fault.name}: {error}")
    result.notes += fault.notes


async def close(world: World, result: Result) -> None:
    """Stop every worker, and check that it exits with 0."""
    for name in list(world.deployment.workers):
        try:
            await world.stop(name)
        except AssertionError as error:
            result.problems.append(str(error))


def _count(report: Report, kind: Any) -> int:
    return report.findings[kind].count if kind in report.findings else 0


def settings_for(servers: Servers, directory: Path, kinds: Sequence[type[Fault]], form: Form) -> Settings:
    """Return settings with Kafka's shortest timeouts, so that failures are noticed early. Names come from the
    directory.
    """
    name = directory.name
    ours: dict[str, dict[str, Any]] = {
        "kafka": {
            "bootstrap_servers": servers.stack.bootstrap_servers,
            "partitions": PARTITIONS,
            "session_timeout_seconds": SESSION_SECONDS,
            "messages_topic": f"messages-{name}",
            "prefix": f"{name}-",
        },
        "ingest": {"file": directory / "afterword.toml"},
        "episodes": {"idle_seconds": NEVER_IDLE_SECONDS},
        "mongo": {"uri": servers.mongo.uri, "database": f"test-{name}"},
        "qdrant": {"url": servers.qdrant.url, "collection": name},
        "sqlite": {"path": directory / "afterword.sqlite"},
        "llm": {},
        "quality": {},
        "retry": {},
    }
    common = [changes.SETTINGS if form.has_changes else {}, ON_SERVERS if form.on_servers else {}]
    for each in [*common, *[kind.settings for kind in kinds]]:
        for section, values in each.items():
            ours[section] |= values
    if ours["llm"]:
        ours["llm"]["base_url"] = servers.llm.base_url
    return load_settings(**ours, state_dir=directory / "state", drain_seconds=10)
