"""A registry of images and charts, in memory, on this machine."""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from afterword.embedded.claims import free_ports

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
