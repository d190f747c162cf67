"""Principal of a request: who asks, what they may see, and how that is found."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, get_args

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from afterword.context import ANYONE, Anyone, Owner
from afterword.serving.problems import NotPermitted, RequestInvalid, Unauthenticated
from afterword.serving.services import Services
from afterword.streams.errors import StoreUnavailable

Permission = Literal["read", "write", "erase", "admin"]
SCOPES: frozenset[str] = frozenset(get_args(Permission))
BEARER = HTTPBearer(
    auto_error=False, description="A key of `afterword keys create`, or a token of the identity provider."
)


@dataclass(frozen=True)
class Principal:
    """Holder of a key or a token: one tenant's, or all tenants' on a server without authentication."""

    key_id: str
    """Name of the key in logs; no secret."""
    scopes: Set[str]
    tenant_id: str | Anyone | None = ANYONE
    """None: what has no tenant."""
    user_id: str | Anyone = ANYONE

    @property
    def owner(self) -> Owner:
        """The owner that conversations and episodes must have."""
        return Owner(self.user_id, self.tenant_id)

    def asserted(self, user_id: str | None, tenant_id: str | None) -> Owner:
        """The owner that they must have, if the request names one itself: never more than the key's.

        Raises: NotPermitted for another than the key's.
        """
        return Owner(
            self.user_id if user_id is None else self.user(user_id),
            self.tenant_id if tenant_id is None else self.tenant(tenant_id),
        )

    def may(self, scope: Permission) -> bool:
        return scope in self.scopes or "admin" in self.scopes

    def user(self, asked: str | None) -> str:
        """The user that is meant. Raises: NotPermitted for another than the key's, RequestInvalid for none."""
        if self.user_id is ANYONE:
            if not asked:
                raise RequestInvalid(problems=[("user_id", "must name a user: the key is not bound to one")])
            return asked
        if asked not in (None, self.user_id):
            raise NotPermitted(problem="the key is of another user")
        assert isinstance(self.user_id, str)  # noqa: S101 – ANYONE was handled
        return self.user_id

    def tenant(self, asked: str | None) -> str | None:
        """The tenant that is meant. Raises: NotPermitted for another than the key's."""
        if self.tenant_id is ANYONE:
            return asked
        if asked not in (None, self.tenant_id):
            raise NotPermitted(problem="the key is of another tenant")
        assert not isinstance(self.tenant_id, Anyone)  # noqa: S101 – ANYONE was handled
        return self.tenant_id


class Authenticator(Protocol):
    """Finds the principal of a bearer token."""

    async def principal(self, token: str | None) -> Principal:
        """Raises: Unauthenticated, StoreUnavailable."""
        ...


class Nobody:
    """No authentication: whoever reaches the loopback address may do everything."""

    async def principal(self, token: str | None) -> Principal:  # noqa: ARG002 – the signature is the protocol's
        return Principal("local", SCOPES)


async def admit(request: Request, token: str | None, *scopes: Permission) -> Principal:
    """Return the principal of a token that has one of the scopes, each only so often.

    Raises: Unauthenticated, NotPermitted, TooManyRequests, StoreUnavailable.
    """
    services: Services = request.app.state.services
    guesser = f"address {request.client.host if request.client else ''}"
    try:
        if not services.rates.knows(token):
            await services.rates.require_room(guesser)
        principal = await services.authenticator.principal(token)
    except Unauthenticated:
        services.rates.forget(token)
        await services.rates.take(guesser)  # it has the same limit as a key, by its address
        raise
    services.rates.remember(token)
    request.state.key_id = principal.key_id
    request.state.token = token
    await services.rates.take(f"key {principal.key_id}")
    if not any(map(principal.may, scopes)):
        raise NotPermitted(problem=f"the key has no scope {' or '.join(scopes)}")
    return principal


async def is_still_admitted(request: Request, principal: Principal) -> bool:
    """Return whether the token of a request that goes on still has this principal; while that is not known, it has."""
    services: Services = request.app.state.services
    try:
        return await services.authenticator.principal(request.state.token) == principal
    except Unauthenticated:
        return False
    except StoreUnavailable:
        return True


def requiring(*scopes: Permission) -> Any:
    """Make the dependency that admits principals with one of the scopes."""

    async def admitted(
        request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]
    ) -> Principal:
        return await admit(request, given.credentials if given else None, *scopes)

    return Depends(admitted)


MayRead = Annotated[Principal, requiring("read")]
MayWrite = Annotated[Principal, requiring("write")]
MayErase = Annotated[Principal, requiring("erase")]
MayReadOrWrite = Annotated[Principal, requiring("read", "write")]
