"""The files of a history on disk: one file, a directory, or a zip archive that is read without being unpacked."""

import hashlib
import io
import os
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Protocol

from afterword.importing.outcomes import Files, HistoryRefused

MAX_EXPANSION = 100
"""Bytes that may come out of an archive for each of its own; texts compress to about a tenth."""
FREE_BYTES = 16 * 2**20
"""… and those that may come out of any."""
MAX_FILES = 1_000_000
HEAD_BYTES = 2**20
"""Bytes of the first file that are in the fingerprint."""
MAX_DEPTH = 3
"""Folders within folders: an export has two levels, and one more when it was packed again."""


COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Methods of which Python decompresses as much as is asked for. Of bzip2 it is all that 4 KiB hold: gigabytes."""
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError)
"""Errors of reading an archive; the last is for a compression that Python does not know."""


class Opened(Files, Protocol):
    """Files that are counted while they are read."""

    bytes_read: int

    @property
    def total_bytes(self) -> int: ...

    @property
    def fingerprint(self) -> str:
        """SHA-256 of names, sizes and the beginning of the first file, to recognize the same history."""
        ...


@contextmanager
def open_history(path: Path) -> Iterator[Opened]:
    """Open a history. Raises: HistoryRefused, OSError."""
    if path.is_dir():
        yield _Files(path, _walk(path))
    elif zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                yield _Archive(path, archive)
        except DAMAGED:
            raise HistoryRefused(file=path, problem="the archive is damaged, or compressed in an unknown way") from None
    else:
        yield _Files(path.parent, {path.name: path.stat().st_size})


class _Sized(ABC):
    """Files whose sizes in bytes are known, by name."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self._sizes = sizes
        self.bytes_read = 0

    @property
    def names(self) -> Sequence[str]:
        return list(self._sizes)

    @property
    def total_bytes(self) -> int:
        return sum(self._sizes.values())

    @property
    def fingerprint(self) -> str:
        return _fingerprint(self._sizes, self)

    @abstractmethod
    def open(self, name: str) -> BinaryIO: ...

    def _counted(self, file: IO[bytes]) -> BinaryIO:
        return io.BufferedReader(_Counted(file, self._count))

    def _count(self, size: int) -> None:
        self.bytes_read += size


class _Files(_Sized):
    """Files below a directory. `sizes`: bytes by name."""

    def __init__(self, directory: Path, sizes: dict[str, int]) -> None:
        super().__init__(sizes)
        self._directory = directory

    def open(self, name: str) -> BinaryIO:
        return self._counted((self._directory / name).open("rb"))


class _Archive(_Sized):
    """Files in a zip archive. Raises: HistoryRefused for one that is made to do harm."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self._path = path
        self._archive = archive
        self._most = FREE_BYTES + MAX_EXPANSION * path.stat().st_size
        entries = [entry for entry in archive.infolist() if not entry.filename.endswith("/")]
        if len(entries) > MAX_FILES:
            raise HistoryRefused(file=path, problem=f"it has more than {MAX_FILES:,} files")
        for entry in entries:
            self._check(entry)
        super().__init__({entry.filename: entry.file_size for entry in sorted(entries, key=lambda e: e.filename)})
        if len(self._sizes) < len(entries):
            raise HistoryRefused(file=path, problem="two of its files have the same name")

    def open(self, name: str) -> BinaryIO:
        return self._counted(self._archive.open(name))

    def _check(self, entry: zipfile.ZipInfo) -> None:
        path = PurePosixPath(entry.filename)
        if not path.parts:
            raise HistoryRefused(file=self._path, problem="a file of it has no name")
        if path.is_absolute() or ".." in path.parts or "\\" in entry.filename or ":" in path.parts[0]:
            raise HistoryRefused(file=self._path, problem="a file of it would be outside of it")
        if entry.flag_bits & 1:
            raise HistoryRefused(file=self._path, problem="it is encrypted; unpack it first")
        if entry.compress_type not in COMPRESSIONS:
            raise HistoryRefused(file=self._path, problem="it is compressed by another method than deflate; unpack it")

    def _count(self, size: int) -> None:
        super()._count(size)
        if self.bytes_read > self._most:
            raise HistoryRefused(file=self._path, problem=f"it expands to more than {MAX_EXPANSION} times its size")


class _Counted(io.RawIOBase):
    def __init__(self, file: IO[bytes], count: "_Count") -> None:
        self._file = file
        self._report = count

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]  # typeshed's buffer is wider
        chunk = self._file.read(len(buffer))
        buffer[: len(chunk)] = chunk
        self._report(len(chunk))
        return len(chunk)

    def close(self) -> None:
        self._file.close()
        super().close()


class _Count(Protocol):
    def __call__(self, size: int, /) -> None: ...


def _walk(directory: Path) -> dict[str, int]:
    """Sizes of the files below a directory, by name; links are not followed. Raises: HistoryRefused, OSError."""
    found: dict[str, int] = {}
    folders = [directory]
    while folders:
        folder = folders.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                path = Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    folders += [path] if len(path.relative_to(directory).parts) < MAX_DEPTH else []
                elif entry.is_file(follow_symlinks=False):
                    found[path.relative_to(directory).as_posix()] = entry.stat().st_size
        if len(found) > MAX_FILES:
            raise HistoryRefused(file=directory, problem=f"it has more than {MAX_FILES:,} files")
    return dict(sorted(found.items()))


def _fingerprint(sizes: dict[str, int], files: Files) -> str:
    digest = hashlib.sha256()
    for name, size in sizes.items():
        digest.update(f"{name}\0{size}\0".encode(errors="surrogateescape"))
    if sizes:
        with files.open(next(iter(sizes))) as first:
            digest.update(first.read(HEAD_BYTES))
    return digest.hexdigest()
