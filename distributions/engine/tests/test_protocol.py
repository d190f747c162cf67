"""Requests for a group's committed offsets while these may still change or are still being loaded."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError
from aiokafka.structs import OffsetAndMetadata

from distributions.engine.tests.simulation.virtual_time import run_in_virtual_time
from faust_eos.kafka import UNSTABLE_OFFSET_COMMIT, Clients, OffsetFetch, committed_offsets

SOURCE = TopicPartition("in", 0)
LOADING, REFUSED = 14, 30
ONE = [("in", [(0, 7, -1, "m", 0, {}), (1, -1, -1, None, 0, {})], {})]


class Coordinator:
    """A coordinator like aiokafka's, whose offset is unstable for some seconds."""

    def __init__(self, seconds: float) -> None:
        self._stable_at = seconds
        self.asked = 0

    async def ensure_coordinator_known(self) -> None: ...

    async def _send_req(self, _: Any) -> Any:
        self.asked += 1
        unstable = asyncio.get_running_loop().time() < self._stable_at
        found = (0, -1, -1, None, UNSTABLE_OFFSET_COMMIT.errno, {}) if unstable else (0, 7, -1, "m", 0, {})
        return SimpleNamespace(error_code=0, topics=[("in", [found], {})])


def asked_for(seconds: float) -> tuple[OffsetAndMetadata | None, int, float]:
    """Return the answer, the number of requests, and the seconds they took."""

    async def story() -> Any:
        coordinator = Coordinator(seconds)
        found = await Clients({}).committed(SimpleNamespace(_coordinator=coordinator), "group", SOURCE)
        return found, coordinator.asked, asyncio.get_running_loop().time()

    result: tuple[OffsetAndMetadata | None, int, float] = run_in_virtual_time(story())
    return result


def test_offset_that_stabilizes_soon_is_read_soon() -> None:
    found, _, seconds = asked_for(0.05)
    assert found == OffsetAndMetadata(7, "m")
    assert seconds < 0.1


def test_unstable_offset_is_polled_less_and_less_often() -> None:
    found, asked, seconds = asked_for(10.0)
    assert found == OffsetAndMetadata(7, "m")
    assert asked < 30
    assert seconds < 10.6


class Admin:
    """An admin client like aiokafka's. The coordinator answers with these errors first, then with these topics."""

    def __init__(self, errors: list[int], topics: list[Any]) -> None:
        self._errors = errors
        self._topics = topics

    async def find_coordinator(self, _: str) -> int:
        return 3

    async def _send_request(self, request: OffsetFetch, node_id: int) -> Any:
        assert (request._asked[:2], node_id) == (("group", None), 3)  # all topics, from the broker that knows them
        error = self._errors.pop(0) if self._errors else 0
        return SimpleNamespace(error_code=error, topics=[] if error else self._topics)


def all_of(errors: list[int], topics: list[Any]) -> dict[TopicPartition, OffsetAndMetadata]:
    found: dict[TopicPartition, OffsetAndMetadata] = asyncio.run(committed_offsets(Admin(errors, topics), "group"))  # type: ignore[arg-type] – a double
    return found


@pytest.mark.parametrize("errors", [[], [LOADING], [LOADING] * 3])
def test_offsets_are_awaited_while_the_coordinator_loads(errors: list[int]) -> None:
    assert all_of(errors, ONE) == {SOURCE: OffsetAndMetadata(7, "m")}


def test_group_without_offsets_has_none() -> None:
    assert all_of([], []) == {}


def test_forbidden_request_is_an_error() -> None:
    with pytest.raises(GroupAuthorizationFailedError):
        all_of([REFUSED], ONE)
