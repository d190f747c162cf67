"""Apache Kafka (KRaft) as child processes: one node, or a cluster of three for fault tests."""

import base64
import uuid
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from aiokafka.admin import AIOKafkaAdminClient

from afterword.embedded.claims import HOST, remembered_ports
from afterword.embedded.java import Java
from afterword.embedded.process import NotReady, Process, Server, accepts
from afterword.streams.private import private_directory, write_private

Properties = Mapping[str, str | int]

CLEANER_BYTES = 16 << 20
"""Memory for log compaction. By default Kafka uses a third of our heap, or twice that if it compacts more often, and
the broker then ran out of memory and stopped compacting."""
REQUEST_MILLISECONDS = 5_000
RECORDING_SECONDS = 120.0
"""Time limit for stopping, and for writing an archive of classes, which takes 4 s on an idle machine."""
META = "meta.properties"
SECURITY = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"


class Cluster(NamedTuple):
    """What all nodes share."""

    id: str
    ports: list[int]
    """Two ports for each node in turn: broker and controller."""
    pass_fds: Collection[int]
    record: bool
    """True if the first node may record its classes."""
    properties: Properties
    """Properties of every broker in addition to our own."""


class Broker(Server):
    """A node that is both broker and controller. It keeps its port when it is restarted."""

    def __init__(self, java: Java, directory: Path, node_id: int, cluster: Cluster) -> None:
        super().__init__()
        self.node_id = node_id
        self.java = java
        self.directory = directory
        self.cluster = cluster

    @property
    def address(self) -> str:
        """The plain listener's address, as host:port."""
        return f"{HOST}:{self.cluster.ports[2 * self.node_id - 2]}"

    @property
    def logs(self) -> Path:
        """The directory of its data."""
        return self.directory / "logs"

    def properties(self) -> dict[str, str | int]:
        return {**server_properties(self.node_id, self.cluster.ports, self.logs), **self.cluster.properties}

    def format(self) -> None:
        """Format the directory of a new node ourselves, because Kafka's own tool would start another JVM."""
        private_directory(self.logs)
        meta: dict[str, str | int] = {"version": 1, "cluster.id": self.cluster.id, "node.id": self.node_id}
        meta["directory.id"] = new_id()
        write_private(self.logs / META, render(meta).encode())

    def stop(self) -> None:
        """Stop gracefully; blocks. The broker that records its classes takes a few seconds more."""
        if self._process is not None:
            self._process.stop(RECORDING_SECONDS)
            self.java.keep_recording()

    def _launch(self) -> Process:
        private_directory(self.directory)
        properties = self.directory / "server.properties"
        properties.write_text(render(self.properties()))
        if not (self.logs / META).exists():
            self.format()
        command = self.java.broker(properties, record=self.cluster.record and self.node_id == 1)
        log = self.directory / "kafka.log"
        return Process(f"kafka broker {self.node_id}", command, log, pass_fds=self.cluster.pass_fds)


class KafkaServer:
    """A cluster whose id, ports and data are kept in `directory`, so that it can be started again."""

    def __init__(
        self,
        java: Java,
        directory: Path,
        brokers: int = 1,
        pass_fds: Collection[int] = (),
        *,
        record: bool = False,
        properties: Properties = MappingProxyType({}),
        broker: Callable[[Java, Path, int, Cluster], Broker] = Broker,
    ) -> None:
        """Prepare the brokers without starting them; `broker` makes each."""
        ports_file, id_file = directory / "ports.json", directory / "cluster.id"
        ports = remembered_ports(ports_file, 2 * brokers)
        if not id_file.exists():
            write_private(id_file, new_id().encode())
        cluster = Cluster(id_file.read_text(), ports, pass_fds, record, properties)
        self.brokers = [broker(java, directory / f"broker-{node}", node, cluster) for node in range(1, brokers + 1)]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

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


def new_id() -> str:
    """Generate an id in Kafka's form. It does not begin with a dash, which Kafka's tools would read as an option."""
    first, *rest = uuid.uuid4().bytes
    return base64.urlsafe_b64encode(bytes([first & 0x7F, *rest])).decode().rstrip("=")


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
