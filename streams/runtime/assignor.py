"""Shares of the members of a consumer group: balanced, and nothing moves that need not.

Each member says in its request to join what it was assigned last, in which generation of the group, and how far its
standbys are. A partition whose owner is gone goes to the standby that is furthest, if that has room. With standbys no
partition moves to a member without its state, if another one has it: that one keeps it until the other has caught up.

It is offered under the name of Kafka's `roundrobin`, whose members read assignments of any shape and ignore what others
say of themselves: so members of earlier versions, which share out by turns, and of this one work in one group, whoever
leads it. A second name beside that one is no choice: aiokafka 0.14 sends one request to join for each name, the first
with the first name alone, so that each rebalance would be two.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
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
NOTHING = -2
"""Progress of a member without state of a partition."""
MOST_STANDBYS = 2
LAST_GENERATION = 2**31 - 1


@dataclass(frozen=True, slots=True)
class MemberClaim:
    """Topics of a member, and what it was assigned last."""

    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = UNKNOWN
    """Generation of the group in which it was assigned that."""
    standbys: int = 0
    """Standbys that each partition should have; a member that says 0 is none."""
    standing: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Next source offset of each of its standbys; −1 of one that has not caught up yet."""
    opening: frozenset[TopicPartition] = frozenset()
    """Those of `owned` that it may be replaying from the beginning."""

    def has_state(self, source: TopicPartition) -> bool:
        """Return whether a standby of the partition has caught up."""
        return self.standing.get(source, UNKNOWN) > UNKNOWN


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
        short = [claims[member] for member, size in sizes.items() if len(had[member]) < size]
        for member, size in sizes.items():
            # what is given up first is what another one waits for
            had[member].sort(key=lambda source: any(claim.has_state(source) for claim in short))
            free += had[member][size:]
            del had[member][size:]
        left = iter(_promoted(sorted(free), had, sizes, claims))
        for member, size in sizes.items():
            found[member] += [*had[member], *(next(left) for _ in range(size - len(had[member])))]
    return {member: sorted(sources) for member, sources in found.items()}


def _promoted(
    free: Iterable[TopicPartition],
    had: Mapping[str, list[TopicPartition]],
    sizes: Mapping[str, int],
    claims: Mapping[str, MemberClaim],
) -> list[TopicPartition]:
    """Give the partitions, in order, to the standby that is furthest and has room; return those that have none."""
    left = []
    for source in free:
        ready = [one for one, size in sizes.items() if source in claims[one].standing and len(had[one]) < size]
        if ready:
            had[max(ready, key=lambda one: (claims[one].standing[source], one))].append(source)
        else:
            left.append(source)
    return left


def held_back(
    target: Mapping[str, Iterable[TopicPartition]],
    partitions: Mapping[str, Collection[int]],
    claims: Mapping[str, MemberClaim],
) -> tuple[dict[str, list[TopicPartition]], dict[str, list[TopicPartition]]]:
    """Leave partitions where their state is until the member that is to have them has caught up.

    `target`: the shares. Returns what each member has until then, and of which partitions it is to become the owner.
    """
    owners = _owners(partitions, claims)
    now: dict[str, list[TopicPartition]] = {member: [] for member in target}
    later: dict[str, list[TopicPartition]] = {member: [] for member in target}
    for member, sources in target.items():
        for source in sources:
            holder = _holder(source, member, owners, claims)
            now[holder].append(source)
            if holder != member:
                later[member].append(source)
    return {member: sorted(sources) for member, sources in now.items()}, later


def _holder(
    source: TopicPartition, member: str, owners: Mapping[TopicPartition, str], claims: Mapping[str, MemberClaim]
) -> str:
    """Return who has the partition now that the member is to have: the last owner, or the furthest standby.

    An owner that is opening it may be replaying all of it, as after the loss of all disks: then balance comes first.
    """
    claim, owner = claims[member], owners.get(source)
    if not claim.standbys or claim.has_state(source) or owner == member:
        return member
    if owner is not None and source not in claims[owner].opening:
        return owner
    ready = [one for one, other in claims.items() if source.topic in other.topics and other.has_state(source)]
    return max(ready, key=lambda one: (claims[one].standing[source], one), default=member)


