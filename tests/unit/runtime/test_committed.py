"""The question for a group's committed offset, while a transaction may still change it."""

import asyncio
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from aiokafka.structs import OffsetAndMetadata

from afterword.streams.runtime.committed import UNSTABLE_OFFSET_COMMIT, committed
from tests.virtual_time import run_in_virtual_time

SOURCE = TopicPartition("in", 0)


class Coordinator:
    """Coordinator like aiokafka's; the offset is unstable for some seconds."""

    def __init__(self, seconds: float) -> None:
        self._stable_at = seconds
        self.asked = 0

    async def ensure_coordinator_known(self) -> None: ...

    async def _send_req(self, _: Any) -> Any:
        self.asked += 1
        unstable = asyncio.get_running_loop().time() < self._stable_at
        found = (0, -1, -1, None, UNSTABLE_OFFSET_COMMIT, {}) if unstable else (0, 7, -1, "m", 0, {})
        return SimpleNamespace(error_code=0, topics=[("in", [found], {})])


def asked_for(seconds: float) -> tuple[OffsetAndMetadata | None, int, float]:
    """Return the answer, the number of questions, and the seconds until then."""

    async def story() -> Any:
        coordinator = Coordinator(seconds)
        found = await committed(SimpleNamespace(_coordinator=coordinator), "group", SOURCE)
        return found, coordinator.asked, asyncio.get_running_loop().time()

    result: tuple[OffsetAndMetadata | None, int, float] = run_in_virtual_time(story())
    return result


def test_an_offset_that_is_stable_soon_is_there_soon() -> None:
    found, _, seconds = asked_for(0.05)
    assert found == OffsetAndMetadata(7, "m")
    assert seconds < 0.1


def test_the_longer_it_is_unstable_the_more_rarely_it_is_asked_for() -> None:
    found, asked, seconds = asked_for(10.0)
    assert found == OffsetAndMetadata(7, "m")
    assert asked < 30
    assert seconds < 10.6
