"""Apache Kafka (KRaft) as a child process: one node that is both broker and controller."""

import base64
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType

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
UNREPLICATED: Properties = {
    "default.replication.factor": 1,
    "min.insync.replicas": 1,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
}


class Broker(Server):
    """A Kafka broker that keeps its ports and data in `directory`, so that it can be restarted."""

    def __init__(
        self,
        java: Java,
        directory: Path,
        pass_fds: Collection[int] = (),
        *,
        record: bool = False,
        properties: Properties = MappingProxyType({}),
    ) -> None:
        """Prepare the broker without starting it.

        With `record`, it may record its classes for later starts. `properties` replace or extend our own.
        """
        super().__init__()
        self.java = java
        self.directory = directory
        self.cluster_id = new_id()
        """Id of the cluster that a new directory is formatted for."""
        self.ports = remembered_ports(directory / "ports.json", 2)
        """The ports of the broker and of the controller."""
        self._pass_fds = pass_fds
        self._record = record
        self._further = properties

    @property
    def bootstrap_servers(self) -> str:
        """The plain listener's address, as host:port."""
        return f"{HOST}:{self.ports[0]}"

    @property
    def logs(self) -> Path:
        """The directory of its data."""
        return self.directory / "logs"

    def properties(self) -> dict[str, str | int]:
        return {**server_properties(self.ports[0], self.ports[1], self.logs), **self._further}

    def format(self) -> None:
        """Format the directory of a new node ourselves, because Kafka's own tool would start another JVM."""
        private_directory(self.logs)
        ids = {"cluster.id": self.cluster_id, "node.id": self.properties()["node.id"], "directory.id": new_id()}
        write_private(self.logs / META, render({"version": 1, **ids}).encode())

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
        command = self.java.broker(properties, record=self._record)
        return Process("kafka", command, self.directory / "kafka.log", pass_fds=self._pass_fds)


def server_properties(broker_port: int, controller_port: int, logs: Path) -> dict[str, str | int]:
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://{HOST}:{broker_port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{broker_port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": SECURITY,
        "log.dirs": str(logs),
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": 0,
        "log.cleaner.dedupe.buffer.size": CLEANER_BYTES,
        **UNREPLICATED,
    }


def render(properties: Properties) -> str:
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def new_id() -> str:
    """Generate an id in Kafka's form. It does not begin with a dash, which Kafka's tools would read as an option."""
    first, *rest = uuid.uuid4().bytes
    return base64.urlsafe_b64encode(bytes([first & 0x7F, *rest])).decode().rstrip("=")


async def has_brokers(bootstrap_server: str, count: int = 1) -> None:
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
