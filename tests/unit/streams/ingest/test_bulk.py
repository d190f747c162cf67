"""How many bulk records are forwarded."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError

from afterword.streams.ingest.agent import COUNT_SECONDS, LOOK_SECONDS, BulkGate
from afterword.streams.settings import load_settings

SETTINGS = load_settings(ingest={"bulk_lag": 100})
MESSAGES, EPISODES = SETTINGS.kafka.messages_topic, SETTINGS.kafka.episodes_topic


class World:
    """The lag and the readable records of each topic, and the time, which passes by one look after each question."""

    def __init__(self) -> None:
        self.lag = {MESSAGES: 0, EPISODES: 0}
        self.readable = {MESSAGES: 0, EPISODES: 0}
        self.is_away = False
        self.now = 0.0
        self.gate = BulkGate(cast("Any", self), SETTINGS, lambda: self.now)

    async def ends(self, topic: str) -> dict[TopicPartition, int]:
        if self.is_away:
            raise KafkaConnectionError
        return {}

    async def lags(self, group_id: str, topic: str, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {TopicPartition(topic, 0): self.lag[topic]}

    async def unread(self, group_id: str, topic: str, ends: Any) -> AsyncGenerator[Any, None]:
        for number in range(self.readable[topic]):
            yield number

    async def rooms(self, count: int) -> list[int]:
        found = []
        for _ in range(count):
            found.append(await self.gate.room())
            self.now += LOOK_SECONDS
        return found


async def test_bursts_grow_while_workers_keep_up() -> None:
    rooms = await World().rooms(40)
    assert rooms[0] == 1
    assert rooms == sorted(rooms)
    assert rooms[-1] == 100


@pytest.mark.parametrize(
    ("messages", "episodes", "room"),
    [(0, 0, 100), (1, 1, 100), (61, 0, 40), (0, 5, 60), (31, 5, 30), (101, 0, 0), (0, 11, 0), (5000, 0, 0)],
)
async def test_bursts_stay_within_the_allowed_lag(messages: int, episodes: int, room: int) -> None:
    world = World()
    await world.rooms(40)
    world.lag = {MESSAGES: messages, EPISODES: episodes}
    assert await world.rooms(1) == [room]


async def test_records_that_close_many_episodes_go_in_small_bursts() -> None:
    world = World()
    await world.rooms(40)
    for _ in range(20):  # each record closes an episode
        for _ in range(2):
            [room] = await world.rooms(1)
            world.lag[EPISODES] = 1 + room
        world.lag[EPISODES] = 0
    assert max(await world.rooms(1)) < 20


async def test_burst_follows_once_the_previous_shows_as_lag() -> None:
    world = World()
    assert [bool(await world.gate.room()) for _ in range(2)] == [True, False]
    world.now = LOOK_SECONDS
    assert sorted(map(bool, await asyncio.gather(world.gate.room(), world.gate.room()))) == [False, True]


async def test_unreadable_lag_does_not_block_forever() -> None:
    world = World()
    await world.rooms(1)
    world.lag[MESSAGES] = 500  # an aborted transaction
    looks = round(COUNT_SECONDS / LOOK_SECONDS)
    assert await world.rooms(looks - 1) == [0] * (looks - 1)
    for _ in range(looks):  # other partitions go on meanwhile
        world.lag[MESSAGES] += 1
        if await world.rooms(1) != [0]:
            return
    raise AssertionError


async def test_summarizer_outage_blocks_all_bursts() -> None:
    world = World()
    world.lag[EPISODES] = world.readable[EPISODES] = 500
    assert not any(await world.rooms(round(3 * COUNT_SECONDS / LOOK_SECONDS)))


async def test_nothing_is_sent_while_kafka_is_silent() -> None:
    world = World()
    world.is_away = True
    assert await world.rooms(1) == [0]
    world.is_away = False
    assert await world.rooms(1) == [1]
