"""Apache Kafka (KRaft) as child processes: one node, or a cluster of three for faults that need one."""

import base64
import json
import uuid
from collections.abc import Collection
from pathlib import Path

from afterword.embedded.errors import ClusterSizeDiffers, FormatFailed
from afterword.embedded.java import Java, run
from afterword.embedded.ports import HOST, remembered_ports
from afterword.embedded.process import Process

SECURITY = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"


class Broker:
    """One node, broker and controller in one; its port stays the same however often it is killed and started."""

    def __init__(self, java: Java, directory: Path, node_id: int, ports: list[int], pass_fds: Collection[int]) -> None:
        self.node_id = node_id
        self.directory = directory
        self._java = java
        self._ports = ports
        self._pass_fds = pass_fds
        self._process: Process | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self._ports[2 * (self.node_id - 1)]}"

    @property
    def process(self) -> Process:
        if self._process is None:
            raise RuntimeError(f"broker {self.node_id} was never started")
        return self._process

    def start(self, cluster_id: str) -> None:
        """Does not wait until it answers; blocks while the storage is formatted at the very first start."""
        self.directory.mkdir(parents=True, exist_ok=True)
        properties = self.directory / "server.properties"
        properties.write_text(render(server_properties(self.node_id, self._ports, self.directory / "logs")))
        if not (self.directory / "logs" / "meta.properties").exists():
            self._format(cluster_id, properties)
        command = self._java.kafka("kafka.Kafka", str(properties))
        log = self.directory / "kafka.log"
        self._process = Process(f"kafka broker {self.node_id}", command, log, pass_fds=self._pass_fds)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def kill(self) -> None:
        self.process.kill()

    def _format(self, cluster_id: str, properties: Path) -> None:
        arguments = ("format", "-t", cluster_id, "-c", str(properties), "--ignore-formatted")
        run(self._java.kafka("kafka.tools.StorageTool", *arguments), FormatFailed)


class Kafka:
    """A cluster whose id, ports and data are in `directory`: a second start finds all of it again."""

    def __init__(self, java: Java, directory: Path, brokers: int = 1, pass_fds: Collection[int] = ()) -> None:
        self._directory = directory
        self._ports = _ports(directory, brokers)
        self.brokers = [
            Broker(java, directory / f"broker-{node}", node, self._ports, pass_fds) for node in range(1, brokers + 1)
        ]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    def start(self) -> None:
        """Starts every broker that is not running; does not wait until they answer."""
        cluster_id = self._cluster_id()
        for broker in self.brokers:
            if broker._process is None or not broker._process.running:
                broker.start(cluster_id)

    def stop(self) -> None:
        for broker in self.brokers:
            broker.stop()

    def kill(self) -> None:
        for broker in self.brokers:
            broker.kill()

    def check(self) -> None:
        for broker in self.brokers:
            broker.process.check()

    def _cluster_id(self) -> str:
        file = self._directory / "cluster.id"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="))
        return file.read_text()


def server_properties(node_id: int, ports: list[int], logs: Path) -> dict[str, str | int]:
    """`ports`: of each node, in order, that of its broker and that of its controller."""
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
        **replication(nodes),
    }


def replication(nodes: int) -> dict[str, str | int]:
    """Every topic on every node; with three of them a write survives the loss of one."""
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


def _ports(directory: Path, brokers: int) -> list[int]:
    file = directory / "ports.json"
    if file.exists() and (found := len(json.loads(file.read_text())) // 2) != brokers:
        raise ClusterSizeDiffers(directory=directory, found=found, wanted=brokers)
    return remembered_ports(file, 2 * brokers)
