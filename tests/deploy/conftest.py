"""Helm's tools, a container engine and the image, each made when a test first asks for it; a second run finds them."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from afterword.embedded.java import cache_directory
from tests.deploy.engine import Engine, running_engine
from tests.deploy.helm import Helm

TOOLS = Path(__file__).parent / "tools"
ROOT = Path(__file__).parents[2]
IMAGE = "afterword:test"
BASE = "python:3.11-slim"
PATIENCE_SECONDS = 3600
"""The first run builds Helm, and more, from their sources."""


@pytest.hookimpl(tryfirst=True)  # before the marks are looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if TOOLS.parent in item.path.parents:
            item.add_marker(pytest.mark.deploy)
            item.add_marker(pytest.mark.timeout(PATIENCE_SECONDS))


@pytest.fixture(scope="session")
def prefix() -> Path:
    """Directory in which the tools are kept."""
    return cache_directory() / "deploy-tools"


@pytest.fixture(scope="session")
def helm(prefix: Path) -> Helm:
    subprocess.run([TOOLS / "helm.sh", prefix], check=True)
    return Helm(prefix, ROOT / "helm" / "afterword", TOOLS.parent / "schemas")


@pytest.fixture(scope="session")
def engine(prefix: Path) -> Iterator[Engine]:
    """The machine's own; where there is none, one that ends with the tests."""
    with running_engine(TOOLS / "engine.sh", prefix / "engine") as engine:
        yield engine


@pytest.fixture(scope="session")
def image(engine: Engine) -> str:
    """Built from this tree, on the official base or on a stand-in for it."""
    engine.need_base(BASE)
    engine.docker("build", "--quiet", "--tag", IMAGE, "--build-arg", f"BASE={BASE}", os.fspath(ROOT))
    return IMAGE
