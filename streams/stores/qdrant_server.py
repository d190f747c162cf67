"""The Qdrant server itself: its address, whether it answers, and why it does not.

This is separate from the index, whose client takes a second to import, so that an unreachable server is noticed before
that import.
"""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx

from afterword.streams.errors import ConfigurationError, StoreUnavailable
from afterword.streams.settings import Qdrant, variable, without_credentials
from afterword.streams.tls import verifying_context

STORE = "qdrant"
TIMEOUT_SECONDS = 10
"""Timeout of a request."""
DEFAULT_URL = "http://127.0.0.1:6333"
"""Default address of a Qdrant server."""
DEFAULT_PORT = 6333
"""Port of an address without one, as in the client."""

BROKEN: tuple[tuple[tuple[type[BaseException], ...], str], ...] = (
    ((ssl.SSLCertVerificationError,), "its certificate is not trusted"),
    ((ssl.SSLError,), "no TLS connection could be made"),
    ((socket.gaierror,), "the name of its host cannot be resolved"),
    ((ConnectionRefusedError,), "it refused the connection"),
    ((TimeoutError, httpx.TimeoutException), "it did not answer in time"),
    ((ConnectionResetError, BrokenPipeError, httpx.RemoteProtocolError), "it closed the connection"),
    ((ValueError,), "what answers is not a Qdrant server"),
)
"""Meanings of an error below the client's; the first match applies."""


def server_name(settings: Qdrant) -> str:
    """Return the server's name for errors, without a password."""
    return f"{STORE} at {without_credentials(settings.url or DEFAULT_URL)}"


def rest_address(settings: Qdrant) -> str:
    """Return the URL that the client uses, with a scheme and a port but without a user. Raises: ConfigurationError."""
    url = settings.url or DEFAULT_URL
    try:
        parts = urlsplit(url if "://" in url else f"{'https' if settings.api_key else 'http'}://{url}")
        host, port = parts.hostname or "", parts.port or DEFAULT_PORT
    except ValueError:
        host = ""
    if not host or parts.scheme not in ("http", "https"):
        raise ConfigurationError(setting=variable(("qdrant", "url")), problem="is not an http address")
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}{parts.path}"


async def ping_server(settings: Qdrant) -> None:
    """Wait until the server answers, whatever it says. Raises: ConfigurationError, StoreUnavailable."""
    try:
        async with (
            asyncio.timeout(settings.answer_seconds),
            httpx.AsyncClient(verify=verifying_context(), timeout=TIMEOUT_SECONDS) as client,
            client.stream("GET", rest_address(settings)),  # its body is not read, because any server may have sent it
        ):
            return
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise StoreUnavailable(store=server_name(settings), problem=problem_of(error)) from error


def problem_of(error: Exception) -> str:
    """Describe the outermost known cause, or else return the error's class name."""
    known = (said for cause in causes(error) for kinds, said in BROKEN if isinstance(cause, kinds))
    return next(known, type(error).__name__)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes. A group has one error for each address of a host; only the first one counts."""
    while error is not None:
        yield error
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__ or error.__context__
