"""Everything that can happen to segmenters, their messages, their disks and their changelogs, in any order."""

from typing import Any

from aiokafka.errors import MessageSizeTooLargeError
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from distributions.engine.tests.simulation.process import AGENT
from faust_eos.errors import ChangelogLost, ChangelogReplaced, ChangelogTruncated, StateLost
from tests.model.machine import MOVES_BEFORE_QUIET, WORKERS, FaultMachine, Moment, moments, when_it_suits_least, workers
from tests.model.segmenter_oracle import check, told
from tests.model.segmenting import (
    AGENTS_LIMITS,
    DEAD_LETTERS,
    EPISODES,
    SECOND,
    SOURCE,
    Worker,
    World,
    changelogs,
    copied,
    the_app,
)
from tests.unit.segmenter.chat import Sent, flush, say

HOUR = 3600
IDLE = 61

gaps = st.sampled_from([0, 0, 0, 0, 0, 0, 1, IDLE])
ids = st.sampled_from([0, 0, 0, 0, 0, 0, 1, 2, 5])
"""Distance to the message whose id is used again; 0 stands for a new id."""
kinds = st.sampled_from(["message"] * 8 + ["shift", "flush", "rubbish", "skipped", "large", "other", "other"])
topics = st.sampled_from([EPISODES.topic, DEAD_LETTERS.topic, "conversations", "messages"])
"""The topics that are written, and the tables of the changelogs."""
scopes = st.sampled_from(["a", "a", "a/x", "a/x", "a/y", "a/z", "b", "b", "b/x"])
"""Conversation and agent."""
Said = tuple[str, str, int, int]
one_said = st.tuples(kinds, scopes, ids, gaps)
talk = st.lists(one_said, min_size=1, max_size=8)


FIELDS: dict[str, dict[str, Any]] = {
    "shift": {"is_continuation": False},
    "skipped": {"skip_summarization": True},
    "large": {"content": "word " * 200},
    "other": {"content": "y"},
}
DAMAGED = (StateLost, ChangelogLost, ChangelogReplaced, ChangelogTruncated)


