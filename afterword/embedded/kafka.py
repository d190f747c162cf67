"""Apache Kafka (KRaft) as child processes: one node, or a cluster of three for fault tests."""

import asyncio
import base64
import json
import tempfile
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from aiokafka.admin import AIOKafkaAdminClient

from afterword.embedded.claims import HOST, remembered_ports
from afterword.embedded.errors import ClusterSizeDiffers, FormatFailed
from afterword.embedded.java import Java, Recorded, run
from afterword.embedded.process import NotReady, Process, Server, accepts, until_ready
from afterword.streams.private import private_directory, write_private

Properties = Mapping[str, str | int]

CLEANER_BYTES = 16 << 20
"""Memory for log compaction. The default is a third of our heap, and twice that if the broker compacts more often; with
that the broker ran out of memory and stopped compacting."""
REQUEST_MILLISECONDS = 5_000
RECORDING_SECONDS = 120.0
"""Time limit for writing an archive of classes, which takes 4 s on an idle machine."""
META = "meta.properties"
SECURITY = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"


@dataclass(frozen=True)
class Listener:
    """An additional address for clients, used by the tests of TLS and SASL."""

    name: str
    """The name, in capitals."""
    protocol: str
    """`SSL`, `SASL_SSL` or `SASL_PLAINTEXT`."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Broker properties, without the prefix that names the listener."""


@dataclass(frozen=True)
class Access:
    """Listeners, users and properties in addition to the plain listener, which is open to everyone."""

    listeners: tuple[Listener, ...] = ()
    scram_users: Mapping[str, str] = field(default_factory=dict)
    """Passwords by user name, stored when a cluster first starts."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Additional properties of every broker, such as an authorizer."""


PLAIN = Access()
"""Access through the plain listener only."""


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


class Cluster(NamedTuple):
    """Properties that all nodes share."""

    id: str
    ports: list[int]
    """Two ports for each node in turn: broker and controller."""
    pass_fds: Collection[int]
    access: Access = PLAIN
    listener_ports: Sequence[int] = ()
    """Ports of the listeners in `access`, node by node."""

    def more_listeners(self, node_id: int) -> list[tuple[Listener, int]]:
        """Return the additional listeners with their ports on this node."""
        listeners = self.access.listeners
        first = (node_id - 1) * len(listeners)
        return list(zip(listeners, self.listener_ports[first : first + len(listeners)], strict=True))


class Broker(Server):
    """A node that is both broker and controller. It keeps its port when it is restarted."""

    def __init__(self, java: Java, directory: Path, node_id: int, cluster: Cluster) -> None:
        super().__init__()
        self.node_id = node_id
        self._java = java
        self._directory = directory
        self._cluster = cluster

    @property
    def address(self) -> str:
        """The plain listener's address, as host:port."""
        return f"{HOST}:{self._cluster.ports[2 * self.node_id - 2]}"

    def listener_address(self, name: str) -> str:
        """Return the address of a listener of `Access`, as host:port."""
        return next(
            f"{HOST}:{port}" for listener, port in self._cluster.more_listeners(self.node_id) if listener.name == name
        )

    def _launch(self) -> Process:
        private_directory(self._directory)
        logs = self._directory / "logs"
        properties = self._directory / "server.properties"
        access = self._cluster.access
        plain = {**server_properties(self.node_id, self._cluster.ports, logs), **access.properties}
        properties.write_text(render(with_listeners(plain, self._cluster.more_listeners(self.node_id))))
        if not (logs / META).exists():
            self._format(properties, logs)
        log = self._directory / "kafka.log"
        return Process(f"kafka broker {self.node_id}", self._command(properties), log, pass_fds=self._cluster.pass_fds)

    def _command(self, properties: Path) -> list[str]:
        return self._java.kafka("kafka.Kafka", str(properties))

    def _format(self, properties: Path, logs: Path) -> None:
        """Format the directory for a new node. Kafka's own tool, another JVM, is needed only to store users."""
        if users := scram_arguments(self._cluster.access.scram_users):
            arguments = ("format", "-t", self._cluster.id, "-c", str(properties), "--ignore-formatted")
            run(self._java.kafka("kafka.tools.StorageTool", *arguments, *users), FormatFailed)
            return
        private_directory(logs)
        meta: dict[str, str | int] = {"version": 1, "cluster.id": self._cluster.id, "node.id": self.node_id}
        meta["directory.id"] = new_id()
        write_private(logs / META, render(meta).encode())


class _RecordedBroker(Broker):
    """A broker that writes an archive of its classes when it stops."""

    def __init__(self, java: Java, directory: Path, recorded: Recorded) -> None:
        ports = remembered_ports(directory / "ports.json", 2)
        super().__init__(java, directory, 1, Cluster(new_id(), ports, ()))
        self._recorded = recorded

    def _command(self, properties: Path) -> list[str]:
        return self._recorded("kafka.Kafka", [str(properties)])


