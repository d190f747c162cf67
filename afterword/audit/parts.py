"""Facts of a large deployment, on disk in parts: all facts of a conversation are in one."""

import os
import pickle
from collections.abc import Iterator
from contextlib import suppress
from tempfile import TemporaryFile, gettempdir
from types import TracebackType
from typing import Any, Protocol, Self
from zlib import crc32

from afterword.streams.errors import AfterwordError

MOST_WAITING = 20_000
"""Facts that wait to be written; some 15 MB."""
OFFSET_BYTES = 8
NOWHERE = 2**63
"""Offset before the first block of a part."""


class NoRoom(AfterwordError):
    """the audit cannot keep what it has read in {directory}: {problem}; TMPDIR names another directory"""


class OfConversation(Protocol):
    """A fact that names its conversation, and can be pickled."""

    @property
    def conversations(self) -> tuple[str, ...]: ...


class Parts:
    """Facts in a file without a name, which is gone when the process ends, however it ends.

    The file is a sequence of blocks: the offset of the part's block before, and a pickled list of facts. Parts that
    share a fact, because its ids contradict each other, are read as one.
    """

    def __init__(self, count: int, most_waiting: int = MOST_WAITING) -> None:
        self._file = TemporaryFile()  # noqa: SIM115 – closed by __exit__
        self._waiting: list[list[Any]] = [[] for _ in range(count)]
        self._waiting_facts = 0
        self._most_waiting = most_waiting
        self._last = [NOWHERE] * count
        """Offsets of the last blocks."""
        self._joined = list(range(count))
        """Parts before them that they are read with, or themselves."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # of what a full disk did not take
            self._file.close()

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self._file.seek(0, os.SEEK_END)

    def add(self, fact: OfConversation) -> None:
        """Add a fact to its part. Raises: NoRoom."""
        first, *others = fact.conversations
        part = self._part_of(first)
        self._waiting[part].append(fact)
        for other in others:
            if other != first:
                self._join(part, self._part_of(other))
        self._waiting_facts += 1
        if self._waiting_facts == self._most_waiting:
            self._write()

    def numbers(self) -> list[int]:
        """Numbers of the parts that are read by themselves; the first is 0."""
        return [part for part, before in enumerate(self._joined) if part == before]

    def facts(self, number: int) -> Iterator[Any]:
        """Yield the facts of a part, those with the same first conversation in order. Raises: NoRoom."""
        self._write()
        for part in range(len(self._joined)):
            if self._with(part) == number:
                for offset in self._blocks(part):
                    self._file.seek(offset + OFFSET_BYTES)
                    yield from pickle.load(self._file)  # noqa: S301 – nobody else can open the file

    def _part_of(self, conversation: str) -> int:
        return crc32(conversation.encode(errors="surrogatepass")) % len(self._joined)

    def _with(self, part: int) -> int:
        while self._joined[part] != part:
            part = self._joined[part]
        return part

    def _join(self, one: int, other: int) -> None:
        first, second = sorted((self._with(one), self._with(other)))
        self._joined[second] = first

    def _write(self) -> None:
        try:
            for part, facts in enumerate(self._waiting):
                if facts:
                    at = self._file.seek(0, os.SEEK_END)
                    self._file.write(
                        self._last[part].to_bytes(OFFSET_BYTES) + pickle.dumps(facts, pickle.HIGHEST_PROTOCOL)
                    )
                    self._last[part] = at
                    facts.clear()
            self._file.flush()
        except OSError as error:
            raise NoRoom(directory=gettempdir(), problem=error.strerror or error) from error
        self._waiting_facts = 0

    def _blocks(self, part: int) -> list[int]:
        """Return the offsets of a part's blocks, in order."""
        found: list[int] = []
        offset = self._last[part]
        while offset != NOWHERE:
            found.append(offset)
            self._file.seek(offset)
            offset = int.from_bytes(self._file.read(OFFSET_BYTES))
        return found[::-1]
