"""Other users of the machine cannot read data directories, however permissive the umask is."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from afterword.embedded.claims import locked_directory, remembered_ports
from afterword.embedded.process import Process
from afterword.streams.private import private_directory
from afterword.streams.stores.sqlite import SqliteFile
from afterword.streams.stores.sqlite_index import SqliteIndex
from faust_eos.database import Database
from tests.samples import a_summary
from tests.vectors import put

OTHERS = stat.S_IRWXG | stat.S_IRWXO


@pytest.fixture(autouse=True)
def permissive() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory of the operator, which exists and keeps its mode."""
    path = tmp_path / "volume"
    path.mkdir(0o755)
    return path


def open_to_others(root: Path) -> list[Path]:
    """Return the directories that others can enter, and the files that they could read."""
    found = [path for path in root.iterdir() if path.stat().st_mode & OTHERS]
    return [inner for path in found for inner in ([path] if path.is_file() else [path, *open_to_others(path)])]


def test_state_directory_is_private(root: Path) -> None:
    Database(root / "state" / "segmenter" / "0", {}).close()
    assert open_to_others(root) == []


async def test_sqlite_file_is_private(root: Path) -> None:
    index = SqliteIndex(SqliteFile(root / "deep" / "afterword.sqlite"))
    await put(index, a_summary(), "text")
    assert len(list((root / "deep").iterdir())) > 2, "the log as well"
    assert open_to_others(root) == []
    await index.close()


def test_embedded_servers_data_is_private(root: Path) -> None:
    private_directory(root / ".afterword")  # as the stack does before it takes the lock
    with locked_directory(root / ".afterword"):
        pass
    remembered_ports(root / ".afterword" / "kafka" / "ports.json", 1)
    data = root / "data"
    write = f"mkdir -p {data}/sub; echo hi > {data}/sub/file"
    server = Process("server", ["/bin/sh", "-c", write], root / "logs" / "server.log")
    server.wait(10)
    server.kill()
    assert stat.S_IMODE((data / "sub" / "file").stat().st_mode) == 0o600
    assert open_to_others(root) == []


def test_files_created_by_commands_are_private(root: Path) -> None:
    code = (
        "import os, pathlib; os.umask(0); from afterword.commands.common import start; start()\n"
        "pathlib.Path('state').mkdir(); pathlib.Path('file').write_text('')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)
    assert stat.S_IMODE((root / "file").stat().st_mode) == 0o600
    assert open_to_others(root) == []


def test_existing_directory_keeps_its_mode(root: Path) -> None:
    private_directory(root / "new" / "state")
    private_directory(root)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (root, root / "new", root / "new" / "state")]
    assert modes == [0o755, 0o700, 0o700]


def test_file_in_place_of_a_directory_is_an_error(root: Path) -> None:
    (root / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        private_directory(root / "file")


def test_redirected_export_file_is_private(tmp_path: Path) -> None:
    file = tmp_path / "u1.jsonl"
    command = [sys.executable, "-m", "afterword", "export", "--user", "u1", "--no-tenant"]
    environment = {**os.environ, "AFTERWORD_SQLITE__PATH": str(tmp_path / "a" / "b.sqlite")}
    with file.open("w") as output:
        subprocess.run(command, stdout=output, env=environment, check=True, cwd=tmp_path)
    assert '"end"' in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