def standby_shares(
    owned: Mapping[str, Collection[TopicPartition]], claims: Mapping[str, MemberClaim]
) -> dict[str, list[TopicPartition]]:
    """Choose the standbys of each partition among the members that keep some, never its owner; return each member's.

    `owned`: the shares. A standby stays where one is, the furthest first, and the last owner of a moved partition is
    one by then. The others go to members with few: of the same owner's partitions first, so that all take over when it
    is gone, then in all.
    """
    wanted = max((claim.standbys for claim in claims.values()), default=0)
    willing = sorted(member for member, claim in claims.items() if claim.standbys)
    owners = {source: member for member in sorted(owned) for source in owned[member]}
    able = {
        source: [member for member in willing if member != owner and source.topic in claims[member].topics]
        for source, owner in sorted(owners.items())
    }
    numbers = {source: min(wanted, len(members)) for source, members in able.items()}
    placed = _Placed(claims, willing, sum(numbers.values()))
    for source, members in able.items():
        for member in sorted(members, key=lambda one: (-_progress(claims[one], source), one)):
            if numbers[source] and _progress(claims[member], source) > NOTHING and placed.has_room(member):
                placed.put(source, owners[source], member)
                numbers[source] -= 1
    for source, members in able.items():
        for _ in range(numbers[source]):
            placed.put(source, owners[source], placed.best(source, owners[source], members))
    return {member: sorted(sources) for member, sources in placed.found.items()}


class _Placed:
    """Standbys that have a place: as many at each member as at the others, if that can be."""

    def __init__(self, members: Iterable[str], willing: Collection[str], total: int) -> None:
        self.found: dict[str, list[TopicPartition]] = {member: [] for member in sorted(members)}
        self._least, self._larger = divmod(total, len(willing)) if willing else (0, 0)
        self._beside: Counter[tuple[str, str]] = Counter()
        """Numbers of standbys by owner of the partition and member."""

    def has_room(self, member: str) -> bool:
        size = len(self.found[member])
        larger = sum(len(sources) > self._least for sources in self.found.values())
        return size < self._least or (size == self._least and larger < self._larger)

    def put(self, source: TopicPartition, owner: str, member: str) -> None:
        self.found[member].append(source)
        self._beside[owner, member] += 1

    def best(self, source: TopicPartition, owner: str, members: Iterable[str]) -> str:
        """Return one of the members, which has none of that partition yet."""
        return min(
            (one for one in members if source not in self.found[one]),
            key=lambda one: (not self.has_room(one), self._beside[owner, one], len(self.found[one]), one),
        )


def _progress(claim: MemberClaim, source: TopicPartition) -> float:
    """Return how far the member's state of the partition is: all the way if it was its owner."""
    return math.inf if source in claim.owned else claim.standing.get(source, NOTHING)


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

    `generation`: returns that of the group, as the member knows it. `standbys`: as of `MemberClaim`. `standing`:
    returns the source offsets of the member's standbys. `held`: returns the partitions whose state it has.
    """

    name = NAME

    def __init__(
        self,
        generation: Callable[[], int],
        standbys: int = 0,
        standing: Callable[[], Mapping[TopicPartition, int]] = dict,
        held: Callable[[], Collection[TopicPartition]] = tuple,
    ) -> None:
        self._owned: frozenset[TopicPartition] = frozenset()
        self._current = generation
        self._generation = UNKNOWN
        self._wanted = standbys
        self._standing = standing
        self._held = held
        self.standbys: frozenset[TopicPartition] = frozenset()
        """Partitions of other members of which this one is to keep a standby."""
        self.warming: frozenset[TopicPartition] = frozenset()
        """Those of the standbys that this one is to own once they have caught up."""
        self.unbroken = False
        """The last two assignments are of generations in a row: what is in both was nobody else's in between."""

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Say what this member reads and has."""
        said: dict[str, Any] = {"generation": self._generation, "owned": dict(_by_topic(sorted(self._owned)))}
        if self._wanted:
            standing: dict[str, list[tuple[int, int]]] = {}
            for (topic, number), offset in sorted(self._standing().items()):
                standing.setdefault(topic, []).append((number, offset))
            opening = dict(_by_topic(sorted(self._owned.difference(self._held()))))
            said |= {"standbys": self._wanted, "standing": standing, "opening": opening}
        return ConsumerProtocolMemberMetadata(VERSION, sorted(topics), orjson.dumps(said))

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
        owned, warming = held_back(shares(partitions, claims), partitions, claims)
        standbys = standby_shares(owned, claims)
        return {
            member: ConsumerProtocolMemberAssignment(
                VERSION, _by_topic(share), _encode_standbys(standbys[member], warming[member])
            )
            for member, share in owned.items()
        }

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Remember the assignment."""
        before, self._generation = self._generation, self._current()
        self.unbroken = before != UNKNOWN and self._generation == before + 1
        self._owned = frozenset(assignment.partitions())
        standbys, warming = read_standbys(assignment) if self._wanted else (frozenset(), frozenset())
        self.standbys = (standbys | warming) - self._owned
        self.warming = warming - self._owned


