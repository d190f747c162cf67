"""MongoDB as a child process: mongo-java-server over a file, with our own launcher."""

from collections.abc import Collection
from pathlib import Path

from afterword.embedded.claims import HOST, remembered_ports
from afterword.embedded.java import Java
from afterword.embedded.process import Process, Server


class MongoServer(Server):
    """Server whose port and data are in `directory`; acknowledged writes survive SIGKILL."""

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
