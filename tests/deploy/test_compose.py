"""docker-compose.yml on a container engine: our services as in the file, with stand-ins for the servers' images."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from afterword.embedded.claims import free_ports
from afterword.local.dev import SERVER
from afterword.streams.roles import ALWAYS_RUN
from tests.deploy import stand_in_images
from tests.deploy.builds import Builds, Engine
from tests.deploy.compose import Compose, program
from tests.deploy.conftest import BASE, ROOT
from tests.deploy.helm import Helm

FILE = ROOT / "docker-compose.yml"
OURS = Path(__file__).parent / "ours.yml"
SAMPLES = ROOT / "afterword" / "samples" / "conversations.jsonl"
PORTS = ("KAFKA_PORT", "MONGO_PORT", "QDRANT_PORT", "SERVER_PORT")
UP_SECONDS = 600
SUMMARY_SECONDS = 300
SUMMARIES = 12
"""At least one for each sample conversation, because everything pending is closed at the end."""


@pytest.fixture(scope="module")
def compose(engine: Engine, builds: Builds, prefix: Path) -> Compose:
    """Make a project on free ports, so that it can run beside the developer's own."""
    ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
    return Compose(program(engine, builds, prefix), engine.environment, (FILE, OURS), variables=ports)


@pytest.fixture(scope="module", params=["stand-ins", "official images"])
def with_servers(
    request: pytest.FixtureRequest,
    compose: Compose,
    engine: Engine,
    image: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Compose:
    """Skip the test of the official images if they cannot be pulled."""
    if request.param == "stand-ins":
        stand_in_images.build(engine, BASE, image, tmp_path_factory.mktemp("stand-ins"))
        return replace(compose, files=(*compose.files, stand_in_images.OVERRIDE))
    try:
        compose.run("pull", "--quiet", "--policy", "missing", "kafka", "mongo", "qdrant")
    except AssertionError as error:
        pytest.skip(f"the servers' images cannot be pulled: {str(error).splitlines()[-1]}")
    return compose


@contextmanager
def up(compose: Compose) -> Iterator[None]:
    """Start all services, with our image built by compose. Containers and volumes are removed at the end."""
    try:
        compose.run("up", "--build", "--detach", "--wait", "--wait-timeout", str(UP_SECONDS))
        yield
    except AssertionError as error:
        error.add_note(compose.run("logs", "--no-color", "--tail", "40"))
        raise
    finally:
        compose.run("down", "--volumes", "--timeout", "5")


def afterword(compose: Compose, *arguments: str) -> str:
    """Run a command on this machine, which reaches the servers at their published ports."""
    kafka, mongo, *_ = (f"127.0.0.1:{compose.variables[name]}" for name in PORTS)
    ours = {"AFTERWORD_KAFKA__BOOTSTRAP_SERVERS": kafka, "AFTERWORD_MONGO__URI": f"mongodb://{mongo}"}
    done = subprocess.run(
        [sys.executable, "-m", "afterword", *arguments],
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("AFTERWORD_")} | ours,
        timeout=SUMMARY_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_compose_summarizes_messages_from_the_host_and_stops_cleanly(with_servers: Compose, engine: Engine) -> None:
    with up(with_servers):
        assert states(with_servers).items() >= dict.fromkeys((*ALWAYS_RUN, SERVER), "healthy").items()
        afterword(with_servers, "produce", str(SAMPLES), "--flush")
        watched = afterword(with_servers, "watch", "--from-beginning", "--limit", str(SUMMARIES), "--json")
        summaries = [json.loads(line) for line in watched.splitlines()]
        assert all(summary["short_summary"] for summary in summaries)
        assert afterword(with_servers, "context", summaries[0]["conversation_id"])
        assert all(f'role="{role}"' in metrics(with_servers, role) for role in (*ALWAYS_RUN, SERVER))
        check_the_server(with_servers, summaries[0])
        began = datetime.now(UTC).isoformat()
        with_servers.run("down")
        assert (
            exit_codes(engine, with_servers.project, began).items() >= dict.fromkeys((*ALWAYS_RUN, SERVER), 0).items()
        )


def check_the_server(compose: Compose, summary: dict[str, Any]) -> None:
    """Check that the server answers this machine with a key made in its container, and refuses it without one."""
    made = compose.run(
        *("exec", "-T", SERVER, "afterword", "keys", "create", "--no-tenant", "--scope", "read", "--json")
    )
    question = {"query": summary["short_summary"], "user_id": summary["user_id"]}
    with httpx.Client(base_url=f"http://127.0.0.1:{compose.variables['SERVER_PORT']}", timeout=60) as client:
        assert client.post("/v1/recall", json=question).status_code == 401
        client.headers["Authorization"] = f"Bearer {json.loads(made)['key']}"
        found = client.post("/v1/recall", json=question)
        assert summary["episode_id"] in [hit["episode_id"] for hit in found.json()["hits"]], found.text
        context = client.get(f"/v1/conversations/{summary['conversation_id']}/context")
        assert context.status_code == 200, context.text


def metrics(compose: Compose, role: str) -> str:
    """Read metrics as Prometheus does, in another container of the project."""
    code = f"import urllib.request as r; print(r.urlopen('http://{role}:8080/metrics', timeout=20).read().decode())"
    return compose.run("exec", "-T", "archiver", "python3", "-c", code)


def states(compose: Compose) -> dict[str, str]:
    lines = compose.run("ps", "--all", "--format", "json").splitlines()
    return {service["Service"]: service["Health"] for service in map(json.loads, lines)}


def exit_codes(engine: Engine, project: str, since: str) -> dict[str, int]:
    """Return the exit codes, by service, of the containers that have ended since then, even if they were removed."""
    filters = ("--filter", "event=die", "--filter", f"label=com.docker.compose.project={project}")
    until = datetime.now(UTC).isoformat()
    events = engine.docker("events", "--since", since, "--until", until, *filters, "--format", "{{json .Actor}}")
    ended = [json.loads(line)["Attributes"] for line in events.splitlines()]
    return {attributes["com.docker.compose.service"]: int(attributes["exitCode"]) for attributes in ended}


def test_compose_accepts_the_file_with_every_profile(compose: Compose) -> None:
    some = json.loads(compose.run("config", "--format", "json"))["services"]
    every = json.loads(compose.run("--profile", "ollama", "--profile", "observability", "config", "--format", "json"))[
        "services"
    ]
    assert every.keys() - some.keys() == {"ollama", "ollama-model", "prometheus", "grafana"}
    assert some.keys() == {"kafka", "mongo", "qdrant", "topics", SERVER, *ALWAYS_RUN}


def test_settings_file_reaches_our_services_and_chooses_profiles(compose: Compose, tmp_path: Path) -> None:
    shutil.copy(FILE, tmp_path)
    shutil.copy(ROOT / "compose" / "ollama.env", tmp_path / ".env")
    alone = replace(compose, files=(tmp_path / FILE.name,), env_file=tmp_path / ".env")
    services = json.loads(alone.run("config", "--format", "json"))["services"]
    assert services["summarizer"]["environment"]["AFTERWORD_LLM__BASE_URL"] == "http://ollama:11434"
    assert services["summarizer"]["environment"]["AFTERWORD_KAFKA__BOOTSTRAP_SERVERS"] == "kafka:19092"
    assert services["ollama-model"]["command"] == ["pull", "qwen2.5:3b"]


def test_prometheus_accepts_its_configuration(helm: Helm, tmp_path: Path) -> None:
    shutil.copy(ROOT / "compose" / "prometheus.yml", tmp_path)
    shutil.copytree(ROOT / "helm" / "afterword" / "rules", tmp_path / "rules")
    assert "SUCCESS" in helm.promtool("check", "config", tmp_path / "prometheus.yml")
