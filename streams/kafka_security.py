"""Which of Kafka's settings of TLS and SASL go together."""

from collections.abc import Sequence, Set
from typing import Literal

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

TLS = ("ssl_ca_file", "ssl_cert_file", "ssl_key_file", "ssl_key_password")
PASSWORD = ("username", "password")
TOKEN = ("oauth_token_endpoint", "oauth_client_id", "oauth_client_secret")
TOKEN_OPTIONS = ("oauth_scope", "oauth_ca_file")
SASL = ("sasl_mechanism", *PASSWORD, *TOKEN, *TOKEN_OPTIONS)


def has_tls(protocol: Protocol) -> bool:
    return protocol in ("SSL", "SASL_SSL")


def has_sasl(protocol: Protocol) -> bool:
    return protocol in ("SASL_PLAINTEXT", "SASL_SSL")


def check(protocol: Protocol, mechanism: Mechanism | None, given: Set[str]) -> None:
    """`given`: names of the settings that are set. Raises: ValueError with the first thing that cannot be meant.

    A setting that would have no effect is refused: who sets a password believes that it is asked for.
    """
    if not has_tls(protocol):
        _refuse(TLS, given, "needs security_protocol SSL or SASL_SSL")
    if not has_sasl(protocol):
        _refuse(SASL, given, "needs security_protocol SASL_SSL or SASL_PLAINTEXT")
    elif mechanism is None:
        raise ValueError(f"security_protocol {protocol} needs sasl_mechanism")
    elif mechanism == "OAUTHBEARER":
        _refuse(PASSWORD, given, "has no use with sasl_mechanism OAUTHBEARER")
        _require(TOKEN, given, "sasl_mechanism OAUTHBEARER")
    else:
        _refuse((*TOKEN, *TOKEN_OPTIONS), given, "needs sasl_mechanism OAUTHBEARER")
        _require(PASSWORD, given, f"sasl_mechanism {mechanism}")
    if "ssl_cert_file" not in given:
        _refuse(("ssl_key_file", "ssl_key_password"), given, "needs ssl_cert_file")


def _refuse(names: Sequence[str], given: Set[str], why: str) -> None:
    for name in names:
        if name in given:
            raise ValueError(f"{name} {why}")


def _require(names: Sequence[str], given: Set[str], what: str) -> None:
    for name in names:
        if name not in given:
            raise ValueError(f"{what} needs {name}")
