"""Lines of a file, a pipe or a terminal, as soon as they are there and without holding up the event loop."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from typing import BinaryIO

CHUNK_BYTES = 256 * 1024


def is_regular(file: BinaryIO) -> bool:
    """Whether it can be read twice: first to check it, then to send it."""
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)


async def read_lines(file: BinaryIO, chunk_bytes: int = CHUNK_BYTES) -> AsyncIterator[bytes]:
    """Lines without their ends, from where the file stands. A pipe is closed afterwards. Raises: OSError."""
    rest: list[bytes] = []
    async for chunk in _chunks(file, chunk_bytes):
        first, *others = chunk.split(b"\n")
        rest.append(first)
        if others:
            yield b"".join(rest)
            for line in others[:-1]:
                yield line
            rest = [others[-1]]
    if last := b"".join(rest):
        yield last


async def _chunks(file: BinaryIO, size: int) -> AsyncIterator[bytes]:
    if not is_regular(file):
        async for chunk in _arriving(file, size):
            yield chunk
        return
    while chunk := file.read(size):
        yield chunk
        await asyncio.sleep(0)


async def _arriving(file: BinaryIO, size: int) -> AsyncIterator[bytes]:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), file
    )
    try:
        while chunk := await reader.read(size):
            yield chunk
    finally:
        transport.close()
