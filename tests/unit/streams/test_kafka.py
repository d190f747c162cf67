"""Kafka settings: invalid ones stop the start, the others become arguments of aiokafka."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from afterword.streams.errors import ConfigurationError
from afterword.streams.kafka.clients import RenewedTokens, security
from afterword.streams.settings import Kafka
from tests.certificates import Authority

SCRAM = {"sasl_mechanism": "SCRAM-SHA-512", "username": "alice", "password": "canary"}
TOKEN = {
    "sasl_mechanism": "OAUTHBEARER",
    "oauth_token_endpoint": "https://id.example/token",
    "oauth_client_id": "afterword",
    "oauth_client_secret": "canary",
}
IMPOSSIBLE: list[tuple[dict[str, str], str]] = [
    (SCRAM, "sasl_mechanism has no use with security_protocol PLAINTEXT"),
    ({"password": "canary"}, "password has no use with security_protocol PLAINTEXT"),
    ({"security_protocol": "SSL", "username": "alice"}, "username has no use with security_protocol SSL"),
    ({"ssl_ca_file": "ca.pem"}, "ssl_ca_file has no use with security_protocol PLAINTEXT"),
    (
        {"security_protocol": "SASL_PLAINTEXT", **SCRAM, "ssl_key_password": "canary"},
        "ssl_key_password has no use with",
    ),
    ({"security_protocol": "SASL_SSL"}, "security_protocol SASL_SSL needs sasl_mechanism"),
    ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "username": "a"}, "PLAIN needs password"),
    ({"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}, "OAUTHBEARER needs oauth_token_endpoint"),
    (
        {"security_protocol": "SASL_SSL", **TOKEN, "username": "a"},
        "username has no use with sasl_mechanism OAUTHBEARER",
    ),
    (
        {"security_protocol": "SASL_SSL", **SCRAM, "oauth_scope": "s"},
        "oauth_scope has no use with sasl_mechanism SCRAM",
    ),
    ({"security_protocol": "SASL_SSL", "sasl_mechanism": "AWS_MSK_IAM"}, "AWS_MSK_IAM needs aws_region"),
    ({"security_protocol": "SASL_SSL", **SCRAM, "aws_region": "r"}, "aws_region has no use with sasl_mechanism SCRAM"),
    ({"security_protocol": "SASL_SSL", **TOKEN, "oauth_token_file": "t"}, "oauth_token_endpoint has no use with"),
    ({"security_protocol": "SSL", "ssl_key_file": "key.pem"}, "ssl_key_file needs ssl_cert_file"),
    ({"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"}, "Input should be 'PLAIN'"),
    ({"security_protocol": "TLS"}, "Input should be 'PLAINTEXT'"),
    ({"security_protocol": "SASL_SSL", **SCRAM, "password": ""}, "at least 1"),
    ({"security_protocol": "SASL_SSL", **TOKEN, "oauth_token_endpoint": "https://a:canary@id/"}, "pattern"),
    ({"security_protocol": "SASL_SSL", **TOKEN, "oauth_token_endpoint": "ftp://id/"}, "pattern"),
]


@pytest.mark.parametrize(("given", "said"), IMPOSSIBLE, ids=[said for _, said in IMPOSSIBLE])
def test_impossible_combination_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Kafka.model_validate(given)
    [error] = caught.value.errors(include_input=False, include_url=False)
    assert said in error["msg"]
    assert "canary" not in error["msg"]


def test_password_becomes_arguments_with_certificate_checks(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    kafka = Kafka.model_validate({"security_protocol": "SASL_SSL", **SCRAM, "ssl_ca_file": authority.file})
    arguments = security(kafka)
    context = arguments.pop("ssl_context")
    assert arguments == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "alice",
        "sasl_plain_password": "canary",
    }
    assert context.check_hostname
    assert context.verify_mode.name == "CERT_REQUIRED"


def test_client_secret_becomes_a_token_provider() -> None:
    assert security(Kafka()) == {"security_protocol": "PLAINTEXT"}
    arguments = security(Kafka.model_validate({"security_protocol": "SASL_PLAINTEXT", **TOKEN}))
    assert isinstance(arguments.pop("sasl_oauth_token_provider"), RenewedTokens)
    assert arguments == {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}


def test_encrypted_key_without_password_is_an_error(tmp_path: Path) -> None:
    signed = Authority(tmp_path).sign("client", password="canary")
    ours: dict[str, Any] = {"security_protocol": "SSL", "ssl_cert_file": signed.certificate, "ssl_key_file": signed.key}
    for password in (None, "wrong"):
        with pytest.raises(ConfigurationError, match=r"AFTERWORD_KAFKA__SSL_CERT_FILE: .* cannot be used with its key"):
            security(Kafka.model_validate({**ours, "ssl_key_password": password}))
    security(Kafka.model_validate({**ours, "ssl_key_password": "canary"}))


def test_file_without_certificates_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("canary")
    with pytest.raises(ConfigurationError, match=r"AFTERWORD_KAFKA__SSL_CA_FILE: .*: no certificates in PEM") as caught:
        security(Kafka(security_protocol="SSL", ssl_ca_file=file))
    assert "canary" not in str(caught.value)


def test_producers_and_subscribers_need_no_worker_dependencies() -> None:
    loaded = "import sys, afterword.streams.kafka.clients; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    heavy = {"faust", "httpx", "motor", "numpy", "opentelemetry", "prometheus_client", "qdrant_client", "rocksdict"}
    assert heavy.isdisjoint(done.stdout.split())
