"""The short form of `make hostile`: each kind of hostile input once, into one deployment that is at work."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.faults.fault import Fault
from tests.e2e.faults.kinds.hostile import HOSTILE, Bytes, Flips, Headers, Overrides, Shapes, Texts, Times
from tests.e2e.faults.report import details, hostile_table
from tests.e2e.faults.run import Form
from tests.e2e.faults.short import HOSTILE_RATE, SEED, attacked

pytestmark = pytest.mark.timeout(1800)  # a minute where nothing else runs, ten on a busy machine

BEFORE_EVERY_CHANGE = (Bytes, Flips, Headers, Times, Shapes, Texts, Overrides)


@pytest.mark.parametrize("kinds", [BEFORE_EVERY_CHANGE, pytest.param(HOSTILE, marks=pytest.mark.nightly)])
async def test_hostile_input_stops_loses_and_grows_nothing(tmp_path: Path, kinds: Sequence[type[Fault]]) -> None:
    result = await attacked(tmp_path, kinds, Form(SEED, HOSTILE_RATE, hostile=True))
    assert result.clean, "\n".join([f"SEED={SEED}", *hostile_table(result), *details(result)])
    assert all(kind.injected for kind in result.faults)
