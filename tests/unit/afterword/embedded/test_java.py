"""Jars are fetched once and checked, and incomplete ones are never visible."""

import hashlib
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from afterword.embedded.java import Jar, JarCache, JarsUnavailable
from afterword.streams.private import cache_directory

BYTES = {"one": b"first" * 5_000, "two": b"second" * 5_000}


class Repository:
    """A Maven repository on this machine, which counts what it is asked for."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.asked: Counter[str] = Counter()
        repository = self

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                repository.asked[Path(self.path).name] += 1
                super().do_GET()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(directory)))
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def addresses(self) -> dict[str, str]:
        return {"local": f"http://127.0.0.1:{self.server.server_port}"}

    def publish(self, jar: Jar, data: bytes) -> None:
        path = self.directory.joinpath(*jar.group.split("."), jar.artifact, jar.version, jar.file_name)
        path.parent.mkdir(parents=True)
        path.write_bytes(data)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def jars() -> list[Jar]:
    return [
        Jar("org.example", name, "1.0", len(data), hashlib.sha256(data).hexdigest(), "kafka")
        for name, data in BYTES.items()
    ]


@pytest.fixture
def repository(tmp_path: Path, jars: list[Jar]) -> Iterator[Repository]:
    repository = Repository(tmp_path / "repository")
    for jar in jars:
        repository.publish(jar, BYTES[jar.artifact])
    yield repository
    repository.close()


@pytest.fixture
def cache(tmp_path: Path, jars: list[Jar], repository: Repository) -> JarCache:
    return JarCache(tmp_path / "cache", jars, repositories=repository.addresses)


def test_missing_jars_are_fetched_once(cache: JarCache, jars: list[Jar], repository: Repository) -> None:
    for _ in range(2):
        cache.ensure()
    assert [cache.path(jar).read_bytes() for jar in jars] == list(BYTES.values())
    assert {repository.asked[jar.file_name] for jar in jars} == {1}


@pytest.mark.parametrize("damaged", [BYTES["one"][:100], b"x" * len(BYTES["one"])])
def test_damaged_jar_is_fetched_again(cache: JarCache, jars: list[Jar], damaged: bytes) -> None:
    cache.ensure()
    cache.path(jars[0]).write_bytes(damaged)
    cache.ensure()
    assert cache.path(jars[0]).read_bytes() == BYTES["one"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"sha256": hashlib.sha256(b"").hexdigest()}, r"two-1\.0\.jar.*hash"), ({"version": "9.9"}, r"two-9\.9\.jar")],
)
def test_other_or_missing_jar_is_always_refused(
    tmp_path: Path, jars: list[Jar], repository: Repository, wrong: dict[str, str], said: str
) -> None:
    jars = [jars[0], jars[1]._replace(**wrong)]  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(JarsUnavailable, match=said):
            JarCache(tmp_path / "cache", jars, repositories=repository.addresses).ensure()


def test_progress_counts_up_to_all_bytes(tmp_path: Path, jars: list[Jar], repository: Repository) -> None:
    told: list[tuple[str, int, int]] = []
    JarCache(tmp_path / "cache", jars, lambda *news: told.append(news), repository.addresses).ensure()
    total = sum(map(len, BYTES.values()))
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert told[-1][1:] == (total, total)
    assert {name for name, _, _ in told} == {"one-1.0.jar", "two-1.0.jar"}


def test_two_concurrent_starts_fetch_each_jar_once(tmp_path: Path, jars: list[Jar], repository: Repository) -> None:
    caches = [JarCache(tmp_path / "cache", jars, repositories=repository.addresses) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(JarCache.ensure, caches))
    assert {repository.asked[jar.file_name] for jar in jars} == {1}


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("AFTERWORD_CACHE_DIR", raising=False)
    assert cache_directory() == tmp_path / ".cache" / "afterword"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert cache_directory() == tmp_path / ".cache" / "afterword"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "afterword"
    monkeypatch.setenv("AFTERWORD_CACHE_DIR", str(tmp_path / "chosen"))
    assert cache_directory() == tmp_path / "chosen"
