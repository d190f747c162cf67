"""Apache Kafka (KRaft) as child processes: one node, or a cluster of three for faults that need one."""

import base64
import json
import uuid
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from afterword.embedded.access import PLAIN, Access, Listener, scram_arguments, with_listeners
from afterword.embedded.errors import ClusterSizeDiffers, FormatFailed
from afterword.embedded.java import Java, run
from afterword.embedded.ports import HOST, remembered_ports
from afterword.embedded.process import Process
from afterword.embedded.server import Server

CLEANER_BYTES = 16 << 20
"""Of the heap, for the compaction of topics: by default a third of ours, and when the broker is told
to compact more often it takes that twice. There it ran out of memory, and compacted nothing any more."""
SECURITY = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"


class Cluster(NamedTuple):
    """What all its nodes know."""

    id: str
    ports: list[int]
    """Of each node, in order, that of its broker and that of its controller."""
    pass_fds: Collection[int]
    access: Access = PLAIN
    listener_ports: Sequence[int] = ()
    """Of each node, in order, those of the listeners of `access`."""

    def more_listeners(self, node_id: int) -> list[tuple[Listener, int]]:
        """With their ports on this node."""
        listeners = self.access.listeners
        first = (node_id - 1) * len(listeners)
        return list(zip(listeners, self.listener_ports[first : first + len(listeners)], strict=True))


class Broker(Server):
    """One node, broker and controller in one; its port stays the same however often it is killed and started."""

    def __init__(self, java: Java, directory: Path, node_id: int, cluster: Cluster) -> None:
        super().__init__()
        self.node_id = node_id
        self._java = java
        self._directory = directory
        self._cluster = cluster

    @property
    def address(self) -> str:
        """host:port."""
        return f"{HOST}:{self._cluster.ports[2 * self.node_id - 2]}"

    def listener_address(self, name: str) -> str:
        """host:port of one of the listeners of `Access`."""
        return next(
            f"{HOST}:{port}" for listener, port in self._cluster.more_listeners(self.node_id) if listener.name == name
        )

    def _launch(self) -> Process:
        self._directory.mkdir(parents=True, exist_ok=True)
        logs = self._directory / "logs"
        properties = self._directory / "server.properties"
        access = self._cluster.access
        plain = {**server_properties(self.node_id, self._cluster.ports, logs), **access.properties}
        properties.write_text(render(with_listeners(plain, self._cluster.more_listeners(self.node_id))))
        if not (logs / "meta.properties").exists():
            self._format(properties)
        command = self._java.kafka("kafka.Kafka", str(properties))
        log = self._directory / "kafka.log"
        return Process(f"kafka broker {self.node_id}", command, log, pass_fds=self._cluster.pass_fds)

    def _format(self, properties: Path) -> None:
        arguments = ("format", "-t", self._cluster.id, "-c", str(properties), "--ignore-formatted")
        users = scram_arguments(self._cluster.access.scram_users)
        run(self._java.kafka("kafka.tools.StorageTool", *arguments, *users), FormatFailed)


class Kafka:
    """A cluster whose id, ports and data are in `directory`: a second start finds all of it again."""

    def __init__(
        self,
        java: Java,
        directory: Path,
        brokers: int = 1,
        pass_fds: Collection[int] = (),
        access: Access = PLAIN,
    ) -> None:
        """Raises: ClusterSizeDiffers."""
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
        """Every broker that is not running; does not wait until they answer."""
        self._each(Broker.start)

    def stop(self) -> None:
        self._each(Broker.stop)

    def kill(self) -> None:
        self._each(Broker.kill)

    def _each(self, action: Callable[[Broker], None]) -> None:
        # at once: the last of three that stop one after the other would have no quorum to take its leave from
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            list(pool.map(action, self.brokers))


def server_properties(node_id: int, ports: list[int], logs: Path) -> dict[str, str | int]:
    """`ports` as in `Cluster`."""
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


def _cluster_id(directory: Path) -> str:
    file = directory / "cluster.id"
    if not file.exists():
        directory.mkdir(parents=True, exist_ok=True)
        file.write_text(new_cluster_id())
    return file.read_text()


def _ports(directory: Path, brokers: int) -> list[int]:
    file = directory / "ports.json"
    if file.exists() and (found := len(json.loads(file.read_text())) // 2) != brokers:
        raise ClusterSizeDiffers(directory=directory, found=found, wanted=brokers)
    return remembered_ports(file, 2 * brokers)


def new_cluster_id(random: Callable[[], uuid.UUID] = uuid.uuid4) -> str:
    """As Kafka's own: never with a dash in front, which the storage tool would take for an option."""
    while True:
        text = base64.urlsafe_b64encode(random().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
