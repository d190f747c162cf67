"""The promise holds while members of groups and clusters come and go: the short form. SEED is fixed."""

from pathlib import Path

import pytest

from tests.e2e.faults.short import report, servers_for, short_run

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("company", ["members", "cluster"])
async def test_nothing_is_lost_or_made_twice_whoever_comes_and_goes(company: str, tmp_path: Path) -> None:
    async with servers_for(company, tmp_path / "stack") as servers:
        result = await short_run(company, servers, tmp_path)
    assert result.clean, report(result)
    assert all(fault.injected for fault in result.faults)
