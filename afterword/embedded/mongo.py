"""A MongoDB server as a child process: mongo-java-server over a file, behind our own launcher."""

from collections.abc import Collection
from pathlib import Path

from afterword.embedded.java import Java
from afterword.embedded.ports import HOST, remembered_ports
from afterword.embedded.process import Process


class Mongo:
    """Its port and its data are in `directory`; what it acknowledged survives SIGKILL."""

    def __init__(self, java: Java, directory: Path, pass_fds: Collection[int] = ()) -> None:
        self._java = java
        self._directory = directory
        self._pass_fds = pass_fds
        self.port = remembered_ports(directory / "ports.json", 1)[0]
        self._process: Process | None = None

    @property
    def uri(self) -> str:
        return f"mongodb://{HOST}:{self.port}/?directConnection=true"

    @property
    def process(self) -> Process:
        if self._process is None:
            raise RuntimeError("the MongoDB server was never started")
        return self._process

    def start(self) -> None:
        """Does not wait until it answers."""
        command = self._java.mongo(HOST, str(self.port), str(self._directory / "store.mv"))
        self._process = Process("mongo", command, self._directory / "mongo.log", pass_fds=self._pass_fds)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def kill(self) -> None:
        self.process.kill()

    def check(self) -> None:
        self.process.check()
