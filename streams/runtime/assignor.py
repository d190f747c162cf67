"""Shares of the members of a consumer group: balanced, and nothing moves that need not.

Each member says in its request to join what it was assigned last, and in which generation of the group.

It is offered under the name of Kafka's `roundrobin`, whose members read assignments of any shape and ignore what others
say of themselves: so members of earlier versions, which share out by turns, and of this one work in one group, whoever
leads it. A second name beside that one is no choice: aiokafka 0.14 sends one request to join for each name, the first
with the first name alone, so that each rebalance would be two.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import structlog
from aiokafka import TopicPartition
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

log = structlog.get_logger()

NAME = "roundrobin"
VERSION = 0
UNKNOWN = -1
LAST_GENERATION = 2**31 - 1


@dataclass(frozen=True, slots=True)
class MemberClaim:
    """Topics of a member, and what it was assigned last."""

    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = UNKNOWN
    """Generation of the group in which it was assigned that."""


def shares(
    partitions: Mapping[str, Collection[int]], claims: Mapping[str, MemberClaim]
) -> dict[str, list[TopicPartition]]:
    """Share out the partitions of each topic among the members that read it; return each member's, sorted.

    The shares in one topic differ by one at most, and as few partitions move as that allows. Of two members that claim
    a partition the one of the later generation had it last.
    """
    owners = _owners(partitions, claims)
    found: dict[str, list[TopicPartition]] = {member: [] for member in sorted(claims)}
    for topic, numbers in sorted(partitions.items()):
        readers = [member for member in found if topic in claims[member].topics]
        if not readers:
            continue
        had: dict[str, list[TopicPartition]] = {member: [] for member in readers}
        free: list[TopicPartition] = []
        for source in sorted(TopicPartition(topic, number) for number in numbers):
            had[owners[source]].append(source) if source in owners else free.append(source)
        least, larger = divmod(len(numbers), len(readers))
        # the larger shares go to those that would else lose a partition, then to those with the least so far
        order = sorted(readers, key=lambda member: (len(had[member]) <= least, len(found[member])))
        sizes = {member: least + (place < larger) for place, member in enumerate(order)}
        for member, size in sizes.items():
            free += had[member][size:]
        left = iter(sorted(free))
        for member, size in sizes.items():
            kept = had[member][:size]
            found[member] += [*kept, *(next(left) for _ in range(size - len(kept)))]
    return {member: sorted(sources) for member, sources in found.items()}


def _owners(partitions: Mapping[str, Collection[int]], claims: Mapping[str, MemberClaim]) -> dict[TopicPartition, str]:
    """Return the last owner of each partition that is claimed by a member that reads it."""
    existing = {TopicPartition(topic, number) for topic, numbers in partitions.items() for number in numbers}
    owners: dict[TopicPartition, str] = {}
    for member in sorted(sorted(claims, reverse=True), key=lambda member: claims[member].generation):
        claim = claims[member]
        owners |= {source: member for source in claim.owned & existing if source.topic in claim.topics}
    return owners


class StickyAssignor(AbstractPartitionAssignor):
    """Assignor of one member: it remembers what the member was assigned last.

    `generation`: returns that of the group, as the member knows it.
    """

    name = NAME

    def __init__(self, generation: Callable[[], int]) -> None:
        self._owned: frozenset[TopicPartition] = frozenset()
        self._current = generation
        self._generation = UNKNOWN
        self.unbroken = False
        """The last two assignments are of generations in a row: what is in both was nobody else's in between."""

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Say what this member reads and has."""
        owned: dict[str, list[int]] = {}
        for topic, number in sorted(self._owned):
            owned.setdefault(topic, []).append(number)
        said = orjson.dumps({"generation": self._generation, "owned": owned})
        return ConsumerProtocolMemberMetadata(VERSION, sorted(topics), said)

    def assign(
        self, cluster: Any, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Share out, as the leader. `cluster`: aiokafka's metadata."""
        claims = {member: read_claim(metadata) for member, metadata in members.items()}
        partitions = {}
        for topic in {topic for claim in claims.values() for topic in claim.topics}:
            partitions[topic] = cluster.partitions_for_topic(topic) or set()
            if not partitions[topic]:
                log.warning("topic_without_partitions", stage="engine", topic=topic)
        return {
            member: ConsumerProtocolMemberAssignment(VERSION, _by_topic(share), b"")
            for member, share in shares(partitions, claims).items()
        }

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Remember the assignment."""
        before, self._generation = self._generation, self._current()
        self.unbroken = before != UNKNOWN and self._generation == before + 1
        self._owned = frozenset(assignment.partitions())


def read_claim(metadata: ConsumerProtocolMemberMetadata) -> MemberClaim:
    """Read what a member says; one of an earlier version, or one that cannot be understood, claims nothing."""
    nothing = MemberClaim(frozenset(metadata.subscription))
    try:
        said = orjson.loads(metadata.user_data or b"")
    except orjson.JSONDecodeError:
        return nothing
    owned = said.get("owned") if isinstance(said, dict) else None
    if not isinstance(owned, dict) or not all(isinstance(numbers, list) for numbers in owned.values()):
        return nothing
    sources = [(topic, number) for topic, numbers in owned.items() for number in numbers if isinstance(number, int)]
    generation = said.get("generation")
    if not isinstance(generation, int) or not 0 <= generation <= LAST_GENERATION:
        generation = UNKNOWN
    return MemberClaim(nothing.topics, frozenset(TopicPartition(*source) for source in sources), generation)


def _by_topic(sources: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    found: dict[str, list[int]] = {}
    for topic, number in sources:
        found.setdefault(topic, []).append(number)
    return sorted(found.items())
