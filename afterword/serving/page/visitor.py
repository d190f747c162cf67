"""The page's visitors: a cookie carries their sealed key, and only our own pages can send forms."""

import base64
import hashlib
import os
import re
import secrets
import time
from functools import partial
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlsplit

from cryptography.fernet import Fernet, InvalidToken
from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, SecretStr, ValidationError
from starlette.responses import RedirectResponse

from afterword.consumers.subscriber import RecentIds
from afterword.serving.page.rendering import (
    COOKIE,
    SIGN_IN,
    PageRoute,
    UnknownPageRoute,
    html_page,
    is_operator,
    keep_signed_in,
    see_other,
)
from afterword.serving.problems import NotFound, NotPermitted, RequestInvalid, Unauthenticated, problems_of
from afterword.serving.requests import (
    MOST_BYTES,
    SMALL_BYTES,
    Caller,
    Permission,
    admit,
    large_turn,
    parsed_body,
    services_of,
)
from afterword.streams.stores.bookkeeping import EndedSessions

SESSION_SECONDS = 15 * 60
"""How long a cookie is valid."""
RENEWED_SECONDS = 5 * 60
"""A request with an older cookie gets a new one, unless the visitor has signed out, be it on another server."""
SIGNED_IN_SECONDS = 12 * 3600
"""After this long, no new cookie is given."""
ENDING_SECONDS = 60
"""Streams end this long before their cookie, so that the browser opens them again and gets a new one."""
TOKEN = re.compile(r"[A-Za-z0-9._~-]{1,2900}")
"""Keys and tokens short enough to fit into a cookie when sealed."""
SESSION = re.compile(rf"({TOKEN.pattern}) ([0-9a-f]+) ([0-9]+)")
MOST_ENDED = 100_000
MOST_FIELDS = 1000
MOST_KEY_BYTES = 10_000
FORM = "application/x-www-form-urlencoded"

FormFields = dict[str, list[str]]
B = TypeVar("B", bound=BaseModel)

router = APIRouter(route_class=PageRoute, include_in_schema=False)
anything_else = APIRouter(route_class=UnknownPageRoute, include_in_schema=False)
"""What no other route serves. It comes after all of them."""


class Session(NamedTuple):
    """What a cookie says."""

    key: str
    name: str
    began: int
    """When the visitor signed in, in seconds since 1970."""


class Seal:
    """Seals data that a browser keeps, such as keys in cookies. A stolen cookie reveals no key, and it expires.

    If `secret` is None it is random, and visitors must sign in again after a restart.
    """

    def __init__(self, secret: SecretStr | None) -> None:
        digest = hashlib.sha256(secret.get_secret_value().encode()).digest() if secret else os.urandom(32)
        self._fernet = Fernet(base64.urlsafe_b64encode(digest))
        self._ended = RecentIds(MOST_ENDED)

    def sealed(self, text: str) -> str:
        return self._fernet.encrypt(text.encode()).decode()

    def opened(self, cookie: str | None, seconds: float = SESSION_SECONDS) -> str | None:
        """Return what was sealed; None if it is not ours, or is older than `seconds`.

        A clock that was set back makes it younger, and no visitor signs in again.
        """
        sealed = (cookie or "").encode()
        try:
            is_valid = time.time() - self._fernet.extract_timestamp(sealed) <= seconds
            return self._fernet.decrypt(sealed).decode() if is_valid else None
        except InvalidToken:
            return None

    def begun(self, key: str) -> str:
        """Begin a session with a key, and return its cookie."""
        return self.sealed(f"{key} {secrets.token_hex(8)} {time.time():.0f}")

    def session(self, cookie: str | None, seconds: float = SESSION_SECONDS) -> Session | None:
        """Return the session of a cookie of at most this age, unless it has ended."""
        parts = SESSION.fullmatch(self.opened(cookie, seconds) or "")
        return Session(parts[1], parts[2], int(parts[3])) if parts and parts[2] not in self._ended else None

    def key_in(self, cookie: str | None, seconds: float = SESSION_SECONDS) -> str | None:
        session = self.session(cookie, seconds)
        return session and session.key

    def end(self, session: Session) -> None:
        """Refuse all cookies of a session. Only the last MOST_ENDED sessions are remembered."""
        self._ended.add(session.name)

    async def renewed(self, cookie: str | None, ended: EndedSessions) -> str | None:
        """Return a new cookie of the session, if it is time for one. Raises: Unauthenticated, StoreUnavailable."""
        session = self.session(cookie)
        if session is None or self.session(cookie, RENEWED_SECONDS):
            return None
        if time.time() - session.began > SIGNED_IN_SECONDS or await ended.has(session.name):
            self.end(session)
            raise Unauthenticated
        return self.sealed(" ".join(map(str, session)))


