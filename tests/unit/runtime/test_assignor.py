"""Shares of a group's members: whole, balanced, the same whoever leads, and as little moves as balance allows."""

from collections.abc import Callable, Collection, Mapping
from itertools import product
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from hypothesis import example, given
from hypothesis import strategies as st

from afterword.streams.runtime.assignor import (
    MemberClaim,
    StickyAssignor,
    held_back,
    read_claim,
    shares,
    standby_shares,
)

TOPICS = ("a", "b")
Shares = Mapping[str, list[TopicPartition]]

sizes = st.fixed_dictionaries({topic: st.integers(0, 12) for topic in TOPICS})
sources = st.builds(TopicPartition, st.sampled_from((*TOPICS, "gone")), st.integers(0, 14))
claims = st.builds(
    MemberClaim,
    topics=st.frozensets(st.sampled_from(TOPICS), min_size=1),
    owned=st.frozensets(sources, max_size=12),
    generation=st.integers(-1, 3),
)
groups = st.dictionaries(st.sampled_from("vwxyz"), claims, min_size=1)


def numbered(partitions: Mapping[str, int]) -> dict[str, set[int]]:
    return {topic: set(range(number)) for topic, number in partitions.items()}


def of_topic(found: Shares, topic: str) -> dict[str, set[TopicPartition]]:
    return {member: {source for source in share if source.topic == topic} for member, share in found.items()}


@given(sizes, groups)
def test_every_partition_that_is_read_has_one_owner_and_shares_differ_by_one_at_most(
    partitions: dict[str, int], members: dict[str, MemberClaim]
) -> None:
    found = shares(numbered(partitions), members)
    assert found.keys() == members.keys()
    for topic in TOPICS:
        readers = [member for member, claim in members.items() if topic in claim.topics]
        owned = of_topic(found, topic)
        assert sorted(source.partition for share in owned.values() for source in share) == (
            list(range(partitions[topic])) if readers else []
        )
        had = [len(owned[member]) for member in readers]
        assert not had or max(had) - min(had) <= 1
        assert all(not owned[member] for member in members.keys() - set(readers))


@given(sizes, groups)
def test_the_shares_depend_on_no_order_of_members_or_partitions(
    partitions: dict[str, int], members: dict[str, MemberClaim]
) -> None:
    turned = {topic: sorted(numbers, reverse=True) for topic, numbers in reversed(numbered(partitions).items())}
    assert shares(turned, dict(reversed(members.items()))) == shares(numbered(partitions), members)


@given(st.integers(0, 6), st.dictionaries(st.sampled_from("xyz"), st.frozensets(st.integers(0, 6)), min_size=1))
@example(5, {"x": frozenset(range(5)), "y": frozenset(), "z": frozenset()})
def test_no_other_balanced_assignment_moves_less(number: int, owned: dict[str, frozenset[int]]) -> None:
    """Compared with every assignment there is."""
    members = {
        member: MemberClaim(
            frozenset("a"), frozenset(TopicPartition("a", partition) for partition in numbers), generation
        )
        for generation, (member, numbers) in enumerate(owned.items())
    }
    last: dict[int, str] = {}
    for member, numbers in owned.items():
        last |= dict.fromkeys(numbers, member)

    def kept(owners: tuple[str, ...]) -> int:
        return sum(last.get(partition) == owner for partition, owner in enumerate(owners))

    def is_balanced(owners: tuple[str, ...]) -> bool:
        had = [owners.count(member) for member in members]
        return max(had) - min(had) <= 1

    found = shares({"a": range(number)}, members)
    ours = {source.partition: member for member, share in found.items() for source in share}
    best = max(kept(owners) for owners in product(sorted(members), repeat=number) if is_balanced(owners))
    assert kept(tuple(ours[partition] for partition in range(number))) == best


def test_one_worker_more_or_less_moves_its_share_and_nothing_else() -> None:
    """32 partitions, from four to five workers and back: by turns 26 of them would move."""
    group = Group(a=32)
    before = group.rebalance("one", "two", "three", "four")
    joined = group.rebalance("one", "two", "three", "four", "five")
    assert moved(before, joined) == 6
    left = group.rebalance("one", "two", "three", "four")
    assert moved(joined, left) == 6


