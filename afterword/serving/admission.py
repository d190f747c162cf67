"""Who is admitted to a route."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from afterword.serving.principal import Permission, Principal
from afterword.serving.problems import NotPermitted, Unauthenticated
from afterword.serving.services import services_of
from afterword.streams.errors import StoreUnavailable

BEARER = HTTPBearer(
    auto_error=False, description="A key of `afterword keys create`, or a token of the identity provider."
)


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
