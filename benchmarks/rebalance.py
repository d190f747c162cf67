"""One of five segmenters joins or leaves, again and again, on 32 partitions: what moves, and how long each waits.

Every partition gets a message at regular intervals, and each message closes an episode. The pause of a partition is the
longest time from a message to its `episode.closed`, of those sent from the moment at which a worker is told to stop, or
asks to join, until the group has settled and a little beyond. It includes the usual time, which is shown beside it.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import GroupCoordinatorNotAvailableError

from afterword.embedded import EmbeddedStack
from afterword.topics import ensure_topics
from benchmarks.deployment import Deployment, environment
from benchmarks.probing import VALUES, Probe, probing
from benchmarks.processes import worker
from benchmarks.quantiles import milliseconds, quantile
from benchmarks.suite import Finding, Form, Line

PARTITIONS, WORKERS = 32, 5
CHANGES_A_ROUND = 10
"""Five joins and five leaves."""
INTERVAL_SECONDS = 0.5
"""Time between two messages of a partition."""
LOOK_SECONDS = 0.05
SETTLING_SECONDS = 120.0
AFTER_SECONDS = 2.0
MOVED_SHARE, PAUSE_SECONDS = 0.2, 0.050
TITLE = f"rebalance: one of {WORKERS} segmenters joins or leaves, {PARTITIONS} partitions"

Owners = Mapping[int, str]
"""Member of the group, by partition."""


@dataclass
class Pauses:
    changes: int = 0
    moved_share: list[float] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)
    unmoved: list[float] = field(default_factory=list)
    usual: list[float] = field(default_factory=list)
    """The longest trips in as long a time in which nothing happens."""

    def note(self, before: Owners, after: Owners, longest: Mapping[int, float]) -> None:
        gone = {partition for partition in after if before[partition] != after[partition]}
        self.changes += 1
        self.moved_share.append(len(gone) / PARTITIONS)
        self.moved += [seconds for partition, seconds in longest.items() if partition in gone]
        self.unmoved += [seconds for partition, seconds in longest.items() if partition not in gone]


class Group:
    """Segmenters of one deployment, and who of them owns what."""

    def __init__(self, deployment: Deployment, admin: AIOKafkaAdminClient, closing: AsyncExitStack) -> None:
        self._deployment = deployment
        self._admin = admin
        self._closing = closing
        self._last: AsyncExitStack | None = None
        self._started = 0
        self.size = 0

    async def join(self) -> None:
        """One more; returns when it asks to join."""
        name, self._started = f"worker-{self._started}", self._started + 1
        values = {**self._deployment.all_values, "state_dir": self._deployment.directory / name}
        ending = AsyncExitStack()
        await self._closing.enter_async_context(ending)
        await ending.enter_async_context(worker("segmenter", self._deployment.directory / name, environment(values)))
        self._last, self.size = ending, self.size + 1

    async def leave(self) -> None:
        """The last one that joined stops."""
        if self._last is not None:
            self.size -= 1
            await self._last.aclose()

    async def owners(self) -> Owners | None:
        """Return who owns which partition; None while a rebalance is under way."""
        group = self._deployment.settings.kafka.segmenter_id
        try:
            described = await self._admin.describe_consumer_groups([group])
        except GroupCoordinatorNotAvailableError:  # until the first member of any group has come
            return None
        for response in described:
            for _, _, state, _, _, members, *_ in response.groups:
                if state != "Stable" or len(members) != self.size:
                    return None
                found = {}
                for member, _, _, _, assigned, *_ in members:
                    for source in ConsumerProtocolMemberAssignment.decode(assigned).partitions():
                        found[source.partition] = member
                return found if len(found) == PARTITIONS else None
        return None

    async def settled(self) -> Owners:
        async with asyncio.timeout(SETTLING_SECONDS):
            while (found := await self.owners()) is None:  # noqa: ASYNC110 – the broker tells only who asks
                await asyncio.sleep(LOOK_SECONDS)
        return found


async def changed(group: Group, probe: Probe, pauses: Pauses, *, joins: bool) -> None:
    """One worker more or less, and what that does."""
    before = await group.settled()
    began = time.monotonic()
    await asyncio.sleep(AFTER_SECONDS)
    pauses.usual += probe.longest(began, time.monotonic() - 1).values()
    began = time.monotonic()
    await (group.join() if joins else group.leave())
    after = await group.settled()
    await asyncio.sleep(AFTER_SECONDS)
    ended = time.monotonic() - AFTER_SECONDS / 2
    async with asyncio.timeout(SETTLING_SECONDS):
        while any(sent < ended for sent in probe.sent.values()):  # noqa: ASYNC110 – the answers set no event
            await asyncio.sleep(LOOK_SECONDS)
    pauses.note(before, after, probe.longest(began, ended))


async def run(form: Form, directory: Path) -> Sequence[Finding]:
    """Measure in the long form only: a pause has no rival in the same run."""
    if form.short:
        return []
    async with EmbeddedStack(directory / "stack") as stack, AsyncExitStack() as closing:
        deployment = Deployment(stack, directory, "rebalance", PARTITIONS, VALUES)
        await ensure_topics(deployment.settings)
        admin = AIOKafkaAdminClient(bootstrap_servers=stack.bootstrap_servers)
        await admin.start()
        closing.push_async_callback(admin.close)
        group = Group(deployment, admin, closing)
        for _ in range(WORKERS - 1):
            await group.join()
        await group.settled()
        pauses = Pauses()
        async with probing(deployment, INTERVAL_SECONDS) as probe:
            await asyncio.sleep(AFTER_SECONDS)
            for number in range(form.rounds * CHANGES_A_ROUND):
                await changed(group, probe, pauses, joins=number % 2 == 0)
    return [finding(pauses)]


def finding(pauses: Pauses) -> Finding:
    usual, unmoved = quantile(pauses.usual, 0.99), quantile(pauses.unmoved, 0.99)
    share = sum(pauses.moved_share) / len(pauses.moved_share)
    lines = [
        Line("moved", {"share": f"{share:.0%}"}, aim=f"≤ {MOVED_SHARE:.0%}", met=share <= MOVED_SHARE),
        _line("pause of the unmoved", pauses.unmoved, f"≤ {milliseconds(PAUSE_SECONDS)} + usual, p99", unmoved - usual),
        _line("pause of the moved", pauses.moved),
        _line("usual", pauses.usual),
    ]
    return Finding(f"{TITLE}, {pauses.changes} changes", lines)


def _line(name: str, seconds: Sequence[float], aim: str = "", beyond: float | None = None) -> Line:
    figures = {f"p{share * 100:.0f}": milliseconds(quantile(seconds, share)) for share in (0.5, 0.99)}
    figures["longest"] = milliseconds(max(seconds, default=float("nan")))
    return Line(name, figures, aim=aim, met=None if beyond is None else beyond <= PAUSE_SECONDS)
