"""What all routes share: who makes a request and what they may see, the server's parts, ids in paths, and bodies.

Bodies are validated as strictly as records of the topics.
"""

import asyncio
import hashlib
import math
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Set
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate
from typing import Annotated, Any, Final, Generic, Literal, NoReturn, Protocol, TypeVar, get_args
from urllib.parse import unquote

from fastapi import Depends, Path, Query, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints, ValidationError
from starlette.exceptions import HTTPException

from afterword.operating.eraser import ErasureRunner
from afterword.reading.memory import Memory
from afterword.schemas.base import ANYONE, Anyone, Id, Owner, mended, utc_milliseconds
from afterword.serving.feed import Feed
from afterword.serving.outbox import Outbox, Pace, WrittenAnswer, in_time
from afterword.serving.problems import NotPermitted, RequestInvalid, TooManyRequests, Unauthenticated, problems_of
from afterword.streams.errors import StoreUnavailable
from afterword.streams.settings import Kafka, Settings
from afterword.streams.stores.bookkeeping import ApiKey, ApiKeys, EndedSessions
from afterword.streams.stores.episodes import UsageBy, UsageTotals
from afterword.streams.tasks import FairTurns, Paced, apart
from afterword.streams.telemetry.metrics import Metrics

Permission = Literal["read", "write", "erase", "admin"]
SCOPES: frozenset[str] = frozenset(get_args(Permission))
PREFIX = "afw_"
"""Lets secret scanners recognize a leaked key."""
KEY_BYTES = 32
CACHED_SECONDS = 2.0
"""A revoked key is refused within this time."""
MOST_CACHED = 1000
MOST_REMEMBERED = 10_000


@dataclass(frozen=True)
class Principal:
    """The holder of a key or a token.

    It belongs to one tenant, or to all tenants on a server without authentication.
    """

    key_id: str
    """The key's name in logs; not a secret."""
    scopes: Set[str]
    tenant_id: str | Anyone | None = ANYONE
    """None for data without a tenant."""
    user_id: str | Anyone = ANYONE

    @property
    def owner(self) -> Owner:
        """The owner whose conversations and episodes the principal may see."""
        return Owner(self.user_id, self.tenant_id)

    def asserted(self, user_id: str | None, tenant_id: str | None) -> Owner:
        """Return the owner to read for, possibly narrowed by the request, but never wider than the key's.

        Raises: NotPermitted if the request names an owner other than the key's.
        """
        return Owner(
            self.user_id if user_id is None else self.user(user_id),
            self.tenant_id if tenant_id is None else self.tenant(tenant_id),
        )

    def may(self, scope: Permission) -> bool:
        return scope in self.scopes or "admin" in self.scopes

    def user(self, asked: str | None) -> str:
        """Return the user to act for.

        Raises: NotPermitted if the key belongs to another user, RequestInvalid if no user is named.
        """
        if isinstance(self.user_id, Anyone):
            if not asked:
                raise RequestInvalid(problems=[("user_id", "must name a user")])
            return asked
        if asked not in (None, self.user_id):
            raise NotPermitted(problem="the key belongs to another user")
        return self.user_id

    def tenant(self, asked: str | None) -> str | None:
        """Return the tenant to act for. Raises: NotPermitted if the key belongs to another tenant."""
        if isinstance(self.tenant_id, Anyone):
            return asked
        if asked not in (None, self.tenant_id):
            raise NotPermitted(problem="the key belongs to another tenant")
        return self.tenant_id


class Authenticator(Protocol):
    """Maps a bearer token to its principal."""

    async def principal(self, token: str | None) -> Principal:
        """Return the token's principal. Raises: Unauthenticated, StoreUnavailable."""
        ...


class Nobody:
    """No authentication: anyone who can reach the loopback address may do everything."""

    async def principal(self, token: str | None) -> Principal:  # noqa: ARG002 – required by the protocol
        return Principal("local", SCOPES)


def new_key(scopes: tuple[str, ...], tenant_id: str | None, user_id: str | None) -> tuple[str, ApiKey]:
    """Generate a key, and the record to store for it."""
    key = PREFIX + secrets.token_urlsafe(KEY_BYTES)
    now = utc_milliseconds(datetime.now(UTC))
    return key, ApiKey(key_digest(key), secrets.token_hex(4), scopes, tenant_id, user_id, now)


def key_digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


