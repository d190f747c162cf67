"""The example in the engine's README runs unchanged, except for its names."""

import re
import sys
from pathlib import Path

import pytest

from afterword.embedded.process import Process
from tests.integration.engine.lab import ROOT, Lab, until

pytestmark = pytest.mark.nightly

README = ROOT / "distributions" / "engine" / "README.md"


def example(lab: Lab) -> str:
    """Return the first block of code, with the broker and the topics of this test."""
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.S)
    assert found is not None
    names = {"127.0.0.1:9092": lab.brokers, "shop": lab.app_id, "orders": lab.source, "totals": "counts"}
    names["totals-changed"] = lab.output
    script = found[1]
    for name, ours in names.items():
        assert f'"{name}"' in script
        script = script.replace(f'"{name}"', f'"{ours}"')
    return script


async def test_example_counts_records_by_key_and_ends_on_sigterm(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(example(lab))
    environment = {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "shop.py"]
    worker = Process("shop", command, tmp_path / "shop.log", environment=environment, directory=tmp_path)
    lab.workers.append(worker)
    await lab.produce([(number % 3, {}) for number in range(9)])
    totals = {b"key-%d" % number: 3 for number in range(3)}
    await until(lambda: {seen.key: seen.value for seen in lab.outputs} == totals, watching=lab)
    await lab.stop(worker)
    assert worker.returncode == 0
