"""A run of benchmarks keeps what it found."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.__main__ import Run, run_all
from benchmarks.suite import Finding, Form, Line


async def good(form: Form, directory: Path) -> Sequence[Finding]:
    return [Finding("good", [Line("ours", {"rate": "1"})], ratios={"good/ours": 1.0})]


async def bad(form: Form, directory: Path) -> Sequence[Finding]:
    raise RuntimeError("the program ended with code 1")


async def test_one_that_fails_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    run = Run(Form(), tmp_path / "bench.json", tmp_path / "bench.md")
    await run_all(run, {"bad": bad, "good": good}, Console(quiet=True))
    assert run.failed == ["bad"]
    assert '"good/ours": 1.0' in (tmp_path / "bench.json").read_text()
    assert "### good" in (tmp_path / "bench.md").read_text()
