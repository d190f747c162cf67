"""The parts of a running server, and who is admitted to its routes."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from afterword.operating.eraser import ErasureRunner
from afterword.reading.memory import Memory
from afterword.serving.feed import Feed
from afterword.serving.outbox import Outbox, Pace, WrittenAnswer
from afterword.serving.principal import Authenticator, Permission, Principal, Rates
from afterword.serving.problems import NotPermitted, Unauthenticated
from afterword.streams.errors import StoreUnavailable
from afterword.streams.settings import Settings
from afterword.streams.stores.bookkeeping import EndedSessions
from afterword.streams.stores.episodes import UsageBy, UsageTotals
from afterword.streams.tasks import RESTS, FairTurns
from afterword.streams.telemetry import Metrics

BEARER = HTTPBearer(
    auto_error=False, description="A key of `afterword keys create`, or a token of the identity provider."
)
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
    turns: FairTurns = field(default_factory=lambda: FairTurns(rests=RESTS))
    """Turns by key, for what takes a request long. The key's next large request rests as well."""
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


async def admit(request: Request, read_token: Callable[[], str | None], *scopes: Permission) -> Principal:
    """Return the principal of a token that has one of the scopes, and enforce the rate limits.

    `read_token` is called again while a stream is open, and returns None once the visitor has signed out.

    Raises: Unauthenticated, NotPermitted, TooManyRequests, StoreUnavailable.
    """
    services = services_of(request)
    token = read_token()
    address = f"address {request.client.host if request.client else ''}"
    principal = await services.rates.authenticated(services.authenticator, token, address)
    request.state.read_token, request.state.key_id = read_token, principal.key_id
    if connection := getattr(request.state, "connection", None):
        connection.stranger = None
    await services.rates.take(f"key {principal.key_id}")
    if not any(map(principal.may, scopes)):
        raise NotPermitted(problem=f"the key lacks the scope {' or '.join(scopes)}")
    return principal


async def is_still_admitted(request: Request, principal: Principal) -> bool:
    """Return whether the token of a long-running request still has this principal.

    While the store is unavailable, assume that it does.
    """
    try:
        return await services_of(request).authenticator.principal(request.state.read_token()) == principal
    except Unauthenticated:
        return False
    except StoreUnavailable:
        return True


def requiring(*scopes: Permission) -> Any:
    """Build the dependency that admits principals with one of the scopes."""

    async def admitted(
        request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]
    ) -> Principal:
        return await admit(request, lambda: given.credentials if given else None, *scopes)

    return Depends(admitted)


MayRead = Annotated[Principal, requiring("read")]
MayWrite = Annotated[Principal, requiring("write")]
MayErase = Annotated[Principal, requiring("erase")]
MayAdminister = Annotated[Principal, requiring("admin")]
MayReadOrWrite = Annotated[Principal, requiring("read", "write")]