class KeyHolders:
    """Authenticates API keys.

    Every key is looked up by its digest, so a wrong key is handled just like an unknown one.
    """

    def __init__(self, keys: ApiKeys, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._clock = clock
        self._known: dict[str, tuple[float, Principal]] = {}

    async def principal(self, token: str | None) -> Principal:
        if not token:
            raise Unauthenticated
        digest = key_digest(token)
        until, known = self._known.get(digest, (0.0, None))
        if known is not None and self._clock() < until:
            return known
        api_key = await self._keys.find(digest)
        if api_key is None:
            self._known.pop(digest, None)
            raise Unauthenticated
        if len(self._known) >= MOST_CACHED:
            self._known.clear()
        user_id = ANYONE if api_key.user_id is None else api_key.user_id
        principal = Principal(api_key.key_id, frozenset(api_key.scopes), api_key.tenant_id, user_id)
        self._known[digest] = self._clock() + CACHED_SECONDS, principal
        return principal


class Rates:
    """Rate limits by name. `per_minute` is the limit for each name; 0 means unlimited."""

    def __init__(self, per_minute: int) -> None:
        self._limit = RateLimitItemPerMinute(per_minute) if per_minute else None
        self._counters = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._valid: set[str] = set()
        """Digests of tokens that were valid when last seen, so they are not guesses."""

    async def authenticated(self, authenticator: Authenticator, token: str | None, address: str) -> Principal:
        """Return a token's principal. An address may send as many invalid tokens as a key may send requests.

        Raises: Unauthenticated, TooManyRequests, StoreUnavailable.
        """
        digest = key_digest(token or "")
        if self._limit and digest not in self._valid and not await self._counters.test(self._limit, address):
            await self._refuse(self._limit, address)
        try:
            principal = await authenticator.principal(token)
        except Unauthenticated:
            self._valid.discard(digest)
            await self.take(address)
            raise
        if len(self._valid) >= MOST_REMEMBERED:
            self._valid.clear()
        self._valid.add(digest)
        return principal

    async def take(self, name: str) -> None:
        """Count a request. Raises: TooManyRequests."""
        if self._limit and not await self._counters.hit(self._limit, name):
            await self._refuse(self._limit, name)

    async def _refuse(self, limit: RateLimitItemPerMinute, name: str) -> NoReturn:
        until = (await self._counters.get_window_stats(limit, name)).reset_time
        raise TooManyRequests(limit=limit.amount, retry_after=max(1, math.ceil(until - time.time())))


BEARER = HTTPBearer(
    auto_error=False, description="A key of `afterword keys create`, or a token of the identity provider."
)
LARGE_RESTS = 2.0
"""A key's next large request waits this many times as long as the one before took."""
PING_SECONDS = 3.0


@dataclass(frozen=True)
class Services:
    """The parts of a running server, shared by all requests."""

    settings: Settings
    ping_database: Callable[[], Awaitable[None]]
    """May raise StoreUnavailable."""
    usage: Callable[[UsageBy], Awaitable[list[UsageTotals]]]
    """May raise StoreUnavailable."""
    count_messages: Callable[[], Awaitable[int]]
    """May raise StoreUnavailable."""
    memory: Memory
    authenticator: Authenticator
    rates: Rates
    sessions: EndedSessions
    metrics: Metrics
    outbox: Outbox
    feed: Feed
    erasures: ErasureRunner
    open_streams: Counter[str] = field(default_factory=Counter)
    """Numbers of open event streams by key."""
    turns: FairTurns = field(default_factory=lambda: FairTurns(rests=LARGE_RESTS))
    """Turns by key, for what takes a request long."""
    pace: Pace[tuple[str, str | None, str], WrittenAnswer] = field(default_factory=lambda: Pace(1.0))
    """For messages that are sent again and again, by conversation, tenant and id."""

    async def database_answers(self) -> bool:
        try:
            async with asyncio.timeout(PING_SECONDS):
                await self.ping_database()
        except (StoreUnavailable, TimeoutError):
            return False
        return True


def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


@dataclass(frozen=True, kw_only=True)
class Caller(Principal):
    """The principal of a request, with the request."""

    request: Request

    @property
    def services(self) -> Services:
        return services_of(self.request)

    @property
    def memory(self) -> Memory:
        return self.services.memory


async def admit(request: Request, read_token: Callable[[], str | None], *scopes: Permission) -> Caller:
    """Return the caller with a token that has one of the scopes, and enforce the rate limits.

    `read_token` is called again while a stream is open, and returns None once the visitor has signed out.

    Raises: Unauthenticated, NotPermitted, TooManyRequests, StoreUnavailable.
    """
    services, token = services_of(request), read_token()
    address = f"address {request.client.host if request.client else ''}"
    principal = await services.rates.authenticated(services.authenticator, token, address)
    request.state.read_token, request.state.key_id = read_token, principal.key_id
    if connection := getattr(request.state, "connection", None):
        connection.stranger = None
    await services.rates.take(f"key {principal.key_id}")
    if not any(map(principal.may, scopes)):
        raise NotPermitted(problem=f"the key lacks the scope {' or '.join(scopes)}")
    return Caller(**vars(principal), request=request)


async def is_still_admitted(caller: Caller) -> bool:
    """Return whether the token of a long-running request still has this principal.

    While the store is unavailable, assume that it does.
    """
    try:
        principal = await caller.services.authenticator.principal(caller.request.state.read_token())
        return Caller(**vars(principal), request=caller.request) == caller
    except Unauthenticated:
        return False
    except StoreUnavailable:
        return True


def requiring(*scopes: Permission) -> Any:
    """Build the dependency that admits principals with one of the scopes."""

    async def admitted(
        request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]
    ) -> Caller:
        return await admit(request, lambda: given.credentials if given else None, *scopes)

    return Depends(admitted)


