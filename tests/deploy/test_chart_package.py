"""The chart as an artifact of a registry: packaged by the release, pushed, and rendered from there."""

import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from afterword.embedded.claims import free_ports
from tests.deploy.helm import HELMS, KUBERNETES, Helm
from tools.release import ROOT, build_chart, version_of

STARTED_SECONDS = 20


@pytest.fixture
def registry(helm: Helm) -> Iterator[str]:
    """Address of a registry in memory."""
    [port] = free_ports(1)
    address = f"127.0.0.1:{port}"
    command = [helm.prefix / "bin" / "crane", "registry", "serve", "--address", address]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _wait_for(address)
        yield address
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


@pytest.mark.parametrize("folder", HELMS)
def test_the_released_chart_is_pushed_to_a_registry_and_rendered_from_there(
    helm: Helm, registry: str, folder: str, tmp_path: Path
) -> None:
    one = replace(helm, folder=folder)
    package = build_chart(ROOT, tmp_path, 1_700_000_000)
    one.run("push", package, f"oci://{registry}/charts", "--plain-http")
    there = (f"oci://{registry}/charts/afterword", "--version", version_of(ROOT), "--plain-http")
    fetched = one.run("template", "memory", *there, "--namespace", "chat", "--kube-version", KUBERNETES[0])
    assert fetched == one.template()