def read_claim(metadata: ConsumerProtocolMemberMetadata) -> MemberClaim:
    """Read what a member says; one of an earlier version, or one that cannot be understood, claims nothing."""
    nothing = MemberClaim(frozenset(metadata.subscription))
    said = _read_object(metadata.user_data)
    owned = _read_sources(said.get("owned"))
    if owned is None:
        return nothing
    generation = said.get("generation")
    if not isinstance(generation, int) or not 0 <= generation <= LAST_GENERATION:
        generation = UNKNOWN
    standbys = said.get("standbys")
    if not isinstance(standbys, int) or not 0 <= standbys <= MOST_STANDBYS:
        standbys = 0
    standing, opening = _read_standing(said.get("standing")), _read_sources(said.get("opening")) or frozenset()
    return MemberClaim(nothing.topics, owned, generation, standbys, standing, opening)


def read_standbys(
    assignment: ConsumerProtocolMemberAssignment,
) -> tuple[frozenset[TopicPartition], frozenset[TopicPartition]]:
    """Read the standbys of an assignment, and those that are to be owners; a leader of an earlier version has none."""
    said = _read_object(assignment.user_data)
    return _read_sources(said.get("standbys")) or frozenset(), _read_sources(said.get("warming")) or frozenset()


def _encode_standbys(standbys: Iterable[TopicPartition], warming: Iterable[TopicPartition]) -> bytes:
    said = {"standbys": dict(_by_topic(standbys)), "warming": dict(_by_topic(warming))}
    return orjson.dumps(said) if any(said.values()) else b""


def _read_object(user_data: bytes | None) -> dict[str, Any]:
    try:
        said = orjson.loads(user_data or b"")
    except orjson.JSONDecodeError:
        return {}
    return said if isinstance(said, dict) else {}


def _read_sources(said: Any) -> frozenset[TopicPartition] | None:
    """Read numbers by topic; None for anything else."""
    if not isinstance(said, dict) or not all(isinstance(numbers, list) for numbers in said.values()):
        return None
    return frozenset(
        TopicPartition(topic, number)
        for topic, numbers in said.items()
        for number in numbers
        if isinstance(number, int)
    )


def _read_standing(said: Any) -> dict[TopicPartition, int]:
    """Read pairs of number and offset by topic; what is none of these is left out."""
    by_topic = said.items() if isinstance(said, dict) else ()
    found = [(topic, pair) for topic, pairs in by_topic if isinstance(pairs, list) for pair in pairs]
    return {
        TopicPartition(topic, pair[0]): max(UNKNOWN, pair[1])
        for topic, pair in found
        if isinstance(pair, list) and len(pair) == 2 and all(isinstance(number, int) for number in pair)
    }


def _by_topic(sources: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    found: dict[str, list[int]] = {}
    for topic, number in sources:
        found.setdefault(topic, []).append(number)
    return sorted(found.items())
