"""The promise holds under faults: the short form of most kinds. The long form is `make faults`. SEED is fixed."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.e2e.faults.short import report, servers_for, serving, short_run
from tests.e2e.faults.world import Servers

# a minute each where nothing else runs, ten on a busy machine
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]


@pytest_asyncio.fixture(scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Servers]:
    async with serving(tmp_path_factory.mktemp("faults")) as started:
        yield started


@pytest.mark.parametrize("company", ["workers", "stores", "servers"])
async def test_faults_lose_and_repeat_nothing(company: str, servers: Servers, tmp_path: Path) -> None:
    result = await short_run(company, servers, tmp_path)
    assert result.clean, report(result)
    assert all(fault.injected for fault in result.faults)


async def test_three_brokers_lose_and_repeat_nothing(tmp_path: Path) -> None:
    company = "cluster"
    async with servers_for(company, tmp_path / "stack") as servers:
        result = await short_run(company, servers, tmp_path)
    assert result.clean, report(result)
    assert all(fault.injected for fault in result.faults)
