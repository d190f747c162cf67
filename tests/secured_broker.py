"""Brokers with listeners and users in addition to the plain listener, which is open to everyone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from afterword.embedded import EmbeddedStack
from afterword.embedded.claims import HOST, remembered_ports
from afterword.embedded.java import JarCache
from afterword.embedded.stack import Broker, Properties
from tests.stack import chosen_jars


@dataclass(frozen=True)
class Listener:
    """An additional address for clients."""

    name: str
    """The name, in capitals."""
    protocol: str
    """`SSL`, `SASL_SSL` or `SASL_PLAINTEXT`."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Broker properties, without the prefix that names the listener."""


def with_listeners(properties: Properties, listeners: Sequence[tuple[Listener, int]]) -> dict[str, str | int]:
    """Add listeners and their ports to the plain properties."""
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
    """Return the storage tool's arguments that create both SCRAM credentials for each user."""
    credentials = [
        f"{mechanism}=[name={name},password={password}]"
        for name, password in users.items()
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
    ]
    return [argument for credential in credentials for argument in ("--add-scram", credential)]


class SecuredBroker(Broker):
    """A broker with further listeners. `users` has the passwords, which are stored when its directory is formatted."""

    def __init__(
        self,
        listeners: Sequence[Listener],
        users: Mapping[str, str],
        jars: JarCache,
        directory: Path,
        pass_fds: tuple[int, ...],
        properties: Properties,
    ) -> None:
        super().__init__(jars, directory, pass_fds, properties=properties, format_arguments=scram_arguments(users))
        ports = remembered_ports(directory / "listeners.json", len(listeners))
        self._listeners = list(zip(listeners, ports, strict=True))

    def listener_address(self, name: str) -> str:
        return next(f"{HOST}:{port}" for listener, port in self._listeners if listener.name == name)

    def properties(self) -> dict[str, str | int]:
        return with_listeners(super().properties(), self._listeners)


class SecuredStack(EmbeddedStack):
    """A stack whose broker has further listeners."""

    def __init__(
        self, directory: Path, listeners: Sequence[Listener], users: Mapping[str, str], properties: Properties
    ) -> None:
        super().__init__(directory, jars=chosen_jars())
        self._secured = listeners, users
        self._further = properties

    def _broker(self, jars: JarCache, directory: Path, pass_fds: tuple[int, ...]) -> Broker:
        return SecuredBroker(*self._secured, jars, directory, pass_fds, self._further)


def servers_of(stack: EmbeddedStack, listener: str) -> str:
    """Return the `bootstrap_servers` for one listener."""
    assert isinstance(stack.kafka, SecuredBroker)
    return stack.kafka.listener_address(listener)
