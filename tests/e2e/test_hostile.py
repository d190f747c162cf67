"""The short form of `make hostile`: each kind of hostile input once, into one deployment that is at work."""

from pathlib import Path

import pytest

from tests.e2e.faults.kinds.hostile import HOSTILE
from tests.e2e.faults.report import details, hostile_table
from tests.e2e.faults.run import Form
from tests.e2e.faults.short import HOSTILE_RATE, SEED, attacked

pytestmark = pytest.mark.timeout(1800)  # a minute where nothing else runs, ten on a busy machine


async def test_hostile_input_stops_loses_and_grows_nothing(tmp_path: Path) -> None:
    result = await attacked(tmp_path, HOSTILE, Form(SEED, HOSTILE_RATE, hostile=True))
    assert result.clean, "\n".join([f"SEED={SEED}", *hostile_table(result), *details(result)])
    assert all(kind.injected for kind in result.faults)
