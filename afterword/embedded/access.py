"""More ways into an embedded broker than the plain listener, for tests of TLS and SASL."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from afterword.embedded.ports import HOST

Properties = Mapping[str, str | int]


@dataclass(frozen=True)
class Listener:
    """One more address that clients can connect to, beside the plain one; for tests of TLS and SASL."""

    name: str
    """In capitals."""
    protocol: str
    """`SSL`, `SASL_SSL` or `SASL_PLAINTEXT`."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """The broker's, without the prefix that says which listener they are for."""


@dataclass(frozen=True)
class Access:
    """Who may connect where, apart from everybody on the plain listener."""

    listeners: tuple[Listener, ...] = ()
    scram_users: Mapping[str, str] = field(default_factory=dict)
    """Passwords by name; known to a cluster from its first start on."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Of every broker, beside ours: an authorizer, say."""


PLAIN = Access()
"""Nothing but the plain listener."""


def with_listeners(properties: Properties, listeners: Sequence[tuple[Listener, int]]) -> dict[str, str | int]:
    """The plain properties, and more listeners with their ports."""
    addresses = "".join(f",{listener.name}://{HOST}:{port}" for listener, port in listeners)
    protocols = "".join(f",{listener.name}:{listener.protocol}" for listener, _ in listeners)
    return {
        **properties,
        "listeners": f"{properties['listeners']}{addresses}",
        "advertised.listeners": f"{properties['advertised.listeners']}{addresses}",
        "listener.security.protocol.map": f"{properties['listener.security.protocol.map']}{protocols}",
        **{
            f"listener.name.{listener.name.lower()}.{name}": value
            for listener, _ in listeners
            for name, value in listener.properties.items()
        },
    }


def scram_arguments(users: Mapping[str, str]) -> list[str]:
    """The storage tool's, with both of SCRAM's mechanisms for each user."""
    credentials = [
        f"{mechanism}=[name={name},password={password}]"
        for name, password in users.items()
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
    ]
    return [argument for credential in credentials for argument in ("--add-scram", credential)]
