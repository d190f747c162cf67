"""A container engine: the machine's own, or one from Debian's packages that is stopped again."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

DEBIANS = "/usr/bin/docker"


@dataclass(frozen=True)
class Engine:
    client: str
    environment: dict[str, str]
    script: Path

    def docker(self, *arguments: str, check: bool = True) -> str:
        """Return a command's output without the last newline. Raises: AssertionError with its error output."""
        done = self._run([self.client, *arguments])
        assert done.returncode == 0 or not check, f"docker {' '.join(arguments)}: {done.stderr[-4000:]}"
        return done.stdout.strip()

    def need_base(self, image: str) -> None:
        """Pull an image, or make its stand-in."""
        if self._run([self.client, "image", "inspect", image]).returncode == 0:
            return
        if self._run([self.client, "pull", "--quiet", image]).returncode:
            done = self._run([str(self.script), "base", image])
            assert done.returncode == 0, done.stderr

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "DOCKER_BUILDKIT": "1", **self.environment}
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@contextmanager
def running_engine(script: Path, root: Path) -> Iterator[Engine]:
    """Yield a running engine; skip the test if none can be started."""
    own = Engine("docker", {}, script)
    if _answers(own):
        yield own
        return
    if os.geteuid() != 0 or not Path("/etc/debian_version").exists():
        pytest.skip("no container engine, and only root on Debian can install one")
    ours = Engine(DEBIANS, {"ENGINE_ROOT": str(root), "DOCKER_HOST": f"unix://{root}/docker.sock"}, script)
    was_running = _answers(ours)
    subprocess.run([script, "up"], check=True, env={**os.environ, **ours.environment}, stdout=subprocess.DEVNULL)
    yield ours
    if not was_running:
        subprocess.run([script, "down"], check=True, env={**os.environ, **ours.environment})


def _answers(engine: Engine) -> bool:
    try:
        return bool(engine.docker("info", "--format", "{{.ServerVersion}}", check=False))
    except FileNotFoundError:
        return False
