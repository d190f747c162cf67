"""The committed offsets of a group whose coordinator has just started."""

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError
from aiokafka.structs import OffsetAndMetadata

from afterword.streams.kafka import committed_offsets

OFFSETS = {TopicPartition("messages", 0): OffsetAndMetadata(7, "")}
LOADING, REFUSED = 14, 30


class Coordinator:
    """Admin client of a broker that says of its groups what it has read so far."""

    def __init__(self, offsets: dict[TopicPartition, OffsetAndMetadata], errors: list[int]) -> None:
        self._offsets = offsets
        self._errors = errors
        """Of the next descriptions, one after the other."""

    async def list_consumer_group_offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        return {} if self._errors else dict(self._offsets)

    async def describe_consumer_groups(self, group_ids: list[str]) -> list[Any]:
        error = self._errors.pop(0) if self._errors else 0
        return [SimpleNamespace(groups=[(error, group_id, "Empty", "consumer", "", [])]) for group_id in group_ids]


@pytest.mark.parametrize("errors", [[], [LOADING], [LOADING] * 3])
async def test_offsets_are_awaited_while_the_coordinator_reads_them(errors: list[int]) -> None:
    assert await committed_offsets(Coordinator(OFFSETS, errors), "g") == OFFSETS  # type: ignore[arg-type]


async def test_a_group_without_offsets_has_none() -> None:
    assert await committed_offsets(Coordinator({}, []), "g") == {}  # type: ignore[arg-type]


async def test_what_may_not_be_asked_is_an_error() -> None:
    with pytest.raises(GroupAuthorizationFailedError):
        await committed_offsets(Coordinator(OFFSETS, [REFUSED]), "g")  # type: ignore[arg-type]
