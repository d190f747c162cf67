"""One HTTP endpoint: its connections, its answers, and what they mean.

To which addresses a webhook may be sent is checked for each connection, right before it is made.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, Self
from urllib.parse import quote

import aiohttp
import orjson
import structlog
from aiohttp.abc import AbstractResolver
from standardwebhooks import Webhook

from afterword.schemas import SummaryCreated, SummaryDeleted
from afterword.schemas.base import rfc3339
from afterword.schemas.dead_letters import WEBHOOKS
from afterword.schemas.summaries import ANNOUNCED
from afterword.streams.errors import AfterwordError
from afterword.streams.http import retry_after_seconds
from afterword.streams.settings import WebhookEndpoint, Webhooks
from afterword.streams.tls import verifying_context

NOT_PUBLIC = IPv4Network("192.0.0.0/24"), IPv6Network("fec0::/10")
"""Networks that some versions of Python consider public: protocol assignments, including a cloud's metadata, and
site-local addresses."""
NAT64 = IPv6Network("64:ff9b::/96")
"""The well-known prefix of RFC 6052; the last four bytes are an IPv4 address."""


class AddressRefused(OSError):
    """The address is private."""


def is_public(address: str) -> bool:
    """Return whether an address is public: not private, loopback, link-local, shared, multicast or reserved.

    An IPv6 address that leads to an IPv4 address counts as the latter. Raises: ValueError if it is not an address.
    """
    parsed = ip_address(address.partition("%")[0])
    parsed = _inside(parsed) or parsed
    is_special = parsed.is_multicast or parsed.is_reserved or any(parsed in network for network in NOT_PUBLIC)
    return parsed.is_global and not is_special


def _inside(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address to which an IPv6 address leads, if any. Teredo needs no case, because its addresses are
    not global themselves."""
    if isinstance(address, IPv4Address):
        return None
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def guarded_socket(info: tuple[Any, ...]) -> socket.socket:
    """Make a socket for one resolved address, when aiohttp asks for it. Raises: AddressRefused for a private one."""
    family, kind, protocol, _, where = info
    if not is_public(str(where[0])):
        raise AddressRefused
    return socket.socket(family, kind, protocol)


def socket_maker(host: str, allowed_hosts: frozenset[str]) -> Callable[[Any], socket.socket] | None:
    """Return the function that makes sockets for a host; None, without checks, for a host that is allowed by name."""
    return None if host.lower() in allowed_hosts else guarded_socket


async def unreachable(host: str, allowed_hosts: frozenset[str]) -> str | None:
    """Say why no connection to a host would be made; None if one would be tried."""
    try:
        resolved = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return f"{host} cannot be resolved"
    if host.lower() in allowed_hosts or any(is_public(str(where[0])) for *_, where in resolved):
        return None
    return f"{host} has a private address, and AFTERWORD_WEBHOOKS__PRIVATE_HOSTS does not name it"


log = structlog.get_logger()

MOST_REQUESTS = 16
"""Maximum number of concurrent requests of one worker to one endpoint."""
USER_AGENT = "Afterword-Webhooks"
MOST_WAIT_SECONDS = 3600.0
"""Longest Retry-After that is respected."""
KEPT_ALIVE_SECONDS = 30.0
ANSWER_SECONDS = 15.0
"""Time within which an endpoint must answer."""

SAFE = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
"""Characters that stay as they are in an id: all visible ASCII ones. An event id contains `%` only as `%25`."""


GONE = "gone"
"""The kind of failure after which nothing more is sent to an endpoint."""


class DeliveryFailed(AfterwordError):
    """{problem}"""

    kind: str
    """Kind of failure, such as `timeout` or `http_5xx`: the label of a counter."""
    retry_after: float = 0.0
    """Seconds that the endpoint asks to wait; 0 if it does not ask."""
    tries: int = 1
    """The number of this try of the event."""


class EndpointGone(DeliveryFailed):
    """the endpoint answered 410 Gone"""


def failure_of(status: int, retry_after: str | None, now: datetime) -> DeliveryFailed | None:
    """Judge an answer: None for 2xx, which alone means that the event was accepted. A redirect is a failure too.

    `retry_after` is the answer's header, if it has one.
    """
    if 200 <= status < 300:
        return None
    if status == 410:
        return EndpointGone(kind=GONE)
    asked = (retry_after_seconds(retry_after, now) or 0.0) if status in (429, 503) else 0.0
    kind = "http_429" if status == 429 else f"http_{min(max(status // 100, 1), 5)}xx"
    return DeliveryFailed(problem=f"it answers {status}", kind=kind, retry_after=min(asked, MOST_WAIT_SECONDS))


