"""A MongoDB server as a child process: mongo-java-server over a file, behind our own launcher."""

from collections.abc import Collection
from pathlib import Path

from afterword.embedded.java import Java
from afterword.embedded.ports import HOST, remembered_ports
from afterword.embedded.process import Process
from afterword.embedded.server import Server


class Mongo(Server):
    """Its port and its data are in `directory`; what it acknowledged survives SIGKILL."""

    def __init__(self, java: Java, directory: Path, pass_fds: Collection[int] = ()) -> None:
        super().__init__()
        self.port = remembered_ports(directory / "ports.json", 1)[0]
        self._java = java
        self._directory = directory
        self._pass_fds = pass_fds

    @property
    def uri(self) -> str:
        return f"mongodb://{HOST}:{self.port}/?directConnection=true"

    def _launch(self) -> Process:
        command = self._java.mongo(HOST, str(self.port), str(self._directory / "store.mv"))
        return Process("mongo", command, self._directory / "mongo.log", pass_fds=self._pass_fds)
