"""A state machine in which anything may happen to any worker. Then everything settles, and the result is checked."""

from typing import Any, ClassVar

from aiokafka.errors import KafkaConnectionError, NotLeaderForPartitionError, ProducerFenced, RequestTimedOutError
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from distributions.engine.tests.simulation.network import Call
from distributions.engine.tests.simulation.process import AGENT, Process

WORKERS = 3
MOST_STEPS_TO_A_MOMENT = 40
MOST_WAITS = 3
MOST_STEPS = 3000
"""If everything is not quiet after this many steps, a worker is stuck."""
DRAIN_SECONDS = 10.0
MOVES_BEFORE_QUIET = 12

workers = st.integers(0, WORKERS - 1)
steps = st.integers(0, 12)
errors = st.sampled_from([KafkaConnectionError, NotLeaderForPartitionError, ProducerFenced, RequestTimedOutError])
fates = st.sampled_from(["dropped", "done", "late"])

Moment = int | str
"""Number of steps, or the name of a call that is about to be answered."""


def moments(*calls: str) -> st.SearchStrategy[Moment]:
    return st.one_of(steps, st.sampled_from(calls), st.sampled_from(calls))


when_it_suits_least = st.runner().flatmap(lambda machine: machine.moments)


class FaultMachine(RuleBasedStateMachine):
    """`told` counts the finished histories of each machine."""

    told: ClassVar[int] = 0
    moments: ClassVar[st.SearchStrategy[Moment]] = steps

    @initialize()
    def begin(self) -> None:
        self.moved = 0
        """Number of moves since everything was last quiet."""
        self.broken = True
        """True if the rest of this history would show nothing new."""
        self.world = self.new_world()
        self.world.take(0)
        self.broken = False

    # -- for whoever inherits

    def new_world(self) -> Any:
        raise NotImplementedError

    def check(self, owner: Any) -> None:
        """Check the outcome once everything is quiet, and `owner` alone has the partition."""
        raise NotImplementedError

    def is_quiet(self, owner: Any) -> bool:
        raise NotImplementedError

    def may_stop(self, error: BaseException) -> bool:
        """Return whether a worker may stop by itself with this error; its supervisor starts it again."""
        return False

    def is_over(self, number: int) -> bool:
        """Return whether the worker that has the partition has nothing left to do."""
        if self.worker(number).dead:
            self.world.take(number)
        return self.is_quiet(self.worker(number))

    def can_fail(self, call: Call) -> bool:
        """Return whether a call can fail. The broker's own work cannot, and neither can an agent's waiting."""
        return call.process is not None and call.name != AGENT

    def error_for(self, call: Call, error: type[Exception]) -> Exception:
        """Return the error that the caller gets instead of an answer."""
        return error()

    # -- the usual course

    @rule(count=st.integers(1, 50))
    def go_on(self, count: int) -> None:
        self.go_on_until(count)

    # -- the network

    @rule(when=when_it_suits_least, which=st.sampled_from([0, 0, 0, 1, 2, 3]), error=errors, after=st.booleans())
    def a_call_fails(self, when: Moment, which: int, error: type[Exception], after: bool) -> None:
        """With `after`, the call has its effect, and only the answer is lost."""
        self.go_on_until(when)
        call = self.pending(which)
        if call is not None and self.can_fail(call):
            self.world.network.fail(call, self.error_for(call, error), after=after)
            self.world.loop.run_ready()

    @rule(when=when_it_suits_least, which=st.integers(1, 5))
    def a_call_overtakes(self, when: Moment, which: int) -> None:
        self.go_on_until(when)
        call = self.pending(which)
        if call is not None and call.can_be_answered():
            self.world.network.deliver(call)
            self.world.loop.run_ready()

    @rule(when=steps, which=st.integers(0, 3), lost=st.booleans())
    def a_late_call_arrives(self, when: Moment, which: int, lost: bool) -> None:
        self.go_on_until(when)
        late = self.world.network.late
        if late and lost:
            late.pop(which % len(late))
        elif late:
            self.world.network.arrive(late[which % len(late)])

    # -- the workers

    @rule(when=when_it_suits_least, number=workers, fate=fates)
    def kill(self, when: Moment, number: int, fate: str) -> None:
        """`fate` decides about its unanswered calls."""
        self.go_on_until(when)
        worker, network = self.worker(number), self.world.network
        if worker.dead:
            return
        if fate == "done":
            for call in [call for call in network.pending if call.process is worker]:
                network.do_now(call)
        self.world.kill(number)
        if fate == "dropped":
            network.late = [call for call in network.late if call.process is not worker]

    @rule(when=when_it_suits_least, number=workers)
    def take(self, when: Moment, number: int) -> None:
        """Assign the partition to a worker; the previous owner may not know it yet."""
        self.go_on_until(when)
        self.world.take(number)

    @rule(when=when_it_suits_least, number=workers, within=st.sampled_from([0.0, DRAIN_SECONDS]))
    def revoke(self, when: Moment, number: int, within: float) -> None:
        self.go_on_until(when)
        worker = self.worker(number)
        if worker.partition is not None and not worker.dead and not is_releasing(worker):
            worker.revoke(self.world.loop, within)

    @rule(when=when_it_suits_least, number=workers, frozen=st.booleans())
    def freeze(self, when: Moment, number: int, frozen: bool) -> None:
        self.go_on_until(when)
        self.worker(number).frozen = frozen

    # -- quiet

    @precondition(lambda self: self.moved >= MOVES_BEFORE_QUIET)
    @rule(number=workers)
    def settle(self, number: int) -> None:
        """Let all workers but one release the partition, read everything, and check the result."""
        self.broken = True
        self.world.broker.slow_down_the_group(False)
        self.world.broker.largest.clear()
        for other in range(WORKERS):
            self.worker(other).frozen = False
            if other != number or self.world.is_outdated(number):
                self.revoke(0, other, DRAIN_SECONDS)
        for call in list(self.world.network.late):
            self.world.network.arrive(call)
        self.run_until(lambda: not any(map(is_releasing, self.world.workers)))
        self.world.take(number)
        self.run_until(lambda: self.is_over(number))
        self.check(self.worker(number))
        self.broken, self.moved = False, 0

    @invariant()
    def no_worker_stopped_by_itself(self) -> None:
        for number, worker in enumerate(self.world.workers if hasattr(self, "world") else ()):
            if worker.error is not None and not worker.dead:
                assert self.may_stop(worker.error), f"{worker.name} stopped: {worker.error!r}"
                self.world.kill(number)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            if not self.broken:
                self.settle(0)
                type(self).told += 1
        finally:
            self.world.close()

    # -- helpers

    def go_on_until(self, moment: Moment) -> None:
        """Let time pass only a few times, because more time changes nothing while nothing else happens."""
        self.moved += 1
        waits = 0
        for _ in range(moment if isinstance(moment, int) else MOST_STEPS_TO_A_MOMENT):
            call = self.world.network.next_call()
            waits += call is None
            if waits > MOST_WAITS or (call is not None and call.name == moment):
                return
            self.world.network.step()

    def run_until(self, done: Any) -> None:
        for _ in range(MOST_STEPS):
            if done():
                return
            self.no_worker_stopped_by_itself()
            self.world.network.step()
        raise AssertionError("does not come to rest")

    def worker(self, number: int) -> Any:
        return self.world.workers[number]

    def pending(self, which: int) -> Call | None:
        """Return pending calls; those that can be answered come first."""
        pending = sorted(self.world.network.pending, key=lambda call: not call.can_be_answered())
        return pending[which % len(pending)] if pending else None


def is_releasing(worker: Process) -> bool:
    return not worker.dead and worker.releasing is not None and not worker.releasing.done()