def failure_from(error: Exception) -> DeliveryFailed:
    """Say why there was no answer, without any part of the address, request or answer."""
    if isinstance(error, TimeoutError):
        return DeliveryFailed(problem="it does not answer in time", kind="timeout")
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return DeliveryFailed(problem="its name cannot be resolved", kind="name_not_resolved")
    if isinstance(error, aiohttp.ClientSSLError | ssl.SSLError):
        return DeliveryFailed(problem="its certificate is not trusted, or it speaks no TLS", kind="tls")
    if isinstance(getattr(error, "os_error", None), AddressRefused):
        problem = "its address is private, and private_hosts does not name its host"
        return DeliveryFailed(problem=problem, kind="address_refused")
    return DeliveryFailed(problem=f"the connection failed ({type(error).__name__})", kind="connection")


class Endpoint:
    """Posts signed messages to one endpoint; use it with `async with`.

    It sends at most MOST_REQUESTS at a time. After an answer with Retry-After, no request begins before that time. It
    does not follow redirects, read the bodies of answers, or use proxies or cookies.
    """

    def __init__(
        self,
        name: str,
        settings: WebhookEndpoint,
        webhooks: Webhooks,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        resolver: AbstractResolver | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """`resolver` resolves host names; the default is the system's resolver."""
        self.name = name
        self._settings = settings
        self._answer_seconds = answer_seconds
        self._allowed_hosts = webhooks.allowed_hosts
        self._clock = clock
        self._resolver = resolver
        self._is_gone = False
        """True once it has answered 410 Gone, after which nothing is sent to it."""
        self._slots = asyncio.Semaphore(MOST_REQUESTS)
        self._not_before = 0.0
        """Monotonic time before which no request begins."""
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        """Open the session, without connecting yet. Raises: ConfigurationError."""
        connector = aiohttp.TCPConnector(
            limit=MOST_REQUESTS,
            ssl=verifying_context(),
            socket_factory=socket_maker(self._settings.host, self._allowed_hosts),
            resolver=self._resolver,
            keepalive_timeout=KEPT_ALIVE_SECONDS,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),  # `post` limits the whole exchange
            headers={"user-agent": USER_AGENT},
            auto_decompress=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a free slot, and until the time that the endpoint has asked for. Raises: EndpointGone."""
        async with self._slots:
            while (seconds := self._not_before - time.monotonic()) > 0:  # noqa: ASYNC110 – an answer may have set a later time
                await asyncio.sleep(seconds)
            if self._is_gone:
                raise EndpointGone(kind=GONE)
            yield

    async def post(self, identity: str, body: bytes) -> None:
        """Deliver a message once; call it within `turn`. Raises: DeliveryFailed."""
        headers = signed_headers(identity, body, self._settings.signing_secrets, self._clock())
        posting = self._session.post(self._settings.url, data=body, headers=headers, allow_redirects=False)
        try:
            async with asyncio.timeout(self._answer_seconds), posting as answer:  # the response's body is not read
                failure = failure_of(answer.status, answer.headers.get("retry-after"), self._clock())
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            failure = failure_from(error)
        if failure is None:
            return
        if isinstance(failure, EndpointGone) and not self._is_gone:
            log.error("webhook_endpoint_gone", stage=WEBHOOKS, endpoint=self.name, error_type=failure.error_type)
            self._is_gone = True
        self._not_before = max(self._not_before, time.monotonic() + failure.retry_after)
        raise failure


def webhook_body(event: SummaryCreated | SummaryDeleted) -> bytes:
    """Encode the event as JSON: `type`, `timestamp`, and `data`, which is the event as on its topic."""
    kind, time = ANNOUNCED[type(event)]
    moment = rfc3339(getattr(event, time))
    return orjson.dumps({"type": kind, "timestamp": moment, "data": orjson.Fragment(event.to_json())})


def webhook_id(event_id: str) -> str:
    """Return the event id in a form that fits into a header: everything but visible ASCII is percent-encoded."""
    return quote(event_id, safe=SAFE)


def signed_headers(identity: str, body: bytes, secrets: Sequence[str], now: datetime) -> dict[str, str]:
    """Sign with each secret. `identity` is the `webhook-id`; `now` must be timezone-aware."""
    text = body.decode()
    signatures = [Webhook(secret).sign(identity, now, text) for secret in secrets]
    return {
        "content-type": "application/json",
        "webhook-id": identity,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
