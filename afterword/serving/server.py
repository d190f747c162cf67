"""Runs the application in uvicorn, within limits that no client can exceed."""

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import h11
import structlog
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from afterword.serving.app import make_app, open_services
from afterword.streams.settings import Settings
from faust_eos.memory import allocate_sparingly, return_freed_memory, spare_the_collector

KEEP_ALIVE_SECONDS = 5
HEADER_SECONDS = 10.0
"""The head of a request must arrive within this time, which uvicorn does not limit."""
UNREAD_MILLISECONDS = 30_000
MOST_CONNECTIONS = 2000
"""Requests get 503 if more connections than this are open."""
BACKLOG = 512
SEND_BUFFER_BYTES = 128 * 1024
"""Bytes that the kernel buffers for a client that does not read. By default it buffers megabytes per client."""

log = structlog.get_logger(__name__)


class BoundedHttp(H11Protocol):
    """Closes a connection if the head of a request, or the rest of one already answered, does not arrive in time.

    uvicorn's own timer, which starts after an answer, stops at the next byte.
    """

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        # gives up on a client that does not read, and closes its connection
        listener = transport.get_extra_info("socket")
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MILLISECONDS)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_expecting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._owes_us:
            self._stop_expecting()
        elif self._head_timer is None:
            self._expect_head()

    @property
    def _owes_us(self) -> bool:
        """Whether it is the client's turn, that is, no request is unanswered."""
        return self.conn.their_state is h11.IDLE or self.conn.our_state is h11.DONE

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(HEADER_SECONDS, self._close)

    def _stop_expecting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close(self) -> None:
        self._head_timer = None
        if self._owes_us and not self.transport.is_closing():
            self.transport.close()


class HttpServer(uvicorn.Server):
    """Stops on SIGINT or SIGTERM and then returns. uvicorn's own server would end the process with the same signal."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


async def run_server(settings: Settings, started: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM. `started` is called with the address. Raises: ConfigurationError, OSError."""
    allocate_sparingly()
    with _listening(settings) as listener:
        async with open_services(settings) as services:
            if services.warming:
                services.warming.add_done_callback(_settle)
            host, port = listener.getsockname()[:2]
            address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            log.info("server_started", stage="serve", address=address, auth=settings.serve.auth)
            started(address)
            await HttpServer(configuration(settings, make_app(services))).serve([listener])


def _settle(_: "asyncio.Task[None]") -> None:
    """Once everything is loaded, exempt it from garbage collection, which would stop every request for 100 ms."""
    spare_the_collector()
    return_freed_memory()


def configuration(settings: Settings, app: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=BoundedHttp,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.serve.trusted_proxies),
        forwarded_allow_ips=settings.serve.trusted_proxies,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, int(settings.drain_seconds)),
    )


@contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    host, port = settings.serve.host, settings.serve.port
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # connections inherit it
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
        yield listener
