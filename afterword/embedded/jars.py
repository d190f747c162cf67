"""The jars of the embedded servers: fetched once, checked against committed hashes, kept in a cache."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import NamedTuple, Self

from jgo.maven import MavenContext, PythonResolver
from requests import RequestException

from afterword.embedded.errors import JarsUnavailable
from afterword.embedded.locks import exclusive

CACHE_VARIABLE = "AFTERWORD_CACHE_DIR"
FETCHES_AT_ONCE = 6
TIMEOUT_SECONDS = 60

Progress = Callable[[str, int, int], None]
"""Told what is being fetched, the bytes so far and the bytes in all; called from several threads, one at a time.
What it raises ends the fetching."""


class Jar(NamedTuple):
    """One line of `jars.lock`."""

    group: str
    artifact: str
    version: str
    size: int
    """In bytes."""
    sha256: str
    used_by: str
    """`kafka`, `mongo`, both separated by a comma, or `compiler`."""

    @classmethod
    def parse(cls, line: str) -> Self:
        coordinate, size, sha256, used_by = line.split()
        group, artifact, version = coordinate.split(":")
        return cls(group, artifact, version, int(size), sha256, used_by)

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


def cache_directory() -> Path:
    """`AFTERWORD_CACHE_DIR`, else `afterword` below XDG's cache directory, by default `~/.cache/afterword`."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "afterword"


def locked_jars() -> list[Jar]:
    text = files("afterword.embedded").joinpath("jars.lock").read_text()
    return [Jar.parse(line) for line in text.splitlines() if line and not line.startswith("#")]


def unheard(name: str, done: int, total: int) -> None:
    """Progress that nobody is told of."""


class JarCache:
    """Jars below one directory; several processes may use it at a time."""

    def __init__(
        self,
        directory: Path,
        jars: Sequence[Jar],
        progress: Progress = unheard,
        repositories: Mapping[str, str] | None = None,
    ) -> None:
        """`repositories`: names and addresses to fetch from; by default what jgo knows."""
        self.directory = directory
        self.jars = jars
        self._progress = progress
        self._repositories = repositories

    def classpath(self, user: str) -> str:
        """Of the jars that `user` (`kafka`, `mongo`, `compiler`) needs."""
        return os.pathsep.join(str(self.path(jar)) for jar in self.jars if user in jar.used_by.split(","))

    def path(self, jar: Jar) -> Path:
        return self.directory.joinpath("jars", *jar.group.split("."), jar.artifact, jar.version, jar.file_name)

    def ensure(self) -> None:
        """Fetches what is missing; with everything there it reads one small file and needs no network.

        Raises: JarsUnavailable.
        """
        if self._complete():
            return
        with exclusive(self.directory / "lock"):
            if not self._complete():
                self._fetch_missing()
                self._marker.write_text("every jar of this list is here and has its hash\n")

    @property
    def _marker(self) -> Path:
        return self.directory / "jars" / f"{_digest(repr(list(self.jars)).encode())[:16]}.complete"

    def _complete(self) -> bool:
        return self._marker.exists() and all(self.path(jar).exists() for jar in self.jars)

    def _fetch_missing(self) -> None:
        missing = [jar for jar in self.jars if not self._intact(jar)]
        fetch = _Fetch(self._maven, sum(jar.size for jar in missing), self._progress)
        with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
            list(pool.map(fetch, missing))
        for jar in missing:
            if not self._intact(jar):
                raise JarsUnavailable(jar=jar.file_name, problem="what came has another hash than jars.lock")

    def _maven(self, resolver: PythonResolver) -> MavenContext:
        remote = dict(self._repositories) if self._repositories else None
        return MavenContext(resolver, repo_cache=self.directory / "jars", remote_repos=remote, timeout=TIMEOUT_SECONDS)

    def _intact(self, jar: Jar) -> bool:
        """Whether it is there. What has another hash (a fetch that was cut off) is removed: jgo would take it."""
        path = self.path(jar)
        if not path.exists():
            return False
        if _digest(path.read_bytes()) == jar.sha256:
            return True
        path.unlink()
        return False


class _Fetch:
    """Fetches jars through jgo, which knows where they are, and counts the bytes."""

    def __init__(self, maven: Callable[[PythonResolver], MavenContext], total: int, progress: Progress) -> None:
        self._maven = maven(PythonResolver(progress_callback=self._counting))
        self._total = total
        self._done = 0
        self._progress = progress
        self._lock = Lock()

    def __call__(self, jar: Jar) -> None:
        artifact = self._maven.project(jar.group, jar.artifact).at_version(jar.version).artifact()
        try:
            artifact.resolve()
        except (RequestException, RuntimeError, OSError) as error:
            raise JarsUnavailable(jar=jar.file_name, problem=str(error)) from error

    @contextmanager
    def _counting(self, name: str, _size: int) -> Iterator[Callable[[int], None]]:
        def count(received: int) -> None:
            with self._lock:
                self._done += received
                self._progress(name, self._done, self._total)

        yield count


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
