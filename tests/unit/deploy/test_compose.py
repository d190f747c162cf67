"""docker-compose.yml without a container engine."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pymongo.uri_parser import parse_uri

from afterword.local.dev import INGEST, SERVER
from afterword.streams.roles import ALWAYS_RUN
from afterword.streams.settings import Settings, load_settings

ROOT = Path(__file__).parents[3]
WEBHOOKS = "webhooks"
"""A role that has its own profile, because it has nothing to do without endpoints."""
SERVERS = {"kafka", "mongo", "qdrant"}
NEEDED = {
    "segmenter": {"kafka"},
    "summarizer": SERVERS,
    "archiver": {"kafka", "mongo"},
    INGEST: {"kafka"},
    WEBHOOKS: {"kafka", "mongo"},
    SERVER: SERVERS,
    "topics": {"kafka"},
}
INTERPOLATED = re.compile(r"\$\{\w+:-(\w+)\}")

Service = dict[str, Any]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


@pytest.fixture(scope="module")
def services(compose: Mapping[str, Any]) -> dict[str, Service]:
    found: dict[str, Service] = compose["services"]
    return found


@pytest.fixture(scope="module")
def ours(services: Mapping[str, Service]) -> dict[str, Service]:
    return {name: service for name, service in services.items() if "build" in service}


def settings_of(variables: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Raises: ConfigurationError where one of them sets nothing, or not what it may be."""
    for name in [name for name in os.environ if name.startswith("AFTERWORD_")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, INTERPOLATED.sub(r"\1", str(value)))
    return load_settings()


def published(service: Service) -> tuple[str, int, int]:
    """Return the address, the machine's port and the container's port."""
    [port] = service["ports"]
    address, outer, inner = re.fullmatch(r"([\d.]+):\$\{[A-Z]+_PORT:-(\d+)\}:(\d+)", port).groups()  # type: ignore[union-attr]  # a port of another form fails here
    return address, int(outer), int(inner)


def test_compose_has_each_role_a_server_and_topic_creation(ours: Mapping[str, Service]) -> None:
    commands = {name: service["command"] for name, service in ours.items()}
    workers = {role: ["worker", role] for role in (*ALWAYS_RUN, INGEST, WEBHOOKS)}
    assert commands == {"topics": ["topics", "create"], SERVER: ["serve"], **workers}


def test_compose_settings_load(ours: Mapping[str, Service], monkeypatch: pytest.MonkeyPatch) -> None:
    for service in ours.values():
        settings = settings_of(service["environment"], monkeypatch)
        assert settings.kafka.bootstrap_servers == "kafka:19092"
        assert parse_uri(settings.mongo.uri.get_secret_value())["nodelist"] == [("mongo", 27017)]
        assert settings.qdrant.url == "http://qdrant:6333"


