"""What every client of Kafka is told about TLS and SASL: the engine's, Faust's and the plain ones."""

from typing import Any

from afterword.streams.oauth import ClientCredentials
from afterword.streams.settings import Kafka, variable
from afterword.streams.tls import present, trusting


def security(kafka: Kafka) -> dict[str, Any]:
    """Keyword arguments of aiokafka's consumers, producers and admin clients.

    Clients that get the same ones share a token. Raises: ConfigurationError when a file cannot be used.
    """
    arguments: dict[str, Any] = {"security_protocol": kafka.security_protocol}
    if kafka.has_tls:
        arguments["ssl_context"] = _tls(kafka)
    if kafka.has_sasl:
        arguments["sasl_mechanism"] = kafka.sasl_mechanism
        arguments |= _token(kafka) if kafka.sasl_mechanism == "OAUTHBEARER" else _password(kafka)
    return arguments


def _tls(kafka: Kafka) -> Any:
    context = trusting(kafka.ssl_ca_file, variable(("kafka", "ssl_ca_file")))
    if kafka.ssl_cert_file:
        setting = variable(("kafka", "ssl_cert_file"))
        present(context, kafka.ssl_cert_file, kafka.ssl_key_file, kafka.ssl_key_password, setting)
    return context


def _password(kafka: Kafka) -> dict[str, Any]:
    assert kafka.username is not None  # noqa: S101 – the settings have been checked
    assert kafka.password is not None  # noqa: S101 – the settings have been checked
    return {"sasl_plain_username": kafka.username, "sasl_plain_password": kafka.password.get_secret_value()}


def _token(kafka: Kafka) -> dict[str, Any]:
    assert kafka.oauth_client_id is not None  # noqa: S101 – the settings have been checked
    assert kafka.oauth_client_secret is not None  # noqa: S101 – the settings have been checked
    return {
        "sasl_oauth_token_provider": ClientCredentials(
            str(kafka.oauth_token_endpoint),
            kafka.oauth_client_id,
            kafka.oauth_client_secret,
            scope=kafka.oauth_scope,
            tls=trusting(kafka.oauth_ca_file, variable(("kafka", "oauth_ca_file"))),
            timeout_seconds=kafka.request_timeout_seconds,
        )
    }
