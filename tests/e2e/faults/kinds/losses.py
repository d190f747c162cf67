"""Logs that lose records: messages before they were read, and changelogs with state that nobody else has."""

import asyncio
import random
from typing import NamedTuple

import orjson
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete

from afterword.operating.rebuild import rebuild_state
from afterword.operating.topics import ensure_topics
from afterword.streams.kafka.log_reader import Log, open_log
from afterword.streams.segmenter.state import TABLES
from tests.e2e.faults.fault import Fault
from tests.e2e.faults.world import PATIENCE_SECONDS, World
from tests.waiting import until


class Expired(NamedTuple):
    """Records that were deleted unread."""

    role: str
    partition: int
    first_lost: int
    next_offset: int


class RecordsExpired(Fault):
    """Records of the segmenter and of the archiver expire in turn; each loses messages that the other one may have."""

    name = "messages expire unread while a worker is stopped"
    exact = False
    counted = False
    changes = False  # some of them change messages that nobody has read
    recovers = False  # a flush may be among the lost records, and its conversation then stays open
    share = 40.0
    times = 2
    at_least = 4

    def __init__(self) -> None:
        super().__init__()
        self._expired: list[Expired] = []

    async def inject(self, world: World, chance: random.Random) -> None:
        role = ("segmenter", "archiver")[self.injected % 2]
        names = world.running(role)
        for name in names:
            world.deployment.workers.pop(name).kill()
        lost = await self._until_some_expire(world, role)
        self._expired.append(lost)
        for name in names:
            world.start(role, name)
        await until(lambda: lost in named(world, role), f"no {role} says that {lost} expired")
        await world.progress()
        await world.caught_up()

    async def _until_some_expire(self, world: World, role: str) -> Expired:
        """Delete half of the waiting records of the partition that has the most."""
        kafka = world.deployment.settings.kafka
        group, other = kafka.segmenter_id, kafka.archiver_id
        if role == "archiver":
            group, other = other, group
        await world.busy(60)
        async with open_log(kafka) as log:
            ends = await log.ends(kafka.messages_topic)
            committed = await log.committed(group, kafka.messages_topic)
            waiting = {at: end - committed[at.partition] for at, end in ends.items() if at.partition in committed}
            where = max(waiting, key=lambda at: waiting[at])
            first = committed[where.partition]
            before = first + (waiting[where] + 1) // 2
            await passed(log, other, where, before)  # otherwise it loses them too
        async with world.admin() as admin:
            await admin.delete_records({where: RecordsToDelete(before_offset=before)})
        return Expired(role, where.partition, first, before)

    async def check(self, world: World) -> None:
        """Check that every loss is reported once, and nothing else."""
        found = [lost for role in ("segmenter", "archiver") for lost in named(world, role)]
        assert sorted(found) == sorted(self._expired), f"named are {found}, and lost {self._expired}"
        count = sum(lost.next_offset - lost.first_lost for lost in found)
        self.notes.append(f"{count} records expired, each of them named")


async def passed(log: Log, group: str, where: TopicPartition, offset: int) -> None:
    """Wait until the group has committed this offset."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await log.committed(group, where.topic)).get(where.partition, 0) < offset:  # noqa: ASYNC110 – no event
            await asyncio.sleep(0.2)


def named(world: World, role: str) -> list[Expired]:
    """Return the losses that the workers of a role logged."""
    logs = [world.deployment.logs(name) for name, of in world.roles.items() if of == role]
    lines = [orjson.loads(line) for log in logs for line in log.splitlines() if '"event": "records_expired"' in line]
    assert all(line["count"] == line["next_offset"] - line["first_lost"] for line in lines)
    return [Expired(role, line["partition"], line["first_lost"], line["next_offset"]) for line in lines]


class ChangelogDamaged(Fault):
    """Changelogs are truncated or recreated in turn, and the disks are lost too."""

    name = "changelogs truncated or made anew, and state directories lost"
    exact = False  # the overlap of the next episodes is lost, and with it where they end
    changes = False  # as the ids of earlier messages are
    share = 40.0
    times = 2
    at_least = 2

    async def inject(self, world: World, chance: random.Random) -> None:
        names = world.running("segmenter")
        for name in names:
            world.deployment.workers.pop(name).kill()
            world.deployment.lose_state(name)
        damage, cause = ((self._truncate, "ChangelogTruncated"), (self._make_anew, "StateLost"))[self.injected % 2]
        await damage(world)
        world.start("segmenter", names[0])
        async with world.ending(names[0], cause):
            pass
        world.deployment.workers.pop(names[0]).kill()
        await self._recover(world)
        for name in names:
            world.start("segmenter", name)
        await world.progress()
        await world.caught_up()

    async def _truncate(self, world: World) -> None:
        """Delete the first records of every partition that has any."""
        kafka = world.deployment.settings.kafka
        changelogs = [kafka.changelog(table) for table in TABLES]
        async with open_log(kafka) as log:
            ends = {where: end for topic in changelogs for where, end in (await log.ends(topic)).items()}
        for topic in changelogs:
            await world.configure(topic, cleanup_policy="compact,delete")
        async with world.admin() as admin:
            await admin.delete_records({where: RecordsToDelete(before_offset=end // 2) for where, end in ends.items()})
        for topic in changelogs:
            await world.configure(topic, cleanup_policy="compact")

    async def _make_anew(self, world: World) -> None:
        settings = world.deployment.settings
        changelogs = [settings.kafka.changelog(table) for table in TABLES]
        async with world.admin() as admin:
            await admin.delete_topics(changelogs)
            while set(changelogs) & set(await admin.list_topics()):  # noqa: ASYNC110 – the broker deletes them
                await asyncio.sleep(0.1)
        await ensure_topics(settings)

    async def _recover(self, world: World) -> None:
        """Recover as the runbook says."""
        await self._make_anew(world)
        done = await rebuild_state(world.deployment.settings)
        assert not any(one.left for one in done), f"partitions have state: {done}"
        self.notes.append(f"{sum(one.conversations for one in done)} conversations rebuilt")
