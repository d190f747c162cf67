"""Files of a history on disk, and archives that are made to do harm."""

import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from afterword.importing import files as module
from afterword.importing.files import open_history
from afterword.importing.outcomes import HistoryRefused


def zipped(path: Path, files: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return path


def contents(path: Path) -> dict[str, bytes]:
    with open_history(path) as files:
        found = {}
        for name in files.names:
            with files.open(name) as file:
                found[name] = file.read()
        assert files.bytes_read == files.total_bytes == sum(map(len, found.values()))
        return found


@pytest.fixture
def export(tmp_path: Path) -> Path:
    (tmp_path / "export" / "general").mkdir(parents=True)
    (tmp_path / "export" / "users.json").write_bytes(b"[]")
    (tmp_path / "export" / "general" / "2024-05-01.json").write_bytes(b"[1]")
    return tmp_path / "export"


def test_a_file_a_directory_and_an_archive_have_the_same_files(export, tmp_path):
    expected = {"general/2024-05-01.json": b"[1]", "users.json": b"[]"}
    assert contents(export) == expected
    assert contents(zipped(tmp_path / "export.zip", dict(reversed(expected.items())))) == expected
    assert contents(export / "users.json") == {"users.json": b"[]"}


def test_links_are_not_followed(export, tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "2024-05-01.json").write_text("[2]")
    (export / "linked").symlink_to(tmp_path / "secret")
    (export / "linked.json").symlink_to(tmp_path / "secret" / "2024-05-01.json")
    assert list(contents(export)) == ["general/2024-05-01.json", "users.json"]


def fingerprint(path: Path) -> str:
    with open_history(path) as files:
        return files.fingerprint


def test_a_history_is_recognised_by_names_sizes_and_its_beginning(export):
    before = fingerprint(export)
    assert fingerprint(export) == before
    day = export / "general" / "2024-05-01.json"
    os.utime(day, (0, 0))
    assert fingerprint(export) == before
    day.write_bytes(b"[2]")
    assert fingerprint(export) != before


@pytest.mark.parametrize(
    "name", ["../users.json", "/etc/users.json", "a/../../users.json", "..\\users.json", "c:/a.json"]
)
def test_an_archive_with_a_file_outside_of_it_is_refused(tmp_path, name):
    with pytest.raises(HistoryRefused, match="outside"):
        contents(zipped(tmp_path / "a.zip", {"users.json": b"[]", name: b"[]"}))


def test_a_bomb_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FREE_BYTES", 2**16)
    bomb = zipped(tmp_path / "a.zip", {"a.json": b" " * 2**24})
    with pytest.raises(HistoryRefused, match="expands to more than 100 times"), open_history(bomb) as files:
        files.open("a.json").read()
    assert files.bytes_read < 100 * bomb.stat().st_size + 2**18


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_that_python_decompresses_as_a_whole_is_refused(tmp_path, method):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
        archive.writestr("a.json", b" " * 2**20)
    with pytest.raises(HistoryRefused, match="another method than deflate"):
        contents(tmp_path / "a.zip")


@pytest.mark.parametrize("name", ["", "."])
def test_an_archive_with_a_file_without_a_name_is_refused(tmp_path, name):
    entry = zipfile.ZipInfo("a")
    entry.filename = name
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(entry, b"[]")
    with pytest.raises(HistoryRefused, match="no name"):
        contents(tmp_path / "a.zip")


def test_what_compresses_well_is_no_bomb(tmp_path):
    record = json.dumps({"role": "user", "content": "Good morning", "metadata": {}}).encode()
    assert contents(zipped(tmp_path / "a.zip", {"a.json": record * 50_000}))


def test_an_archive_with_a_password_is_refused(tmp_path):
    path = zipped(tmp_path / "a.zip", {"a.json": b"[]"})
    data = bytearray(path.read_bytes())
    for header, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(header) + at] |= 1
    path.write_bytes(data)
    with pytest.raises(HistoryRefused, match="encrypted"):
        contents(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_with_two_files_of_the_same_name_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.json", "[1]")
        archive.writestr("a.json", "[2]")
    with pytest.raises(HistoryRefused, match="same name"):
        contents(tmp_path / "a.zip")


def test_a_damaged_archive_is_refused(tmp_path):
    path = zipped(tmp_path / "a.zip", {"a.json": bytes(range(256)) * 100})
    data = bytearray(path.read_bytes())
    data[60:80] = bytes(20)
    path.write_bytes(data)
    with pytest.raises(HistoryRefused, match="damaged"):
        contents(path)


def test_too_many_files_are_refused(export, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_FILES", 1)
    for path in (export, zipped(tmp_path / "a.zip", {"a": b"", "b": b""})):
        with pytest.raises(HistoryRefused, match="more than 1 files"):
            contents(path)


def test_a_file_of_an_archive_is_read_in_pieces(tmp_path):
    path = zipped(tmp_path / "a.zip", {"a.json": b"x" * 300_000})
    with open_history(path) as files, files.open("a.json") as file:
        assert file.read(10) == b"x" * 10
        assert files.bytes_read <= io.DEFAULT_BUFFER_SIZE
