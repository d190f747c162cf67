"""Snapshots in memory, in a store that may be silent, or tell of each piece."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable


class MemorySnapshots:
    """Keeps the contract of `SnapshotStore`. `each_piece` is awaited before each piece that is written or read."""

    errors: tuple[type[Exception], ...] = (OSError,)

    def __init__(
        self,
        piece_bytes: int = 1000,
        each_piece: Callable[[], Awaitable[object]] | None = None,
        objects: dict[str, bytes] | None = None,
    ) -> None:
        self.objects = {} if objects is None else objects
        self.is_silent = False
        self.error: Exception | None = None
        """What it answers with."""
        self._piece_bytes = piece_bytes
        self._each_piece = each_piece

    async def write(self, key: str, pieces: AsyncIterator[bytes]) -> None:
        taken = b""
        async for piece in pieces:
            await self._answer()
            taken += piece
        self.objects[key] = taken

    async def read(self, key: str) -> AsyncGenerator[bytes, None]:
        await self._answer()
        if key not in self.objects:
            raise FileNotFoundError(key)
        found = self.objects[key]
        for at in range(0, len(found), self._piece_bytes):
            await self._answer()
            yield found[at : at + self._piece_bytes]

    async def _answer(self) -> None:
        if self.is_silent:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        if self._each_piece is not None:
            await self._each_piece()
