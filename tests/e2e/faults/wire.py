"""A TCP connection that a test can slow down or cut, between a client and a server on this machine."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from afterword.embedded.claims import free_ports

HOST = "127.0.0.1"
CHUNK_BYTES = 64 * 1024


class Wire:
    """Forwards connections from `port` to `target_port`."""

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self.delay_seconds = 0.0
        """Delay of each piece of an answer."""
        self.resets = False
        """True if every connection, old or new, is reset."""
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def uri(self) -> str:
        """Return MongoDB's URI through this connection."""
        return f"mongodb://{HOST}:{self.port}/?directConnection=true"

    @property
    def url(self) -> str:
        """Return Qdrant's URL through this connection."""
        return f"http://{HOST}:{self.port}"

    def cut(self) -> None:
        """Reset the open connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    @contextlib.asynccontextmanager
    async def resetting(self) -> AsyncIterator[None]:
        self.resets = True
        self.cut()
        try:
            yield
        finally:
            self.resets = False

    @contextlib.asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Stop listening during the block."""
        self._close()
        try:
            yield
        finally:
            await self._open(self.port)

    @contextlib.asynccontextmanager
    async def slowed(self, seconds: float) -> AsyncIterator[None]:
        self.delay_seconds = seconds
        try:
            yield
        finally:
            self.delay_seconds = 0.0

    async def __aenter__(self) -> Self:
        await self._open(free_ports(1)[0])  # no port that a client could be given while nobody listens
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    async def _open(self, port: int) -> None:
        self._server = await asyncio.start_server(self._connected, HOST, port)
        self.port = port

    def _close(self) -> None:
        if self._server:
            self._server.close()
        self.cut()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.resets:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, self._target_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        try:
            await asyncio.gather(self._hand_on(reader, far_writer), self._hand_on(far_reader, writer, slow=True))
        finally:
            for end in (writer, far_writer):
                self._writers.discard(end)
                end.transport.abort()

    async def _hand_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, slow: bool = False) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if slow:
                    await asyncio.sleep(self.delay_seconds)
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