def visiting(scope: Permission, *, operating: bool = False, local: bool = False) -> Any:
    """Build the dependency that admits visitors with the scope.

    With `operating` it admits only operators, and with `local` only visitors of a server without authentication, which
    only this machine can reach.
    """

    async def admitted(request: Request) -> Caller:
        seal, cookie = seal_of(request), request.cookies.get(COOKIE)
        caller = await admit(request, partial(seal.key_in, cookie), scope)
        request.state.principal = caller
        request.state.read_token = partial(seal.key_in, cookie, SESSION_SECONDS - ENDING_SECONDS)
        request.state.renewed = await seal.renewed(cookie, services_of(request).sessions)
        is_elsewhere = services_of(request).settings.serve.auth != "none"
        if (operating and not is_operator(caller)) or (local and is_elsewhere):
            raise NotFound(what="page")
        return caller

    return Depends(admitted)


def seal_of(request: Request) -> Seal:
    seal: Seal = request.app.state.seal
    return seal


ReadingVisitor = Annotated[Caller, visiting("read")]
WritingVisitor = Annotated[Caller, visiting("write")]
ErasingVisitor = Annotated[Caller, visiting("erase")]
OperatingVisitor = Annotated[Caller, visiting("read", operating=True)]
LocalVisitor = Annotated[Caller, visiting("write", local=True)]


def form(most: int) -> Any:
    """Build the dependency that reads a form of at most `most` bytes, sent by one of our pages."""

    async def read(request: Request) -> FormFields:
        try:
            origin = urlsplit(request.headers.get("origin", "")).netloc
        except ValueError:
            origin = ""
        if not origin or origin != request.headers.get("host"):  # a request without an origin is not a browser's
            raise NotPermitted(problem="the form was sent by another site")
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
            raise RequestInvalid(problems=[("body", "must be a form")])
        async with large_turn(request, most):
            return await parsed_body(request, most, form_fields)

    return Depends(read)


def form_fields(content: bytes) -> FormFields:
    """Parse a form. Raises: RequestInvalid."""
    try:
        fields = parse_qs(content.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    except ValueError:
        raise RequestInvalid(problems=[("body", "must be a form in UTF-8 with few fields")]) from None
    return {name: [value.replace("\r\n", "\n") for value in values] for name, values in fields.items()}


Submitted = Annotated[FormFields, form(SMALL_BYTES)]
SubmittedText = Annotated[FormFields, form(MOST_BYTES)]
"""Comes from a visitor who may write."""
SubmittedKey = Annotated[FormFields, form(MOST_KEY_BYTES)]
"""Comes from a visitor who is not authenticated."""


def only_value(fields: FormFields, name: str, most: int | None = None) -> str:
    """Return a field's only value. Raises: RequestInvalid."""
    values = fields.get(name, [])
    if len(values) != 1 or (most is not None and len(values[0]) > most):
        raise RequestInvalid(problems=[(name, "must be given exactly once and not be too long")])
    return values[0]


def form_body(model: type[B], **given: Any) -> B:
    """Return what a form asks for. Raises: RequestInvalid."""
    try:
        return model(**given)
    except ValidationError as error:
        raise RequestInvalid(problems=problems_of(error, "form")) from None


@router.get(SIGN_IN)
async def show_sign_in(request: Request) -> Response:
    """Show the sign-in form, or redirect if authentication is off."""
    if services_of(request).settings.serve.auth == "none":
        return see_other("/")
    return html_page(request, "sign_in.html", wrong=False)


@router.post(SIGN_IN)
async def sign_in(request: Request, fields: SubmittedKey) -> Response:
    """Sign in with a key that can read or erase."""
    token = only_value(fields, "key").strip()
    try:
        caller = await admit(request, lambda: token if TOKEN.fullmatch(token) else None, "read", "erase")
    except Unauthenticated:
        return html_page(request, "sign_in.html", status=401, wrong=True)
    answer = see_other("/" if caller.may("read") else "/erasures")
    keep_signed_in(request, answer, seal_of(request).begun(token))
    return answer


@router.post("/sign-out")
async def sign_out(request: Request, _: SubmittedKey) -> RedirectResponse:
    """Delete the cookie, and refuse copies of it. The streams that it opened end, too."""
    seal = seal_of(request)
    if session := seal.session(request.cookies.get(COOKIE)):
        seal.end(session)
        await services_of(request).sessions.add(session.name)
    answer = see_other(SIGN_IN)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


@anything_else.get("/{path:path}")
async def show_nothing(_: ReadingVisitor) -> Response:
    """Say on a page that there is no such page."""
    raise NotFound(what="page")
