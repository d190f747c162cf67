"""A failing disk raises StoreFailed, and no error hides another."""

from pathlib import Path

import pytest

from faust_eos.database import Database, DatabasePosition
from faust_eos.errors import StoreFailed


class FullDisk:
    """A database like rocksdict's to which nothing can be written."""

    def write(self, batch: object) -> None:
        raise Exception("IO error: No space left on device")

    def get(self, key: bytes) -> bytes:
        raise Exception("Corruption: block checksum mismatch")

    def close(self) -> None:
        raise Exception("IO error: Writer has previous error")


@pytest.fixture
def database(tmp_path: Path) -> Database:
    database = Database(tmp_path / "state", {"table": None})
    database.close()
    database._db = FullDisk()
    return database


def test_failed_write_names_the_directory_and_the_cause(database: Database) -> None:
    with pytest.raises(StoreFailed, match=r"local state in .*state cannot be used: IO error: No space left"):
        database.write({"table": [(b"key", b"value")]}, DatabasePosition(source=1))


def test_failed_read_does_not_blame_the_record(database: Database) -> None:
    with pytest.raises(StoreFailed, match="block checksum mismatch"):
        database.get("table", b"key")


def test_closing_does_not_hide_an_earlier_failure(database: Database) -> None:
    database.close()


def test_directory_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreFailed, match="file/state"):
        Database(tmp_path / "file" / "state", {"table": None})
