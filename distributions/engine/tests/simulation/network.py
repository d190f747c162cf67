"""Calls to the outside, each of which waits until somebody decides what becomes of it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from aiokafka.errors import KafkaConnectionError

from distributions.engine.tests.simulation.loop import Loop


class Process(Protocol):
    """Process that makes calls: it may be dead, and it may be frozen."""

    dead: bool
    frozen: bool


@dataclass(eq=False)
class Call:
    """One call that was made and not yet answered."""

    process: Process | None
    """None: the broker's own doing."""
    name: str
    effect: Callable[[], Any]
    """Effect on the other side; its result is the answer."""
    answer: asyncio.Future[Any]
    writes: bool
    ready: Callable[[], bool] | None = None
    """Condition under which it is answered, when nothing is wrong."""
    deadline: float | None = None
    """Time from which the answer is None."""

    def can_be_answered(self) -> bool:
        if self.process is not None and self.process.frozen:
            return False
        return self.ready is None or self.ready()


class Network:
    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.pending: list[Call] = []
        """Pending calls in the order in which they were made."""
        self.late: list[Call] = []
        """Nobody waits for the answer any more: they may still arrive, whenever it suits least."""

    async def call(
        self,
        process: Process,
        name: str,
        effect: Callable[[], Any],
        *,
        writes: bool = False,
        ready: Callable[[], bool] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Raises: KafkaConnectionError, whatever the effect raises."""
        if process.dead:
            raise KafkaConnectionError("the process is dead")
        deadline = None if timeout is None else self.loop.time() + timeout
        made = Call(process, name, effect, self.loop.create_future(), writes, ready, deadline)
        self.pending.append(made)
        try:
            return await made.answer
        except asyncio.CancelledError:
            self._given_up(made)
            raise

    def post(self, name: str, effect: Callable[[], Any], ready: Callable[[], bool] | None = None) -> None:
        """Something that the broker, or another service, will do by itself."""
        self.pending.append(Call(None, name, effect, self.loop.create_future(), writes=True, ready=ready))

    # -- what becomes of a call

    def deliver(self, call: Call) -> None:
        """The other side does it, and the answer arrives."""
        self.pending.remove(call)
        try:
            result = call.effect()
        except Exception as error:  # noqa: BLE001 – whatever the other side says is the caller's to handle
            _fail(call, error)
        else:
            _succeed(call, result)

    def fail(self, call: Call, error: Exception, *, after: bool) -> None:
        """`after`: it was done, and only the answer is lost."""
        self.pending.remove(call)
        if after:
            _done_silently(call)
        _fail(call, error)

    def expire(self, call: Call) -> None:
        self.pending.remove(call)
        _succeed(call, None)

    def arrive(self, call: Call) -> None:
        """Apply one of the late calls."""
        self.late.remove(call)
        _done_silently(call)

    def do_now(self, call: Call) -> None:
        """The other side does it; the answer is lost with the process that waits for it."""
        self.pending.remove(call)
        _done_silently(call)

    def _given_up(self, call: Call) -> None:
        if call in self.pending:
            self.pending.remove(call)
            if call.writes:
                self.late.append(call)

    # -- the usual course of things

    def next_call(self) -> Call | None:
        """The oldest that can be answered."""
        return next((call for call in self.pending if call.can_be_answered()), None)

    def next_deadline(self) -> float | None:
        waiting = (
            call.deadline
            for call in self.pending
            if call.deadline is not None and not (call.process is not None and call.process.frozen)
        )
        return min(waiting, default=None)

    def step(self) -> None:
        """One call is answered or, when none can be, time passes until something happens."""
        call = self.next_call()
        if call is not None:
            self.deliver(call)
        else:
            self.pass_time()
        self.loop.run_ready()

    def pass_time(self) -> None:
        moments = [moment for moment in (self.next_deadline(), self.loop.next_timer()) if moment is not None]
        if not moments:
            return
        now = min(moments)
        self.loop.pass_until(now)
        for call in [call for call in self.pending if call.deadline is not None and call.deadline <= now]:
            if call.process is None or not call.process.frozen:
                self.expire(call)


def _succeed(call: Call, result: Any) -> None:
    if not call.answer.done():
        call.answer.set_result(result)


def _fail(call: Call, error: Exception) -> None:
    if not call.answer.done():
        call.answer.set_exception(error)
        call.answer.exception()  # the caller may be gone


def _done_silently(call: Call) -> None:
    with suppress(Exception):  # nobody hears what the other side says
        call.effect()
