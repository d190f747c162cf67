"""The Qdrant server as such: its address, why it does not answer, and whether it does.

Apart from the index, whose client takes a second to import: who is away is known before.
"""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx

from afterword.streams.errors import ConfigurationError, StoreUnavailable
from afterword.streams.settings import Qdrant, variable, without_credentials
from afterword.streams.tls import trusting

STORE = "qdrant"
DEFAULT_URL = "http://127.0.0.1:6333"
"""Default address of a Qdrant server."""
DEFAULT_PORT = 6333
"""Port of an address without one, as the client takes it."""

BROKEN: tuple[tuple[tuple[type[BaseException], ...], str], ...] = (
    ((ssl.SSLCertVerificationError,), "its certificate is not trusted"),
    ((ssl.SSLError,), "no TLS connection could be made"),
    ((socket.gaierror,), "the name of its host cannot be resolved"),
    ((ConnectionRefusedError,), "it refused the connection"),
    ((TimeoutError, httpx.TimeoutException), "it did not answer in time"),
    ((ConnectionResetError, BrokenPipeError, httpx.RemoteProtocolError), "it closed the connection"),
    ((ValueError,), "what answers is no Qdrant server"),
)
"""Meaning of an error below the client's; the first match applies."""


def server_name(settings: Qdrant) -> str:
    """The server in errors, without a password."""
    return f"{STORE} at {without_credentials(settings.url or DEFAULT_URL)}"


def verification(settings: Qdrant) -> ssl.SSLContext | bool:
    """Ways to verify the server's certificate. Raises: ConfigurationError."""
    return trusting(settings.ca_file, variable(("qdrant", "ca_file"))) if settings.ca_file else True


def rest_address(settings: Qdrant) -> str:
    """The URL that the client asks: with a scheme and a port, without a user. Raises: ConfigurationError."""
    url = settings.url or DEFAULT_URL
    try:
        parts = urlsplit(url if "://" in url else f"{'https' if settings.api_key else 'http'}://{url}")
        host, port = parts.hostname or "", parts.port or DEFAULT_PORT
    except ValueError:
        host = ""
    if not host or parts.scheme not in ("http", "https"):
        raise ConfigurationError(setting=variable(("qdrant", "url")), problem="is no http address")
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}{parts.path}"


async def ping_server(settings: Qdrant) -> None:
    """Wait until the server answers, whatever it says. Raises: ConfigurationError, StoreUnavailable."""
    try:
        async with (
            asyncio.timeout(settings.answer_seconds),
            httpx.AsyncClient(verify=verification(settings), timeout=settings.timeout_seconds) as client,
            client.stream("GET", rest_address(settings)),  # its body is not read: it may be anybody's
        ):
            return
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise StoreUnavailable(store=server_name(settings), problem=problem_of(error)) from error


def problem_of(error: Exception) -> str:
    """Describe the outermost cause that is known; the class of what was met otherwise."""
    known = (said for cause in causes(error) for kinds, said in BROKEN if isinstance(cause, kinds))
    return next(known, type(error).__name__)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it came from. Of several at once, one for each address of a host, the first."""
    while error is not None:
        yield error
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__ or error.__context__
