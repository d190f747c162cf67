"""A cluster of three brokers, which replicates every topic and so survives the loss of one."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from afterword.embedded import EmbeddedStack
from afterword.embedded.claims import HOST
from afterword.embedded.java import JarCache
from afterword.embedded.process import until_ready
from afterword.embedded.stack import PROPERTIES, Broker, has_brokers

REPLICATED = {name: 3 for name in PROPERTIES if name.endswith("replication.factor")}
REPLICATED |= {name: 2 for name in PROPERTIES if name.endswith(("min.isr", "insync.replicas"))}


class Node(Broker):
    """One of the three."""

    def __init__(
        self, number: int, nodes: list["Node"], jars: JarCache, directory: Path, pass_fds: tuple[int, ...]
    ) -> None:
        super().__init__(jars, directory / f"broker-{number}", pass_fds)
        self._number = number
        self._nodes = nodes

    def properties(self) -> dict[str, str | int]:
        voters = ",".join(f"{node._number}@{HOST}:{node.ports[1]}" for node in self._nodes)
        own = {"node.id": self._number, "controller.quorum.voters": voters}
        return {**super().properties(), **own, **REPLICATED}


class ThreeBrokers:
    """Three nodes with the methods of one broker."""

    def __init__(self, jars: JarCache, directory: Path, pass_fds: tuple[int, ...]) -> None:
        self.brokers: list[Node] = []
        self.brokers += [Node(number, self.brokers, jars, directory, pass_fds) for number in (1, 2, 3)]
        for node in self.brokers:
            node.cluster_id = self.brokers[0].cluster_id

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.bootstrap_servers for node in self.brokers)

    def start(self) -> None:
        for node in self.brokers:
            node.start()

    def stop(self) -> None:
        # stopped concurrently, because the last one would have no quorum for its controlled shutdown
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(Node.stop, self.brokers))


class StackOfThree(EmbeddedStack):
    kafka: Any

    def _broker(self, jars: JarCache, directory: Path, pass_fds: tuple[int, ...]) -> Any:
        return ThreeBrokers(jars, directory, pass_fds)

    async def start_kafka(self) -> None:
        self.kafka.start()
        for node in self.kafka.brokers:
            await until_ready(node.process, lambda node=node: has_brokers(node.bootstrap_servers, 3))

    def environment(self) -> dict[str, str]:
        replicated = {"AFTERWORD_KAFKA__REPLICATION_FACTOR": "3", "AFTERWORD_KAFKA__MIN_INSYNC_REPLICAS": "2"}
        return super().environment() | replicated