MayRead = Annotated[Caller, requiring("read")]
MayWrite = Annotated[Caller, requiring("write")]
MayErase = Annotated[Caller, requiring("erase")]
MayAdminister = Annotated[Caller, requiring("admin")]
MayReadOrWrite = Annotated[Caller, requiring("read", "write")]


READ_SECONDS = 10.0
JSON = "application/json"
BODY_SECONDS = 30.0
"""The body of a request must arrive within this time."""
SMALL_BYTES: Final = 64 * 1024
"""Upper limit for a body that carries no message texts."""
MOST_BYTES: Final = 8_000_000
"""Upper limit for a body."""
MOST_VALUES: Final = 100_000
"""Upper limit for the commas and brackets in a body. Messages have a few each, but 7 MB could hold millions of objects,
which take seconds to parse."""
PIECE_BYTES = 16 * 1024
MOST_DEPTH: Final = 16
"""Upper limit for the nesting of a body."""
OPENING, CLOSING = b"[]"
_SAME_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_MARKS = bytes(set(range(256)) - set(b'"[]{},'))
B = TypeVar("B", bound=BaseModel)
K = TypeVar("K")
T = TypeVar("T")


class Parameters(BaseModel):
    """Query parameters of a request; unknown ones are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


Wanted = Annotated[T, Query()]
"""The parameters of a request, as a model."""


class SharedRead(Generic[K, T]):
    """Shares one read from Kafka among all visitors, so that more open pages do not read more."""

    def __init__(self, kafka: Kafka, read: Callable[[K], Awaitable[T]], fresh_seconds: float) -> None:
        self._kafka = kafka
        self._read = read
        self._fresh_seconds = fresh_seconds
        self._reads: dict[K, tuple[float, asyncio.Task[T]]] = {}
        """When each read began, and the read."""

    async def get(self, key: K) -> T:
        """Read, unless the last result is still fresh. All who wait get one read's result or error.

        Raises: BrokerUnavailable, and what `read` raises.
        """
        began, task = self._reads.get(key, (0.0, None))
        if task is None or (task.done() and (task.exception() or time.monotonic() - began >= self._fresh_seconds)):
            task = asyncio.create_task(self._read_in_time(key))
            self._reads[key] = time.monotonic(), task
        return await asyncio.shield(task)

    async def _read_in_time(self, key: K) -> T:
        async with in_time(self._kafka, READ_SECONDS):
            return await self._read(key)


def body_of(model: type[B], most: int = SMALL_BYTES) -> Any:
    """Build the dependency that reads a body of at most `most` bytes.

    It parses the bytes itself: the framework would decode them first, after which a number in a string, or a list and a
    tuple, could no longer be told apart.
    """

    async def read(request: Request) -> AsyncIterator[B]:
        async with large_turn(request, most):  # until the request is answered
            yield await read_json(request, partial(_validated, model), most)

    BODIES[read] = model
    return Depends(read)


def _validated(model: type[B], given: bytes) -> B:
    try:
        return model.model_validate_json(given)
    except ValidationError as error:
        if (whole := mended(given)) != given:
            return _validated(model, whole)
        raise RequestInvalid(problems=problems_of(error, "body")) from None


async def read_json(request: Request, parse: Callable[[bytes], T], most: int) -> T:
    """Read and parse a JSON body.

    Raises: HTTPException 415 for another media type; RequestInvalid if it has too many values or is nested too deeply;
    as `parsed_body`.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != JSON:  # a form on another site cannot send this type without a preflight request
        raise HTTPException(415)

    def parse_checked(content: bytes) -> T:
        if problem := json_problem(content):
            raise RequestInvalid(problems=[("body", problem)])
        return parse(content)

    return await parsed_body(request, most, parse_checked)


