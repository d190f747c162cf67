"""The short form, as the tests run it."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.e2e.faults.fault import Fault
from tests.e2e.faults.kinds import companies
from tests.e2e.faults.llm import faithful
from tests.e2e.faults.run import Form, Result, run
from tests.e2e.faults.world import Servers, serving

SEED = int(os.environ.get("SEED", "1"))
MESSAGES_PER_SECOND = 25.0
HOSTILE_RATE = 15.0
"""Ordinary messages a second beside hostile input."""


@asynccontextmanager
async def servers_for(company: str, directory: Path) -> AsyncIterator[Servers]:
    async with serving(directory, companies()[company][0].brokers) as servers:
        yield servers


async def short_run(company: str, servers: Servers, directory: Path) -> Result:
    """Inject each kind a few times."""
    place = directory / company
    place.mkdir()
    return await run(servers, place, companies()[company], Form(SEED, MESSAGES_PER_SECOND))


async def attacked(directory: Path, kinds: Sequence[type[Fault]], form: Form) -> Result:
    """Send hostile input of these kinds to one working deployment."""
    place = directory / "hostile"
    place.mkdir()
    async with serving(directory / "stack") as servers:
        servers.llm.usual = faithful
        return await run(servers, place, kinds, form)


def report(result: Result) -> str:
    """Return the text to read if the run is not clean."""
    return "\n".join([f"SEED={SEED}", *result.notes, *result.problems])
