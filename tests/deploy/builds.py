"""Builds tools from source, one after the other, while tests that need none of them run."""

import shutil
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest


def needs(program: str) -> str:
    """Return a program's path; skip the test if the machine has none."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not on this machine")
    return found


class Builds:
    """Runs scripts that build below `prefix`, which keeps what earlier runs have built."""

    def __init__(self, scripts: Path, prefix: Path) -> None:
        self._scripts = scripts
        self._prefix = prefix
        self._pool = ThreadPoolExecutor(1)  # each takes all cores
        self._begun: dict[str, Future[object]] = {}

    def begin(self, script: str) -> None:
        if script not in self._begun:
            self._begun[script] = self._pool.submit(subprocess.run, [self._scripts / script, self._prefix], check=True)

    def need(self, script: str) -> None:
        """Wait until the tool is built. Raises: CalledProcessError."""
        self.begin(script)
        self._begun[script].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