def test_compose_server_requires_keys_and_answers_its_health_check(
    ours: Mapping[str, Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = settings_of(ours[SERVER]["environment"], monkeypatch).serve
    assert serve.auth == "keys"
    assert (serve.host, serve.port) == ("0.0.0.0", published(ours[SERVER])[2])
    assert f"http://127.0.0.1:{serve.port}/readyz" in ours[SERVER]["healthcheck"]["test"][-1]


def test_compose_settings_for_ollama_load(services: Mapping[str, Service], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (ROOT / "compose" / "ollama.env").read_text().splitlines()
    variables = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    assert {variables["COMPOSE_PROFILES"]} == set(services["ollama"]["profiles"])
    llm = settings_of(variables, monkeypatch).llm
    assert (llm.provider, llm.base_url) == ("ollama", "http://ollama:11434")
    assert required(services["ollama-model"]) == {"ollama": "service_healthy"}
    assert services["ollama-model"]["command"] == ["pull", f"${{AFTERWORD_LLM__MODEL:-{llm.model}}}"]


def test_image_tag_is_the_packages_version(ours: Mapping[str, Service]) -> None:
    [image] = {service["image"] for service in ours.values()}
    name, version = image.split(":")
    assert f'name = "{name}"\nversion = "{version}"\n' in (ROOT / "pyproject.toml").read_text()


def test_ports_are_reachable_from_this_machine_only(services: Mapping[str, Service]) -> None:
    publishing = {name: published(service) for name, service in services.items() if "ports" in service}
    assert publishing.keys() >= SERVERS
    assert {address for address, _, _ in publishing.values()} == {"127.0.0.1"}
    outer = [port for _, port, _ in publishing.values()]
    assert len(outer) == len(set(outer))


def test_command_line_on_the_host_needs_no_settings(
    services: Mapping[str, Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = {name: f"127.0.0.1:{published(services[name])[1]}" for name in SERVERS}
    settings = settings_of({}, monkeypatch)
    assert settings.kafka.bootstrap_servers == outer["kafka"]
    assert settings.mongo.uri.get_secret_value() == f"mongodb://{outer['mongo']}"
    assert settings.qdrant.url is None  # by default http://127.0.0.1:6333
    assert outer["qdrant"] == "127.0.0.1:6333"


def test_kafka_gives_each_client_a_reachable_address(services: Mapping[str, Service]) -> None:
    kafka = services["kafka"]
    told = dict(entry.split("://") for entry in kafka["environment"]["KAFKA_ADVERTISED_LISTENERS"].split(","))
    listens = dict(entry.split("://:") for entry in kafka["environment"]["KAFKA_LISTENERS"].split(","))
    _, _, inner = published(kafka)
    assert told["INSIDE"] == f"kafka:{listens['INSIDE']}"
    assert told["OUTSIDE"] == kafka["ports"][0].removesuffix(f":{inner}")
    assert int(listens["OUTSIDE"]) == inner


def test_services_wait_for_their_servers_and_topics(ours: Mapping[str, Service]) -> None:
    for name, service in ours.items():
        jobs = {"topics": "service_completed_successfully"} if name != "topics" else {}
        assert required(service) == dict.fromkeys(NEEDED[name], "service_healthy") | jobs, name


def test_compose_service_depends_on_no_optional_profile(services: Mapping[str, Service]) -> None:
    for name, service in services.items():
        missing = [other for other in required(service) if not profiles(services[other]) <= profiles(service)]
        assert missing == [], name


def required(service: Service) -> dict[str, str]:
    """Return the conditions of the services that this one waits for."""
    waits = service.get("depends_on", {}).items()
    return {other: wait["condition"] for other, wait in waits if wait.get("required", True)}


def profiles(service: Service) -> set[str]:
    return set(service.get("profiles", ()))


def test_every_mounted_file_exists_and_is_read_only(services: Mapping[str, Service]) -> None:
    files = [v for service in services.values() for v in service.get("volumes", ()) if v.startswith("./")]
    assert len(files) > 4
    assert all(file.endswith(":ro") for file in files)
    missing = [file.split(":")[0] for file in files if not (ROOT / file.split(":")[0]).exists()]
    assert missing == ["./afterword.toml"]  # which the user writes


def test_prometheus_scrapes_every_worker_and_reads_the_alerts(services: Mapping[str, Service]) -> None:
    configuration = yaml.safe_load((ROOT / "compose" / "prometheus.yml").read_text())
    [job] = configuration["scrape_configs"]
    [source] = job["dns_sd_configs"]
    assert set(source["names"]) == {*ALWAYS_RUN, INGEST, WEBHOOKS, SERVER}
    assert {source["port"]} == {service["environment"]["AFTERWORD_HEALTH__PORT"] for service in ours_of(services)}
    assert "./helm/afterword/rules:/etc/prometheus/rules:ro" in services["prometheus"]["volumes"]
    assert configuration["rule_files"] == ["rules/*.yaml"]


def ours_of(services: Mapping[str, Service]) -> list[Service]:
    return [services[role] for role in (*ALWAYS_RUN, SERVER)]
