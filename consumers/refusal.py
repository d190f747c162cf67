"""Why no broker takes us. aiokafka logs it and raises only that there was none."""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import KafkaConnectionError, KafkaError, SaslAuthenticationFailed, UnsupportedSaslMechanismError
from aiokafka.protocol.metadata import MetadataRequest

from afterword.streams.oauth import TokenUnavailable

CONNECTION = {"client_id", "request_timeout_ms", "security_protocol", "ssl_context"}
SASL = "sasl_"
TOKENS = "OAUTHBEARER"


def is_silent(options: Mapping[str, Any]) -> bool:
    """Whether a refusal must be looked for, because aiokafka overlooks it.

    It does not read what a broker says to a token, and starts clients that then know of no broker and wait for ever.
    """
    return options.get("sasl_mechanism") == TOKENS


def of_security(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a client's options that are about TLS and SASL."""
    names = {name for name in options if name in ("security_protocol", "ssl_context") or name.startswith(SASL)}
    return {name: options[name] for name in names}


async def reason(options: Mapping[str, Any]) -> str | None:
    """What the first broker that answers objects to; None when one takes us, or none answers.

    `options`: keyword arguments of any aiokafka client. Tries each broker once.
    """
    wanted = {name: value for name, value in options.items() if name in CONNECTION or name.startswith(SASL)}
    for host, port, _ in collect_hosts(options["bootstrap_servers"]):
        try:
            await _connect(host, port, wanted)
        except (OSError, KafkaError) as error:
            if objection := objection_in(error, wanted):
                return objection
        else:
            return None
    return None


def objection_in(error: Exception, options: Mapping[str, Any]) -> str | None:
    """What the error of a connection means; None: the broker was not reached."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted: {error.verify_message}"
        case ssl.SSLError():
            return f"TLS fails ({error.reason or 'no reason given'})"
        case SaslAuthenticationFailed() | UnsupportedSaslMechanismError() | TokenUnavailable():
            return f"authentication fails: {' '.join(map(str, error.args))}"
        case ConnectionResetError() | KafkaConnectionError():
            return hung_up(options)
    return None


async def _connect(host: str, port: int, options: Mapping[str, Any]) -> None:
    async with asyncio.timeout(options["request_timeout_ms"] / 1000):
        connection = await create_conn(host, port, **options)
        try:
            metadata = await connection.send(MetadataRequest([]))
        finally:
            connection.close()
    if not metadata.brokers:
        raise KafkaConnectionError("it shows no cluster")


def hung_up(options: Mapping[str, Any]) -> str:
    """Some refusals have no words."""
    if options.get("sasl_mechanism") == TOKENS:
        return "authentication fails: it does not take the token"
    return f"it hangs up; does this port speak {options.get('security_protocol', 'PLAINTEXT')}?"
