"""Lines of `make venv`."""

import sys
from pathlib import Path

import pytest

from tools.install import main, progress

SAID = """\
Looking in links: /wheels
Collecting rich==14.0.0 (from -r requirements.lock (line 3))
  Using cached rich-14.0.0-py3-none-any.whl
Requirement already satisfied: typer==0.16 in ./.venv/lib
Installing collected packages: rich
"""


def test_what_pip_does_is_counted() -> None:
    assert list(progress(SAID.splitlines(), 2)) == [
        "fetching 1 of 2 packages: rich==14.0.0",
        "fetching 2 of 2 packages: typer==0.16",
        "installing 2 packages",
    ]


def test_what_pip_says_is_shown_when_it_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text("no-hash==1\n")
    assert main(sys.executable, str(lock)) != 0
    out = capsys.readouterr().out
    assert out.startswith("Installing 1 packages of")
    assert "hash" in out.partition("\n")[2].lower()