class SegmenterMachine(FaultMachine):
    moments = moments("open", "end_offsets", "committed", "getmany", AGENT, "offsets", "produce", "commit", "marker")

    def __init__(self) -> None:
        super().__init__()
        self.backups: list[Any] = []
        self.ids = 0
        self.at = 0

    def new_world(self) -> World:
        return World(WORKERS)

    def check(self, owner: Worker) -> None:
        check(self.world, owner)

    def is_quiet(self, owner: Worker) -> bool:
        session = owner.partition.session
        if session is None or session.begun:
            return False
        if any(call.process is None for call in self.world.network.pending):
            return False
        deadlines = session.database.next_deadline(), session.database.next_tidying()
        nothing_due = all(deadline is None or deadline > self.world.wall_ms for deadline in deadlines)
        return nothing_due and max(session.database.position.source, 0) >= self.world.source_end()

    # -- the outside

    @rule(when=when_it_suits_least, said=talk, again=st.booleans())
    def produce(self, when: Moment, said: list[Said], again: bool) -> None:
        """With `again`, the producer missed the answer and sends everything again."""
        self.go_on_until(when)
        sent = [self.sent(*one) for one in said]
        self.world.produce(sent + sent if again else sent)

    @rule(when=when_it_suits_least, one=one_said, more=talk)
    def keep_talking(self, when: Moment, one: Said, more: list[Said]) -> None:
        self.produce(0, [one], again=False)
        self.produce(when, more, again=False)

    def sent(self, kind: str, scope: str, back: int, gap: int) -> Sent:
        conversation, _, agent = scope.partition("/")
        self.at += gap
        if kind == "flush":
            return flush(conversation, agent_id=agent)
        if kind == "rubbish":
            return Sent(conversation.encode(), b"{")
        self.ids += not back
        fields = FIELDS.get(kind, {})
        message_id = f"m{max(self.ids - back, 0)}"
        return say(message_id, at=self.at, conversation_id=conversation, agent_id=agent, **fields)

    @rule(when=when_it_suits_least)
    def a_transaction_of_somebody_else_leaves_a_gap(self, when: Moment) -> None:
        """Producers of messages may use transactions too, whose markers take offsets."""
        self.go_on_until(when)
        self.world.broker.log(SOURCE).end += 1

    @rule(when=when_it_suits_least, seconds=st.sampled_from([1, 31, 31, IDLE, HOUR, 13 * HOUR, 25 * HOUR]), said=talk)
    def time_passes_and_somebody_speaks(self, when: Moment, seconds: int, said: list[Said]) -> None:
        self.go_on_until(when)
        self.world.true_ms += seconds * SECOND
        self.produce(0, said, again=False)

    @rule(skew=st.sampled_from([-HOUR, 0, HOUR]))
    def clocks_jump(self, skew: int) -> None:
        self.world.skew_ms = skew * SECOND

    @rule(when=when_it_suits_least)
    def the_coordinator_gives_up_the_transaction(self, when: Moment) -> None:
        self.go_on_until(when)
        self.world.broker.time_out(f"{the_app().conf.id}-{SOURCE.topic}-{SOURCE.partition}")

    @rule(when=when_it_suits_least, slow=st.booleans())
    def the_group_is_slow(self, when: Moment, slow: bool) -> None:
        self.go_on_until(when)
        self.world.broker.slow_down_the_group(slow)

    @rule(number=workers, times=st.integers(1, 3))
    def the_agent_fails(self, number: int, times: int) -> None:
        self.worker(number).trips = times

    def may_stop(self, error: BaseException) -> bool:
        return isinstance(error, MessageSizeTooLargeError)

    # -- limits of topics, and retention

    @rule(when=when_it_suits_least, topic=topics, largest=st.sampled_from([None, None, 0, 500]))
    def records_are_refused(self, when: Moment, topic: str, largest: int | None) -> None:
        """Refuse records with larger values, or accept all again."""
        self.go_on_until(when)
        if largest is None:
            self.world.broker.largest.clear()
        else:
            name = changelogs()[topic].topic if topic in changelogs() else topic
            self.world.broker.largest[name] = largest

    @rule(when=when_it_suits_least, kept=st.integers(1, 4))
    def records_expire(self, when: Moment, kept: int) -> None:
        """Expire records, read or not; the last ones stay."""
        self.go_on_until(when)
        log = self.world.broker.log(SOURCE)
        if records := log.history(0):
            log.delete(records[-kept:][0].offset)

    # -- disks and changelogs

    @rule(number=workers)
    def back_up_the_state(self, number: int) -> None:
        self.backups.append(copied(self.worker(number).disk))

    @rule(number=workers, which=st.integers(0, 5))
    def restore_the_state(self, number: int, which: int) -> None:
        """Start with the state of any worker from any time, or with none."""
        self.kill(0, number, "dropped")
        self.worker(number).disk = copied(self.backups[which]) if which < len(self.backups) else {}
        self.take(0, number)

    @rule(when=when_it_suits_least, hours=st.sampled_from([0, 0, 25]), back=st.sampled_from([0, 0, 5, 30]))
    def changelogs_are_compacted(self, when: Moment, hours: int, back: int) -> None:
        self.go_on_until(when)
        self.world.true_ms += hours * HOUR * SECOND
        for changelog in changelogs().values():
            log = self.world.broker.log(changelog)
            log.compact(log.end - back, self.world.true_ms)


class DamagedMachine(SegmenterMachine):
    """Damages a changelog at some time. From then on a worker may refuse the changelog, but must not trust it."""

    def __init__(self) -> None:
        super().__init__()
        self.damaged = False

    @precondition(lambda self: self.moved >= MOVES_BEFORE_QUIET)
    @rule(when=when_it_suits_least, which=st.sampled_from([(0,), (1,), (0, 1)]), left=st.sampled_from([None, 0, 1, 4]))
    def changelogs_are_damaged(self, when: Moment, which: tuple[int, ...], left: int | None) -> None:
        """Delete all but the last records, or with None delete and recreate the topic."""
        self.go_on_until(when)
        self.damaged = True
        broker, named = self.world.broker, sorted(changelogs().values())
        broker.slow_down_the_group(False)
        for changelog in [named[number] for number in which]:
            if left is None:
                broker.delete_topic(changelog)
            else:
                broker.log(changelog).delete(max(0, broker.log(changelog).stable - left))

    def may_stop(self, error: BaseException) -> bool:
        return super().may_stop(error) or (self.damaged and isinstance(error, DAMAGED))

    def is_over(self, number: int) -> bool:
        return (self.damaged and self.worker(number).dead) or super().is_over(number)

    def check(self, owner: Worker) -> None:
        if self.damaged:
            told(self.world)
        else:
            super().check(owner)


class AgentsMachine(SegmenterMachine):
    """The segmenter's machine with `scope = agent`."""

    def new_world(self) -> World:
        return World(WORKERS, AGENTS_LIMITS)
