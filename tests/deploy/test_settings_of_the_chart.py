"""The chart refuses the same combinations of settings as the code, before any pod starts."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from afterword.streams.settings import Settings, is_secret
from helm.cross_fields import rules
from tests.deploy.helm import Helm
from tests.rows import with_rows

Section = Mapping[str, Any]
CASES = 110
THEIRS = {"existingSecret": "theirs"}
CHOICES: dict[str, dict[str, list[Any]]] = {
    "kafka": {
        "security_protocol": ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", "SASL_SSL"],
        "sasl_mechanism": ["PLAIN", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"],
        "aws_region": ["eu-central-1"],
        "username": ["afterword"],
        "password": ["secret"],
        "oauth_token_endpoint": ["https://login.example/token"],
        "oauth_client_id": ["afterword"],
        "oauth_client_secret": ["secret"],
        "oauth_scope": ["kafka"],
        "ssl_ca_file": ["ca.pem"],
        "ssl_cert_file": ["cert.pem"],
        "ssl_key_file": ["key.pem"],
        "session_timeout_seconds": [6, 45, 60, 120, 240],
        "request_timeout_seconds": [1, 10, 20, 40],
    },
    "episodes": {"overlap": [0, 9, 30], "min_episode_size": [1, 9, 30], "max_episode_size": [9, 20, 40]},
    "llm": {
        "provider": ["extractive", "openai", "ollama"],
        "model": ["large", ""],
        "max_output_tokens": [64, 2048, 2049, 20_000],
        "context_tokens": [4096, 40_000],
    },
    "registry": {"username": ["afterword"], "password": ["secret"]},
    "embedder": {
        "provider": ["none", "openai", "ollama", "local", "onnx"],
        "model": ["vectors", "", ""],
        "directory": ["/models/e5", ""],
    },
    "retry": {"first_delay_seconds": [30, 900, 1000.5], "longest_delay_seconds": [29.5, 900, 1001]},
    "serve": {
        "auth": ["jwt", "jwt", "keys"],
        "jwt_issuer": ["https://login.example/"],
        "jwt_audience": ["afterword"],
        "jwt_jwks_url": ["https://login.example/keys"],
    },
}
SASL = {"security_protocol": "SASL_SSL", "ssl_ca_file": "ca.pem"}
KNOWN_GOOD: list[Section] = [
    {**SASL, "sasl_mechanism": "SCRAM-SHA-512", "username": "afterword", "password": "secret"},
    {**SASL, "sasl_mechanism": "OAUTHBEARER"}
    | {name: CHOICES["kafka"][name][0] for name in ("oauth_token_endpoint", "oauth_client_id", "oauth_client_secret")},
    {**SASL, "sasl_mechanism": "AWS_MSK_IAM", "aws_region": "eu-central-1"},
    {"security_protocol": "SSL", "ssl_cert_file": "cert.pem", "ssl_key_file": "key.pem"},
]
"""Combinations that random drawing would seldom find."""


def cases() -> list[tuple[str, Section]]:
    """Draw settings of one section at random; about half of those that can matter are set."""
    source = random.Random(2)
    names = [*CHOICES, "serve", *["kafka"] * 6]
    chosen = [names[n % len(names)] for n in range(CASES)]
    return [*(("kafka", given) for given in KNOWN_GOOD), *((name, _some(source, CHOICES[name])) for name in chosen)]


def _some(source: random.Random, choices: Mapping[str, list[Any]]) -> Section:
    share = source.choice([0.2, 0.5, 0.9])
    return {name: source.choice(values) for name, values in choices.items() if source.random() < share}


def takes(section: str, given: Section) -> bool:
    """Return whether the code accepts these settings; an empty variable counts as not set."""
    try:
        Settings(**{section: {name: value for name, value in given.items() if value != ""}})
    except ValidationError:
        return False
    return True


def as_values(section: str, given: Section) -> dict[str, Any]:
    """Write the settings as values of the chart; secrets and files come from elsewhere."""
    model = type(getattr(Settings.model_construct(), section))
    secret = {name for name in given if is_secret(model.model_fields[name])}
    files = {name for name in given if name.endswith("_file")}
    plain = {name: value for name, value in given.items() if name not in secret | files}
    sources = {"ingest": {"file": {"existingConfigMap": "sources"}}}
    return {
        "server": {"enabled": False},
        "ingest": {"enabled": True},  # the only role that reads a registry
        "settings": {section: plain},
        "secrets": {section: dict.fromkeys(secret, THEIRS)} if secret else {},
        "files": sources | ({section: dict.fromkeys(files, THEIRS)} if files else {}),
    }


@pytest.mark.parametrize(("section", "given"), cases())
def test_chart_accepts_the_settings_that_code_accepts(helm: Helm, section: str, given: Section, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(as_values(section, given)))
    refusal = ""
    try:
        helm.template("--values", file)
    except AssertionError as error:
        refusal = str(error)
    assert (refusal == "") == takes(section, given), refusal
    assert refusal == "" or f"settings.{section}." in refusal


def test_every_section_has_accepted_and_refused_cases() -> None:
    verdicts = {(section, takes(section, given)) for section, given in cases()}
    assert verdicts >= {(section, verdict) for section in CHOICES for verdict in (True, False)}


def test_every_section_with_rules_has_cases() -> None:
    assert {rule["section"] for rule in rules()} == CHOICES.keys()


@with_rows
def test_harmful_chart_values_are_refused_by_name(helm: Helm, given: str, named: str) -> None:
    with pytest.raises(AssertionError, match=named):
        helm.template("--set", given)