def large_turn(request: Request, most: int) -> AbstractAsyncContextManager[None]:
    """Wait for a turn of the request's key if its body of at most `most` bytes is large: each key has one at a time."""
    size = min(most, int(request.headers.get("content-length", most)))
    # a small one may also come before signing in
    return services_of(request).turns.of(request.state.key_id) if size > SMALL_BYTES else nullcontext()


def json_problem(content: bytes) -> str | None:
    """Return why JSON is not parsed: too many values, or nested too deeply. None if neither.

    Only brackets and commas outside strings count. No step runs Python code for each byte of the content.
    """
    marks, in_text, escape = bytearray(), 0, b""
    for start in range(0, len(content), PIECE_BYTES):  # between the pieces, a thread lets the event loop run
        piece = escape + content[start : start + PIECE_BYTES]
        escape = b"\\" if (len(piece) - len(piece.rstrip(b"\\"))) % 2 else b""  # of the next piece's first character
        piece = piece.removesuffix(escape).replace(rb"\\", b"").replace(rb"\"", b"")
        parts = piece.translate(_SAME_BRACKETS, _NO_MARKS).split(b'"')
        marks += b"".join(parts[in_text::2])
        in_text = (in_text + len(parts) - 1) % 2
        if len(marks) > 2 * MOST_VALUES:
            break
    closed = marks.count(b"]")
    if max(len(marks) - closed, closed) > MOST_VALUES:
        return f"has more than {MOST_VALUES:,} values"
    depths = accumulate((mark == OPENING) - (mark == CLOSING) for mark in marks)
    return f"is nested deeper than {MOST_DEPTH} levels" if max(depths, default=0) > MOST_DEPTH else None


async def parsed_body(request: Request, most: int, parse: Callable[[bytes], T]) -> T:
    """Read a body of at most `most` bytes, and parse it, in a thread if it is large.

    Raises: HTTPException 413 if it is too large, 408 if it arrives too slowly, and what `parse` raises.
    """
    if int(request.headers.get("content-length", "0")) > most:
        raise HTTPException(413)
    content, work = bytearray(), Paced()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                if len(content) + len(chunk) > most:
                    raise HTTPException(413)
                content += chunk
                if len(content) > SMALL_BYTES:
                    await work.rest()  # meanwhile the client is not read from
    except TimeoutError:
        raise HTTPException(408) from None
    return await apart(len(content), lambda: parse(bytes(content)))


BODIES: dict[Callable[..., Any], type[BaseModel]] = {}
"""The models of bodies by the dependencies that read them, collected as the routes are defined."""


def decoded(part: str) -> str:
    """Decode one part of a path. Raises: ValueError if it is not UTF-8."""
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise ValueError("must be percent-encoded UTF-8") from None


EpisodeName = Annotated[str, StringConstraints(min_length=1, max_length=2 * 3 * 256 + 24)]
"""The id of an episode: a conversation and an agent, each with every character escaped, plus an ordinal."""

_DECODED = BeforeValidator(decoded)
ConversationId = Annotated[Id, _DECODED, Path(description="Id of the conversation, percent-encoded.")]
UserId = Annotated[Id, _DECODED, Path(description="Id of the user, percent-encoded.")]
MessageId = Annotated[Id, _DECODED, Path(description="Id of the message, percent-encoded.")]
ErasureId = Annotated[Id, _DECODED, Path(description="Id of the erasure, percent-encoded.")]
EpisodeId = Annotated[EpisodeName, _DECODED, Path(description="Id of the episode, percent-encoded.")]