@given(sizes, st.lists(st.frozensets(st.sampled_from("vwxyz"), min_size=1), min_size=2, max_size=8))
def test_over_many_generations_nobody_loses_more_than_balance_asks_for(
    partitions: dict[str, int], generations: list[frozenset[str]]
) -> None:
    group = Group(**partitions)
    before: Shares = {}
    for members in generations:
        after = group.rebalance(*members)
        for topic, number in partitions.items():
            least = number // len(members)
            for member, share in of_topic(before, topic).items():
                if member in after:
                    kept = share & of_topic(after, topic)[member]
                    assert len(kept) >= min(len(share), least)
        assert all(group.members[member].unbroken == (member in before) for member in members)
        before = after


def test_a_member_that_missed_an_assignment_is_told_so_and_claims_less_than_one_that_did_not() -> None:
    group = Group(a=2)
    group.rebalance("one")
    group.rebalance("two")
    assert group.rebalance("one", "two") == {"two": [TopicPartition("a", 0)], "one": [TopicPartition("a", 1)]}
    assert not group.members["one"].unbroken
    assert group.members["two"].unbroken
    group.rebalance("one", "two")
    assert group.members["one"].unbroken


def test_members_of_an_earlier_version_are_understood_and_understand() -> None:
    """A rolling upgrade, with a leader of each version."""
    group = Group(a=6)
    group.rebalance("one", "two")
    mixed = group.rebalance("one", "two", earlier={"old"})
    assert {member: len(share) for member, share in mixed.items()} == {"one": 2, "two": 2, "old": 2}
    assert group.members["one"].unbroken
    by_turns = group.rebalance("one", "two", earlier={"old"}, leader="old")
    assert {member: len(share) for member, share in by_turns.items()} == {"one": 2, "two": 2, "old": 2}
    after = group.rebalance("one", "two")
    assert set(by_turns["one"]) <= set(after["one"])
    assert set(by_turns["two"]) <= set(after["two"])


@given(st.one_of(st.binary(), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(repr).map(str.encode)))
@example(b'{"generation": -2, "owned": {"a": ["x", 1.5, 3]}}')
@example(b'{"generation": 99999999999999999, "owned": {"a": 3}}')
@example(b'{"generation": "1", "owned": [["a", 3]]}')
@example(b"[]")
def test_whatever_another_member_says_of_itself_is_read_or_left(said: bytes) -> None:
    claim = read_claim(ConsumerProtocolMemberMetadata(0, ["a"], said))
    assert claim.topics == {"a"}
    assert -1 <= claim.generation < 2**31
    assert claim.owned <= {TopicPartition("a", 3)}


standing = st.dictionaries(sources, st.integers(-1, 50), max_size=12)
with_standbys = st.dictionaries(
    st.sampled_from("vwxyz"),
    st.builds(
        MemberClaim,
        topics=st.frozensets(st.sampled_from(TOPICS), min_size=1),
        owned=st.frozensets(sources, max_size=6),
        generation=st.integers(-1, 3),
        standbys=st.integers(0, 2),
        standing=standing,
        opening=st.frozensets(sources, max_size=4),
    ),
    min_size=1,
)


@given(sizes, with_standbys)
def test_every_partition_has_as_many_standbys_as_are_wanted_and_possible_and_never_its_owner(
    partitions: dict[str, int], members: dict[str, MemberClaim]
) -> None:
    owned = shares(numbered(partitions), members)
    found = standby_shares(owned, members)
    wanted = max(claim.standbys for claim in members.values())
    for owner, sources_of in owned.items():
        for source in sources_of:
            holders = [member for member, share in found.items() for other in share if other == source]
            able = [m for m, c in members.items() if c.standbys and source.topic in c.topics and m != owner]
            assert set(holders) <= set(able)
            assert len(holders) == len(set(holders)) == min(wanted, len(able))
    turned = {member: list(reversed(share)) for member, share in reversed(owned.items())}
    assert standby_shares(turned, dict(reversed(members.items()))) == found


@given(sizes, groups)
def test_without_standbys_nothing_is_different(partitions: dict[str, int], members: dict[str, MemberClaim]) -> None:
    owned = shares(numbered(partitions), members)
    assert not any(standby_shares(owned, members).values())
    for name in members:
        assert b"stand" not in StickyAssignor(lambda: 3).metadata([name]).user_data


def test_a_partition_without_an_owner_goes_to_the_standby_that_is_furthest() -> None:
    def claim(*owned: int, **at: int) -> MemberClaim:
        standing = {TopicPartition("a", int(number[1:])): offset for number, offset in at.items()}
        return MemberClaim(frozenset("a"), frozenset(TopicPartition("a", n) for n in owned), 1, 2, standing)

    survivors = {"x": claim(0, p2=70, p3=50), "y": claim(1, p2=60, p3=60)}
    assert shares({"a": range(4)}, survivors) == {
        "x": [TopicPartition("a", 0), TopicPartition("a", 2)],
        "y": [TopicPartition("a", 1), TopicPartition("a", 3)],
    }
    newer = {"w": claim(), **survivors}
    assert {source.partition for source in shares({"a": range(3)}, newer)["w"]} == {2}, "balance comes first"


