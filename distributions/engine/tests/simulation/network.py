"""Calls to other services. Each one waits until the test decides its outcome."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from aiokafka.errors import KafkaConnectionError

from distributions.engine.tests.simulation.loop import Loop


class Process(Protocol):
    """A process that makes calls. It may be dead or frozen."""

    dead: bool
    frozen: bool


@dataclass(eq=False)
class Call:
    """A call that has not been answered yet."""

    process: Process | None
    """The caller; None if the broker acts by itself."""
    name: str
    effect: Callable[[], Any]
    """The effect on the other side. Its result is the answer."""
    answer: asyncio.Future[Any]
    writes: bool
    ready: Callable[[], bool] | None = None
    """Condition under which it is answered if nothing goes wrong."""
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
        """Pending calls, oldest first."""
        self.late: list[Call] = []
        """Calls whose answers nobody waits for. They may still arrive at any moment."""

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
        """Make a call. Raises: KafkaConnectionError, and the errors of the effect."""
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
        """Queue an action that the broker or another service performs by itself."""
        self.pending.append(Call(None, name, effect, self.loop.create_future(), writes=True, ready=ready))

    # -- outcomes of a call

    def deliver(self, call: Call) -> None:
        """Apply the effect and deliver the answer."""
        self.pending.remove(call)
        try:
            result = call.effect()
        except Exception as error:  # noqa: BLE001 – any error of the other side is passed to the caller
            _fail(call, error)
        else:
            _succeed(call, result)

    def fail(self, call: Call, error: Exception, *, after: bool) -> None:
        """Fail a call. With `after`, its effect is applied and only the answer is lost."""
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
        """Apply the effect. The answer is lost with the process that waits for it."""
        self.pending.remove(call)
        _done_silently(call)

    def _given_up(self, call: Call) -> None:
        if call in self.pending:
            self.pending.remove(call)
            if call.writes:
                self.late.append(call)

    # -- when nothing goes wrong

    def next_call(self) -> Call | None:
        """Return the oldest call that can be answered."""
        return next((call for call in self.pending if call.can_be_answered()), None)

    def next_deadline(self) -> float | None:
        waiting = (
            call.deadline
            for call in self.pending
            if call.deadline is not None and not (call.process is not None and call.process.frozen)
        )
        return min(waiting, default=None)

    def step(self) -> None:
        """Answer one call, or if none can be answered, let time pass until something happens."""
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
    with suppress(Exception):  # the answer has no recipient
        call.effect()
