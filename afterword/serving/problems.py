"""Answers errors with RFC 9457 problem documents, which carry our `error_type` and never repeat the request."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from importlib.resources import files
from typing import Any, TypeVar

import orjson
import structlog
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException

from afterword.streams.errors import AfterwordError

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = 5
"""How long a client should wait before it retries an unavailable server."""
MAX_PROBLEMS_NAMED = 20
MAX_FAULTS_READ = 1000
"""Above this number of faults none is named: listing 800,000 unknown fields takes seconds and gigabytes."""

MCP_PATH, METADATA_PATH = "/mcp", "/.well-known/oauth-protected-resource"

FAILED = "unexpected error"
"""Detail of an unexpected error."""

log = structlog.get_logger(__name__)
T = TypeVar("T")


class NotFound(AfterwordError):
    """there is no such {what}"""


class NotPermitted(AfterwordError):
    """{problem}"""


class Unauthenticated(AfterwordError):
    """the request has no valid bearer token"""


class RequestInvalid(AfterwordError):
    """the request is invalid: see `problems`"""

    problems: Sequence[tuple[str, str]]
    """Pairs of a field and what is wrong with it."""


class ChangedRepeat(RequestInvalid):
    """an earlier message has the same id and another text or writer: see `problems`"""


class PositionInvalid(AfterwordError, ValueError):
    """Last-Event-ID is not an id of one of this server's events"""


class TooManyRequests(AfterwordError):
    """more than {limit} requests a minute"""

    retry_after: int
    """Seconds to wait."""


class TooManyStreams(AfterwordError):
    """more than {limit} event streams are open"""


def existing(what: str, resource: T | None) -> T:
    """Return what was found. Raises: NotFound."""
    if resource is None:
        raise NotFound(what=what)
    return resource


class FieldProblem(BaseModel):
    """One fault in a request."""

    field: str = Field(description="Place in the request, such as `body.messages.0.role`.")
    problem: str = Field(description="Fault, without the value.")


class ProblemDocument(BaseModel):
    """A problem document (RFC 9457)."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    type: str = Field(description="URN of the `error_type`.")
    title: str = Field(description="Name of the status.")
    status: int = Field(description="HTTP status.")
    detail: str = Field(description="Explanation for people.")
    error_type: str = Field(description="Stable name of the error.")
    problems: list[FieldProblem] = Field([], description="Faults of the request, of a status 409 or 422.")


_TABLES = tomllib.loads((files(__package__) / "problems.toml").read_text(encoding="utf-8"))
STATUSES: Mapping[str, int] = _TABLES["statuses"]
DETAILS: Mapping[str, str] = _TABLES["details"]

TITLES = {
    **{int(status): status.phrase for status in HTTPStatus},
    413: "Content Too Large",
    422: "Unprocessable Content",
}
"""Names of statuses in RFC 9110. In Python's library, those of two differ by version."""


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe problems for the OpenAPI document."""
    schema = {"$ref": "#/components/schemas/ProblemDocument"}
    return {status: {"description": TITLES[status], "content": {MEDIA_TYPE: {"schema": schema}}} for status in statuses}


RESPONSES = responses(401, 403, 404, 413, 422, 429, 503)
"""Problems that any route may return."""


def problem_response(
    status: int,
    error_type: str,
    detail: str,
    problems: Sequence[tuple[str, str]] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    body = ProblemDocument(
        type=f"urn:afterword:problem:{error_type}",
        title=TITLES.get(status, "Error"),
        status=status,
        detail=detail,
        error_type=error_type,
        problems=[FieldProblem(field=field, problem=problem) for field, problem in problems],
    )
    return Response(orjson.dumps(body.model_dump()), status, headers, MEDIA_TYPE)


def problems_of(error: ValidationError | RequestValidationError, place: str = "") -> list[tuple[str, str]]:
    """List the faults without the values."""
    if isinstance(error, ValidationError) and error.error_count() > MAX_FAULTS_READ:
        return [(place, f"has {error.error_count():,} faults, too many to name")]
    faults = error.errors() if isinstance(error, RequestValidationError) else error.errors(include_input=False)
    holders = {fault["loc"][:depth] for fault in faults for depth in range(len(fault["loc"]))}
    # pydantic calls a list too short if all its items are invalid
    faults = [fault for fault in faults if fault["type"] != "too_short" or fault["loc"] not in holders]
    return [
        (".".join([*([place] if place else []), *map(str, fault["loc"])])[:200], str(fault["msg"])[:200])
        for fault in faults[:MAX_PROBLEMS_NAMED]
    ]


def explained(error: Exception) -> tuple[int, str]:
    """Return an error's status and the detail for the client.

    Errors that are not the client's fault are logged in full.
    """
    if isinstance(error, HTTPException):
        return error.status_code, TITLES.get(error.status_code, "Error").lower()
    kind = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in STATUSES), "")
    status, detail = (STATUSES[kind], DETAILS.get(kind)) if kind else (500, FAILED)
    if status >= 500:
        error_type = error.error_type if isinstance(error, AfterwordError) else type(error).__name__
        log.warning("request_failed", stage="serve", error_type=error_type, problem=str(error))
    return status, detail or str(error)


def mcp_url(request: Request) -> str:
    """Return the address of `/mcp` as clients call it, which they compare with the one that we state."""
    configured: str | None = request.app.state.services.settings.serve.mcp_url
    return configured or f"{request.base_url}".rstrip("/") + MCP_PATH


def challenge(request: Request) -> str:
    """Return the challenge for a request without a valid token. MCP clients learn where to log in (RFC 9728)."""
    if request.url.path != MCP_PATH or request.app.state.services.settings.serve.auth != "jwt":
        return "Bearer"
    site, path = re.fullmatch(r"(\w+://[^/]*)(.*)", mcp_url(request)).groups()  # type: ignore[union-attr]  # a URL
    return f'Bearer resource_metadata="{site}{METADATA_PATH}{path}"'


async def show_error(request: Request, error: Exception) -> Response:
    """Answer one of our errors, invalid parameters, or a refusal by the framework, such as for an unknown path."""
    if isinstance(error, RequestValidationError):
        error = RequestInvalid(problems=problems_of(error))
    status, detail = explained(error)
    if isinstance(error, HTTPException):
        return problem_response(status, detail.replace(" ", "_"), detail, headers=error.headers)
    assert isinstance(error, AfterwordError)  # noqa: S101 – the handler is registered for these classes
    headers: dict[str, str] = {}
    if status in (429, 503):
        headers["Retry-After"] = str(getattr(error, "retry_after", RETRY_SECONDS))
    if status == 401:
        headers["WWW-Authenticate"] = challenge(request)
    problems = error.problems if isinstance(error, RequestInvalid) else ()
    return problem_response(status, error.error_type, detail, problems, headers)