def test_standbys_are_spread_so_that_all_take_over_when_one_is_gone_and_stay_where_they_are() -> None:
    """32 partitions, five workers: the partitions of the lost one are opened by standbys."""
    names = ("one", "two", "three", "four", "five")
    group = Group(standbys=1, a=32)
    group.rebalance(*names)
    had = group.standbys()
    assert all(5 <= len(sources) <= 7 for sources in had.values())
    assert group.rebalance(*names)
    assert group.standbys() == had, "nothing moves without a reason"
    before = {name: frozenset(group.members[name]._owned) for name in names}
    after = group.rebalance(*names[:4])
    taken = {name: set(after[name]) - before[name] for name in names[:4]}
    assert sum(map(len, taken.values())) == len(before["five"])
    ready = sum(len(sources & had[name]) for name, sources in taken.items())
    assert ready >= len(before["five"]) - 1
    settled = group.standbys()
    group.rebalance(*names)
    joined = group.standbys()
    moved_ones = sum(len(sources - settled.get(name, set())) for name, sources in joined.items())
    assert moved_ones <= 7 + 6 + 1, "to the one that joined, and for the partitions that it has taken over"


@given(sizes, with_standbys)
def test_a_partition_waits_at_who_has_its_state_for_a_member_that_has_not(
    partitions: dict[str, int], members: dict[str, MemberClaim]
) -> None:
    target = shares(numbered(partitions), members)
    now, later = held_back(target, numbered(partitions), members)
    before = {source: member for member, share in target.items() for source in share}
    assert sorted(source for share in now.values() for source in share) == sorted(before)
    for member, share in now.items():
        for source in share:
            heir = before[source]
            assert (source in later[heir]) == (heir != member)
            if heir != member:
                owner = members[member]
                assert source in owner.owned - owner.opening or owner.standing[source] >= 0
                assert members[heir].standbys
                assert members[heir].standing.get(source, -1) < 0
            elif members[heir].standbys and source not in members[heir].owned | members[heir].standing.keys():
                assert not any(source.topic in claim.topics and claim.has_state(source) for claim in members.values())
    assert held_back(dict(reversed(target.items())), numbered(partitions), dict(reversed(members.items()))) == (
        now,
        later,
    )


@given(
    st.integers(1, 12),
    st.integers(1, 2),
    st.lists(st.frozensets(st.sampled_from("vwxyz"), min_size=1), min_size=2, max_size=6),
)
def test_workers_come_and_go_and_state_is_where_work_goes_on_until_all_is_balanced(
    number: int, standbys: int, generations: list[frozenset[str]]
) -> None:
    group = Group(standbys=standbys, a=number)
    before: Shares = {}
    for members in generations:
        for name in group.members.keys() - members:
            del group.members[name]  # with its disk
        state = {name: frozenset(before.get(name, ())) | group.standing(name) for name in members}
        after = group.rebalance(*members)
        for name, share in after.items():
            for source in share:
                assert source in state[name] or not any(source in held for held in state.values())
        rounds = 0
        while any(group.members[name].warming for name in members):
            after = group.rebalance(*members)
            rounds += 1
        assert rounds <= 2
        sizes_now = [len(share) for share in after.values()]
        assert max(sizes_now) - min(sizes_now) <= 1
        before = after


def test_a_worker_that_replaces_a_dead_one_at_once_gets_partitions_when_it_has_their_state() -> None:
    """Before, it replayed all of it while the standby looked on."""
    group = Group(standbys=1, a=4)
    for _ in range(3):
        settled = group.rebalance("one", "two")
    assert {len(share) for share in settled.values()} == {2}
    joined = group.rebalance("two", "three")
    assert (len(joined["two"]), joined["three"]) == (4, [])
    assert group.members["three"].warming == set(settled["one"])
    assert [len(share) for share in group.rebalance("two", "three").values()] == [2, 2]
    assert not group.members["three"].warming


def test_workers_that_start_together_without_any_state_share_the_replay() -> None:
    """The first one has all partitions, and opens them: nobody waits for it to replay everything alone."""
    group = Group(standbys=1, a=6)
    group.opening = {"one", "two"}
    group.rebalance("one")
    assert {len(share) for share in group.rebalance("one", "two").values()} == {3}
    assert not group.members["two"].warming
    group.opening = set()
    assert len(group.rebalance("one", "two", "three")["three"]) == 0
    assert len(group.members["three"].warming) == 2


