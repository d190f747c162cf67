"""Tools that are built from their sources, one after the other, while tests run that need none of them."""

import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path


class Builds:
    """Scripts that build below `prefix` and reuse what an earlier run has built."""

    def __init__(self, scripts: Path, prefix: Path) -> None:
        self._scripts = scripts
        self._prefix = prefix
        self._pool = ThreadPoolExecutor(1)  # each takes all cores
        self._begun: dict[str, Future[object]] = {}

    def begin(self, script: str) -> None:
        """Build it once, in the background, after earlier builds."""
        if script not in self._begun:
            self._begun[script] = self._pool.submit(subprocess.run, [self._scripts / script, self._prefix], check=True)

    def need(self, script: str) -> None:
        """Wait until it is built. Raises: CalledProcessError."""
        self.begin(script)
        self._begun[script].result()

    def close(self) -> None:
        """Wait for the running script, then end."""
        self._pool.shutdown(cancel_futures=True)
