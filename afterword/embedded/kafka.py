"""Apache Kafka (KRaft) as child processes: one node, or a cluster of three for tests of faults."""

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
"""Heap for log compaction. The default is a third of our heap, and twice that if the broker compacts more often: it ran
out of memory and stopped compacting."""
REQUEST_MILLISECONDS = 5_000
RECORDING_SECONDS = 120.0
"""Time to write an archive of classes, which takes 4 s on an idle machine."""
META = "meta.properties"
SECURITY = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"


@dataclass(frozen=True)
class Listener:
    """Additional address for clients; for tests of TLS and SASL."""

    name: str
    """Name in capitals."""
    protocol: str
    """`SSL`, `SASL_SSL` or `SASL_PLAINTEXT`."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Properties of the broker, without the prefix that names the listener."""


@dataclass(frozen=True)
class Access:
    """Listeners, users and properties beside the plain listener, which is open to everybody."""

    listeners: tuple[Listener, ...] = ()
    scram_users: Mapping[str, str] = field(default_factory=dict)
    """Passwords by name, stored at the first start of a cluster."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Additional properties of every broker, such as an authorizer."""


PLAIN = Access()
"""Only the plain listener."""


def with_listeners(properties: Properties, listeners: Sequence[tuple[Listener, int]]) -> dict[str, str | int]:
    """Add listeners, with their ports, to the plain properties."""
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
    """Arguments of the storage tool, with both SCRAM mechanisms for each user."""
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
    """Two for each node, in order: broker and controller."""
    pass_fds: Collection[int]
    access: Access = PLAIN
    listener_ports: Sequence[int] = ()
    """Ports of the listeners of `access`, node by node."""

    def more_listeners(self, node_id: int) -> list[tuple[Listener, int]]:
        """Listeners with their ports on this node."""
        listeners = self.access.listeners
        first = (node_id - 1) * len(listeners)
        return list(zip(listeners, self.listener_ports[first : first + len(listeners)], strict=True))


class Broker(Server):
    """Node that is broker and controller; its port stays the same when it is restarted."""

    def __init__(self, java: Java, directory: Path, node_id: int, cluster: Cluster) -> None:
        super().__init__()
        self.node_id = node_id
        self._java = java
        self._directory = directory
        self._cluster = cluster

    @property
    def address(self) -> str:
        """Address host:port of the plain listener."""
        return f"{HOST}:{self._cluster.ports[2 * self.node_id - 2]}"

    def listener_address(self, name: str) -> str:
        """Address host:port of a listener of `Access`."""
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
        """Make the directory a new node's. Kafka's tool, another JVM, does it only where it has users to store."""
        if users := scram_arguments(self._cluster.access.scram_users):
            arguments = ("format", "-t", self._cluster.id, "-c", str(properties), "--ignore-formatted")
            run(self._java.kafka("kafka.tools.StorageTool", *arguments, *users), FormatFailed)
            return
        private_directory(logs)
        meta: dict[str, str | int] = {"version": 1, "cluster.id": self._cluster.id, "node.id": self.node_id}
        meta["directory.id"] = new_id()
        write_private(logs / META, render(meta).encode())


class _RecordedBroker(Broker):
    """Writes an archive of its classes when it stops."""

    def __init__(self, java: Java, directory: Path, recorded: Recorded) -> None:
        ports = remembered_ports(directory / "ports.json", 2)
        super().__init__(java, directory, 1, Cluster(new_id(), ports, ()))
        self._recorded = recorded

    def _command(self, properties: Path) -> list[str]:
        return self._recorded("kafka.Kafka", [str(properties)])


def record(java: Java, go_on: Callable[[], None]) -> None:
    """Run a broker once for its classes, unless there is an archive: the others start in half the time. Blocks.

    `go_on` is asked again and again while the broker starts. Raises: its errors, FormatFailed, ProcessExited,
    StartTimeout.
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
    """Cluster whose id, ports and data are in `directory`; a second start finds them again."""

    def __init__(
        self,
        java: Java,
        directory: Path,
        brokers: int = 1,
        pass_fds: Collection[int] = (),
        access: Access = PLAIN,
    ) -> None:
        """Prepare the brokers; nothing is started. Raises: ClusterSizeDiffers."""
        ports = _ports(directory, brokers)
        wanted = brokers * len(access.listeners)
        more = remembered_ports(directory / "listeners.json", wanted) if wanted else []
        cluster = Cluster(_cluster_id(directory), ports, pass_fds, access, more)
        self.brokers = [Broker(java, directory / f"broker-{node}", node, cluster) for node in range(1, brokers + 1)]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    def servers_of(self, listener: str) -> str:
        """`bootstrap_servers` for one of the listeners of `Access`."""
        return ",".join(broker.listener_address(listener) for broker in self.brokers)

    def start(self) -> None:
        """Start every broker that is not running; does not wait for answers."""
        self._each(Broker.start)

    def stop(self) -> None:
        self._each(Broker.stop)

    def kill(self) -> None:
        self._each(Broker.kill)

    def _each(self, action: Callable[[Broker], None]) -> None:
        # concurrently: the last of three to stop would have no quorum for its controlled shutdown
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            list(pool.map(action, self.brokers))


def server_properties(node_id: int, ports: list[int], logs: Path) -> dict[str, str | int]:
    """Properties of one node; `ports` as in `Cluster`."""
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
    """Replicate every topic to every node; with three nodes a write survives the loss of one."""
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
    """Make an id of a cluster or directory as Kafka does.

    It has no leading dash, which the storage tool would read as an option.
    """
    while True:
        text = base64.urlsafe_b64encode(random().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


async def has_brokers(bootstrap_server: str, count: int) -> None:
    """Check that this broker knows `count` live ones. Raises: NotReady, KafkaError, OSError."""
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
