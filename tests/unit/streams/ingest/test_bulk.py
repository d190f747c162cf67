"""How many bulk records go on."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from itertools import count
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError

from afterword.streams.ingest.agent import SEEN_SECONDS, BulkGate
from afterword.streams.settings import load_settings

SETTINGS = load_settings(ingest={"bulk_lag": 100})
MESSAGES, EPISODES = SETTINGS.kafka.messages_topic, SETTINGS.kafka.episodes_topic


class Log:
    """Lag and readable records of each topic."""

    def __init__(self) -> None:
        self.found = {MESSAGES: (0, 0), EPISODES: (0, 0)}
        self.is_away = False

    async def ends(self, topic: str) -> dict[TopicPartition, int]:
        if self.is_away:
            raise KafkaConnectionError
        return {}

    async def lags(self, group_id: str, topic: str, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {TopicPartition(topic, 0): self.found[topic][0]}

    async def unread(self, group_id: str, topic: str, ends: Any) -> AsyncGenerator[Any, None]:
        for number in range(self.found[topic][1]):
            yield number


@pytest.mark.parametrize(
    ("messages", "episodes", "room"),
    [
        ((0, 0), (0, 0), 100),
        ((8, 0), (8, 0), 100),  # marks of transactions only
        ((60, 60), (0, 0), 40),
        ((0, 0), (7, 4), 60),
        ((30, 30), (4, 4), 30),
        ((101, 101), (0, 0), 0),
        ((0, 0), (10, 10), 0),
        ((5000, 5000), (0, 0), 0),
    ],
)
async def test_as_many_go_on_as_segmenter_and_summarizer_may_be_behind(
    messages: tuple[int, int], episodes: tuple[int, int], room: int
) -> None:
    log = Log()
    log.found = {MESSAGES: messages, EPISODES: episodes}
    assert await BulkGate(log, SETTINGS).room() == room


async def test_nothing_follows_until_what_went_on_is_lag() -> None:
    now = 0.0
    gate = BulkGate(Log(), SETTINGS, lambda: now)
    assert [await gate.room() for _ in range(2)] == [100, 0]
    now = SEEN_SECONDS
    assert await asyncio.gather(gate.room(), gate.room()) == [100, 0]


async def test_lag_that_nobody_will_read_holds_nothing_up_for_ever() -> None:
    log = Log()
    log.found[MESSAGES] = (500, 0)  # an aborted transaction
    gate = BulkGate(log, SETTINGS, count(step=SEEN_SECONDS).__next__)
    assert [await gate.room() for _ in range(2)] == [0, 100]


async def test_while_kafka_does_not_say_nothing_goes_on() -> None:
    log = Log()
    log.is_away = True
    gate = BulkGate(log, SETTINGS, count(step=SEEN_SECONDS).__next__)
    assert await gate.room() == 0
    log.is_away = False
    assert await gate.room() == 100
