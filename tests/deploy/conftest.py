"""Helm's tools, a container engine and the image. Each is made when a test first asks for it, and kept for the next
run.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from afterword.streams.private import cache_directory
from tests.deploy.builds import Builds, Engine, running_engine
from tests.deploy.compose import has_compose
from tests.deploy.helm import Helm

TOOLS = Path(__file__).parent / "tools"
ROOT = Path(__file__).parents[2]
IMAGE = "afterword:test"
BASE = "python:3.11-slim"
BUILT = {"helm", "engine", "image", "compose"}
"""Fixtures that need a container engine or tools built from source."""
PATIENCE_SECONDS = 3600
"""The first run builds Helm and other tools from source."""


@pytest.hookimpl(tryfirst=True)  # before the marks are looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if TOOLS.parent in item.path.parents:
            needed = BUILT & set(getattr(item, "fixturenames", ()))
            item.add_marker(pytest.mark.deploy if needed else pytest.mark.nightly)
            item.add_marker(pytest.mark.timeout(PATIENCE_SECONDS))
    items.sort(key=_waits_for)


def _waits_for(item: pytest.Item) -> int:
    """Rank tests so that those that wait for nothing run first."""
    if TOOLS.parent not in item.path.parents:
        return 0
    needed = getattr(item, "fixturenames", ())
    return 2 if "compose" in needed else int("helm" in needed)


@pytest.fixture(scope="session")
def prefix() -> Path:
    return cache_directory() / "deploy-tools"


@pytest.fixture(scope="session", autouse=True)
def builds(request: pytest.FixtureRequest, prefix: Path) -> Iterator[Builds]:
    """Start building what the selected tests need when the first of them runs."""
    chosen = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    builds = Builds(TOOLS, prefix)
    if "helm" in chosen:
        builds.begin("helm.sh")
    if "compose" in chosen and not has_compose("docker"):
        builds.begin("compose.sh")
    yield builds
    builds.close()


@pytest.fixture(scope="session")
def helm(prefix: Path, builds: Builds) -> Helm:
    builds.need("helm.sh")
    return Helm(prefix, ROOT / "helm" / "afterword", TOOLS.parent / "schemas")


@pytest.fixture(scope="session")
def engine(prefix: Path) -> Iterator[Engine]:
    """Yield the machine's own engine, or one that stops after the tests."""
    with running_engine(TOOLS / "engine.sh", prefix / "engine") as engine:
        yield engine


@pytest.fixture(scope="session")
def image(engine: Engine) -> str:
    """Build the image from this tree, on the official base or a stand-in."""
    engine.need_base(BASE)
    engine.docker("build", "--quiet", "--tag", IMAGE, "--build-arg", f"BASE={BASE}", os.fspath(ROOT))
    return IMAGE