def record(java: Java, go_on: Callable[[], None]) -> None:
    """Run a broker once to record its classes, unless there is an archive. Later starts then take half the time.

    It blocks, and calls `go_on` repeatedly while the broker starts. Raises: the errors of `go_on`, FormatFailed,
    ProcessExited, StartTimeout.
    """
    with java.recording() as recorded:
        if recorded is None:
            return
        with tempfile.TemporaryDirectory() as directory, ExitStack() as undo:
            broker = _RecordedBroker(java, Path(directory), recorded)
            broker.start()
            undo.callback(broker.kill)
            asyncio.run(until_ready(broker.process, partial(_has_started, broker, go_on)))
            undo.pop_all()
            broker.process.stop(RECORDING_SECONDS)


async def _has_started(broker: Broker, go_on: Callable[[], None]) -> None:
    go_on()
    await has_brokers(broker.address, 1)


class KafkaServer:
    """A cluster whose id, ports and data are kept in `directory`, so that it can be started again."""

    def __init__(
        self,
        java: Java,
        directory: Path,
        brokers: int = 1,
        pass_fds: Collection[int] = (),
        access: Access = PLAIN,
    ) -> None:
        """Prepare the brokers without starting them. Raises: ClusterSizeDiffers."""
        ports = _ports(directory, brokers)
        wanted = brokers * len(access.listeners)
        more = remembered_ports(directory / "listeners.json", wanted) if wanted else []
        cluster = Cluster(_cluster_id(directory), ports, pass_fds, access, more)
        self.brokers = [Broker(java, directory / f"broker-{node}", node, cluster) for node in range(1, brokers + 1)]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    def servers_of(self, listener: str) -> str:
        """Return the `bootstrap_servers` for one listener of `Access`."""
        return ",".join(broker.listener_address(listener) for broker in self.brokers)

    def start(self) -> None:
        """Start every broker that is not running, without waiting until it answers."""
        self._each(Broker.start)

    def stop(self) -> None:
        self._each(Broker.stop)

    def kill(self) -> None:
        self._each(Broker.kill)

    def _each(self, action: Callable[[Broker], None]) -> None:
        # stopped concurrently, because the last of three would have no quorum for its controlled shutdown
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            list(pool.map(action, self.brokers))


def server_properties(node_id: int, ports: list[int], logs: Path) -> dict[str, str | int]:
    """Return the properties of one node; `ports` as in `Cluster`."""
    nodes = len(ports) // 2
    broker, controller = ports[2 * node_id - 2 : 2 * node_id]
    voters = ",".join(f"{node}@{HOST}:{ports[2 * node - 1]}" for node in range(1, nodes + 1))
    return {
        "process.roles": "broker,controller",
        "node.id": node_id,
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://{HOST}:{broker},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{broker}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": SECURITY,
        "log.dirs": str(logs),
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": 0,
        "log.cleaner.dedupe.buffer.size": CLEANER_BYTES,
        **replication(nodes),
    }


def replication(nodes: int) -> dict[str, str | int]:
    """Replicate every topic to every node. With three nodes a write survives the loss of one."""
    in_sync = min(2, nodes)
    return {
        "default.replication.factor": nodes,
        "min.insync.replicas": in_sync,
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": nodes,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": nodes,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": nodes,
        "share.coordinator.state.topic.min.isr": in_sync,
    }


def render(properties: dict[str, str | int]) -> str:
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def _cluster_id(directory: Path) -> str:
    file = directory / "cluster.id"
    if not file.exists():
        write_private(file, new_id().encode())
    return file.read_text()


def _ports(directory: Path, brokers: int) -> list[int]:
    file = directory / "ports.json"
    if file.exists() and (found := len(json.loads(file.read_text())) // 2) != brokers:
        raise ClusterSizeDiffers(directory=directory, found=found, wanted=brokers)
    return remembered_ports(file, 2 * brokers)


def new_id(random: Callable[[], uuid.UUID] = uuid.uuid4) -> str:
    """Generate an id for a cluster or a directory as Kafka does.

    It never begins with a dash, which the storage tool would read as an option.
    """
    while True:
        text = base64.urlsafe_b64encode(random().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


async def has_brokers(bootstrap_server: str, count: int) -> None:
    """Check that this broker sees `count` live brokers. Raises: NotReady, KafkaError, OSError."""
    host, port = bootstrap_server.split(":")
    await accepts(host, int(port))  # aiokafka logs an error for every refused connection
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_server, request_timeout_ms=REQUEST_MILLISECONDS)
    try:
        await admin.start()
        found = len((await admin.describe_cluster())["brokers"])
    finally:
        await admin.close()
    if found != count:
        raise NotReady(f"{found} of {count} brokers are alive")