def test_standbys_of_one_owner_are_spread_over_the_others() -> None:
    names = [f"worker {number}" for number in range(4)]
    members = {name: MemberClaim(frozenset("a"), standbys=1) for name in names}
    owned = {name: [TopicPartition("a", 3 * place + n) for n in range(3)] for place, name in enumerate(names)}
    found = standby_shares(owned, members)
    for owner in names:
        held = [sum(source in owned[owner] for source in found[name]) for name in names if name != owner]
        assert held == [1, 1, 1], f"{owner}: nobody takes over all that it leaves"


def test_what_a_worker_loses_in_a_rebalance_is_its_standby() -> None:
    group = Group(standbys=1, a=4)
    group.rebalance("one")
    group.rebalance("one", "two")
    assert group.standbys()["one"] == group.members["two"]._owned


@given(st.binary())
@example(b'{"owned": {}, "standbys": 7, "standing": {"a": [3, [1], [1, 2, 3], ["x", 1]]}}')
@example(b'{"owned": {}, "standbys": "1", "standing": {"a": 3}}')
@example(b'{"owned": {}, "standing": []}')
def test_whatever_another_member_says_of_its_standbys_is_read_or_left(said: bytes) -> None:
    claim = read_claim(ConsumerProtocolMemberMetadata(0, ["a"], said))
    assert (claim.standbys, claim.standing) == (0, {})
    member = StickyAssignor(lambda: 1, standbys=1)
    member.on_assignment(ConsumerProtocolMemberAssignment(0, [], said))
    assert member.standbys == frozenset()


def test_a_topic_that_is_not_there_stops_nobody() -> None:
    assert Group(a=1).rebalance("one") == {"one": [TopicPartition("a", 0)]}
    assert Group().rebalance("one") == {"one": []}


def test_the_claim_of_many_partitions_stays_small() -> None:
    group = Group(a=372)
    group.rebalance("one")
    assert len(group.members["one"].metadata(["a"]).user_data) < 2000


class Group:
    """A consumer group of which everybody encodes and decodes what it says, as on the wire."""

    def __init__(self, *, standbys: int = 0, **partitions: int) -> None:
        self.members: dict[str, StickyAssignor] = {}
        self.opening: set[str] = set()
        """Members that have opened nothing yet."""
        self._generation = 0
        self._wanted = standbys
        self._cluster = SimpleNamespace(partitions_for_topic=lambda topic: set(range(partitions.get(topic, 0))))

    def rebalance(self, *members: str, earlier: Collection[str] = (), leader: str = "") -> Shares:
        self._generation += 1
        for name in members:
            if name not in self.members:
                self.members[name] = StickyAssignor(
                    lambda: self._generation, self._wanted, self._standing(name), self._held(name)
                )
        said = {name: self.members[name].metadata(TOPICS) for name in members}
        said |= {name: RoundRobinPartitionAssignor.metadata(TOPICS) for name in earlier}
        heard = {name: ConsumerProtocolMemberMetadata.decode(one.encode()) for name, one in said.items()}
        leading: Any = RoundRobinPartitionAssignor if leader in earlier else self.members[min(members)]
        found: dict[str, list[TopicPartition]] = {}
        for name, assignment in leading.assign(self._cluster, heard).items():
            told = ConsumerProtocolMemberAssignment.decode(assignment.encode())
            found[name] = sorted(told.partitions())
            if name not in earlier:
                self.members[name].on_assignment(told)
        self._joined = members
        return found

    def standbys(self) -> dict[str, set[TopicPartition]]:
        """Standbys of each member that was in the last generation."""
        return {name: set(self.members[name].standbys) for name in self._joined}

    def standing(self, name: str) -> frozenset[TopicPartition]:
        """Partitions of which the member has caught up as a standby."""
        return self.members[name].standbys if name in self.members else frozenset()

    def _held(self, name: str) -> Callable[[], frozenset[TopicPartition]]:
        return lambda: frozenset() if name in self.opening else self.members[name]._owned

    def _standing(self, name: str) -> Callable[[], dict[TopicPartition, int]]:
        return lambda: dict.fromkeys(self.members[name].standbys, 9)


def moved(before: Shares, after: Shares) -> int:
    owners = {source: member for member, share in before.items() for source in share}
    return sum(owners[source] != member for member, share in after.items() for source in share)
