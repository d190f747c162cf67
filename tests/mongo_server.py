"""A MongoDB server for tests: mongo-java-server over a file, without secondary indexes, one command at a time.

It tests the MongoDB adapter where no container engine can run the official image.
"""

import hashlib
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from afterword.embedded.claims import HOST, exclusive, free_ports
from afterword.embedded.java import JarCache, command_line, parse_lock
from afterword.embedded.process import Process, Server, accepts, until_ready
from afterword.streams.errors import AfterwordError
from afterword.streams.private import cache_directory

DATA = Path(__file__).parent / "data" / "mongo"
SOURCE = DATA / "TestMongo.java"
HEAP = ("-Xmx1g",)
"""Enough for a query that looks at all messages of a run with hostile input."""
COMPILER = "org.eclipse.jdt.internal.compiler.batch.Main"


class CompilationFailed(AfterwordError):
    """cannot compile {source}: {output}"""


class MongoServer(Server):
    """Server on a port that stays the same, with its data in `directory`; acknowledged writes survive SIGKILL."""

    def __init__(self, directory: Path) -> None:
        self.port = free_ports(1)[0]
        self._directory = directory

    @property
    def uri(self) -> str:
        return f"mongodb://{HOST}:{self.port}/?directConnection=true"

    async def run(self) -> None:
        """Start it unless it runs, and wait until it answers."""
        self.start()
        await until_ready(self.process, partial(accepts, HOST, self.port))

    def _launch(self) -> Process:
        self._directory.mkdir(parents=True, exist_ok=True)
        command = mongo_command(HOST, str(self.port), str(self._directory / "store.mv"))
        return Process("mongo", command, self._directory / "mongo.log")


@asynccontextmanager
async def running_mongo(directory: Path) -> AsyncIterator[MongoServer]:
    server = MongoServer(directory)
    try:
        await server.run()
        yield server
    finally:
        server.stop()


def mongo_command(*arguments: str) -> list[str]:
    """Return the server's command line; fetch and compile the server if it is missing."""
    jars = mongo_jars()
    classpath = os.pathsep.join((str(compiled(jars)), jars.classpath("mongo")))
    return command_line(classpath, "TestMongo", arguments, HEAP)


def mongo_jars() -> JarCache:
    """Return the jars, fetching those that are missing."""
    jars = JarCache(cache_directory(), parse_lock((DATA / "jars.lock").read_text()))
    jars.ensure()
    return jars


def compiled(jars: JarCache) -> Path:
    """Compile the server's classes and return their directory. Raises: CompilationFailed."""
    inputs = SOURCE.read_bytes() + jars.classpath("mongo").encode()
    classes = jars.directory / "classes" / hashlib.sha256(inputs).hexdigest()[:16]
    classes.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(classes.parent / "lock"), tempfile.TemporaryDirectory(dir=classes.parent) as directory:
        if not classes.exists():
            made = Path(directory, "made")
            options: Sequence[str] = ("-17", "-nowarn", "-cp", jars.classpath("mongo"), "-d", str(made))
            compile_java(jars, options, SOURCE)
            made.rename(classes)
    return classes


def compile_java(jars: JarCache, options: Sequence[str], source: Path) -> None:
    """Run the compiler. Raises: CompilationFailed."""
    command = command_line(jars.classpath("compiler"), COMPILER, (*options, str(source)))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompilationFailed(source=source.name, output=(done.stdout + done.stderr).strip())
