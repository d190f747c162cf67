"""Builds tools from source, one after the other, while tests that need none of them run."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from afterword.embedded.claims import free_ports


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


STARTED_SECONDS = 20


@contextmanager
def registry(crane: Path) -> Iterator[str]:
    """Run a registry without TLS, and yield its address."""
    [port] = free_ports(1)
    address = f"127.0.0.1:{port}"
    command = [crane, "registry", "serve", "--address", address]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_for(address)
            yield address
        finally:
            process.terminate()


def _wait_for(address: str) -> None:
    host, _, port = address.partition(":")
    deadline = time.monotonic() + STARTED_SECONDS
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "the registry does not listen"
            time.sleep(0.05)
        else:
            return
