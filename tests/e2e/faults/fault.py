"""Kinds of faults. To add one, add a class in `tests/e2e/faults/kinds` and name it in its list."""

import random
from collections.abc import Mapping
from typing import Any, ClassVar

from afterword.streams.roles import ALWAYS_RUN
from tests.e2e.faults.world import World


class Fault:
    """One kind of fault. `inject` breaks something once and repairs it. The assertions are there and in `check`."""

    name: ClassVar[str]
    settings: ClassVar[Mapping[str, Any]] = {}
    """Settings of the deployment, section by section."""
    roles: ClassVar[tuple[str, ...]] = ALWAYS_RUN
    workers: ClassVar[Mapping[str, int]] = {}
    """Number of workers at the start, for roles with more than one."""
    brokers: ClassVar[int] = 1
    company: ClassVar[str] = ""
    """Kinds with the same name share a deployment in the short form, one after the other."""
    counted: ClassVar[bool] = True
    """Whether the topic has only the load's records."""
    share: ClassVar[float] = 60.0
    """Seconds of injections in the long form of twenty minutes; more when `at_least` takes longer."""
    times: ClassVar[int] = 1
    """Number of injections in the short form."""
    at_least: ClassVar[int] = 1
    """Minimum number of injections in the long form."""
    pause_seconds: ClassVar[tuple[float, float]] = (0.5, 2.0)
    """Shortest and longest pause between two injections."""

    def __init__(self) -> None:
        self.injected = 0
        self.strays = 0
        """Number of records that damage may have moved to another conversation, which nobody flushes."""
        self.notes: list[str] = []
        """Notes for the table, such as measurements."""

    async def inject(self, world: World, chance: random.Random) -> None:
        raise NotImplementedError

    async def check(self, world: World) -> None:
        """Check the outcome once everything is quiet. Raises: AssertionError with what does not hold."""
