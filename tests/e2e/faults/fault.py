"""Kinds of faults. To add one, add a class in `tests/e2e/faults/kinds` and name it in its list."""

import math
import random
from collections.abc import Mapping
from typing import Any, ClassVar

from afterword.local.dev import ROLES
from tests.e2e.faults.world import World


class Fault:
    """One kind. `inject` breaks something once and mends it; whatever must hold is asserted there or in `check`."""

    name: ClassVar[str]
    outcome: ClassVar[str]
    """Promised outcome, in a few words."""
    settings: ClassVar[Mapping[str, Any]] = {}
    """Settings of the deployment, section by section."""
    roles: ClassVar[tuple[str, ...]] = ROLES
    workers: ClassVar[Mapping[str, int]] = {}
    """Workers of a role at the start, where it is not one."""
    brokers: ClassVar[int] = 1
    static: ClassVar[bool] = False
    """Workers are static members of their groups, where this kind has a deployment of its own."""
    company: ClassVar[str] = ""
    """Group of kinds that the short form injects into one deployment, one after the other."""
    exact: ClassVar[bool] = True
    """Whether episodes must be exactly those that the rules alone give."""
    counted: ClassVar[bool] = True
    """Whether the topic has only the load's records."""
    changes: ClassVar[bool] = True
    """Messages are edited and deleted meanwhile, and summaries redone; an LLM writes them."""
    recovers: ClassVar[bool] = True
    """Whether the workers continue after it."""
    share: ClassVar[float] = 60.0
    """Seconds of injections in the long form of twenty minutes; more when `at_least` takes longer."""
    times: ClassVar[int] = 1
    """Injections of the short form."""
    at_least: ClassVar[int] = 1
    """Injections of the long form."""
    most: ClassVar[float] = math.inf
    """Injections that one deployment bears."""
    pause_seconds: ClassVar[tuple[float, float]] = (0.5, 2.0)
    """Shortest and longest pause between two injections."""

    def __init__(self) -> None:
        self.injected = 0
        self.strays = 0
        """Records that damage may have given to a conversation of another name, which nobody flushes."""
        self.notes: list[str] = []
        """Measurements."""

    async def skip(self) -> str:
        """Return why it cannot be injected here; empty if it can."""
        return ""

    async def inject(self, world: World, chance: random.Random) -> None:
        raise NotImplementedError

    async def check(self, world: World) -> None:
        """Check the outcome once everything is quiet. Raises: AssertionError with what does not hold."""
