"""Progress in a source partition: the finished records, encoded so that a group's committed offset can hold them.

The offset is that of the first unfinished record. The commit's metadata encodes the offsets that are finished beyond it
as a bitmap, as in Confluent's parallel consumer.
"""

import base64
import zlib
from dataclasses import dataclass

PREFIX = "eos1."
CHECKSUM_CHARACTERS = 8


class ProgressDamaged(Exception):
    """the metadata of committed offset {offset} was changed, or was not written by this engine: {problem}"""

    def __init__(self, offset: int, problem: str) -> None:
        super().__init__((ProgressDamaged.__doc__ or "").format(offset=offset, problem=problem))


@dataclass(frozen=True)
class Progress:
    """Every record below `offset` is finished, the one at `offset` is not, and those at `beyond` are."""

    offset: int
    beyond: frozenset[int] = frozenset()

    def covers(self, offset: int) -> bool:
        """Return whether the record at this offset is finished."""
        return offset < self.offset or offset in self.beyond

    def metadata(self) -> str:
        """Encode `beyond`. If it is empty, so is the result, as in a plain commit.

        Its length depends on how far the last finished offset is from `offset`, not on how many are finished: see
        `reach`.
        """
        if not self.beyond:
            return ""
        bitmap = bytearray((max(self.beyond) - self.offset - 1) // 8 + 1)
        for offset in self.beyond:
            bitmap[(offset - self.offset - 1) // 8] |= 1 << (offset - self.offset - 1) % 8
        return PREFIX + _checksum(self.offset, bitmap) + base64.urlsafe_b64encode(bitmap).decode().rstrip("=")

    @classmethod
    def read(cls, offset: int, metadata: str) -> "Progress":
        """Decode what was committed. Raises: ProgressDamaged."""
        if not metadata:
            return cls(offset)
        if not metadata.startswith(PREFIX):
            raise ProgressDamaged(offset, f"it does not begin with {PREFIX}")
        checksum = metadata[len(PREFIX) :][:CHECKSUM_CHARACTERS]
        text = metadata[len(PREFIX) + CHECKSUM_CHARACTERS :]
        try:
            bitmap = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except ValueError:
            raise ProgressDamaged(offset, "it is not base64") from None
        bits = (8 * at + bit for at, byte in enumerate(bitmap) for bit in range(8) if byte >> bit & 1)
        found = cls(offset, frozenset(offset + 1 + bit for bit in bits))
        if checksum != _checksum(offset, bitmap) or found.metadata() != metadata:
            raise ProgressDamaged(offset, "checksum mismatch")
        return found


def reach(characters: int) -> int:
    """Return how far beyond the committed offset a finished one may be, given the length of the metadata."""
    return (characters - len(PREFIX) - CHECKSUM_CHARACTERS) * 6 // 8 * 8


def _checksum(offset: int, bitmap: bytes | bytearray) -> str:
    """Return a CRC-32 of offset and bitmap: a tool that resets the group's offset may leave the metadata as it was."""
    return format(zlib.crc32(bitmap, zlib.crc32(str(offset).encode())), "08x")
