"""Requests: ids in paths, and bodies of JSON, validated by their bytes as strictly as records of the topics."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import unquote

from fastapi import Depends, Path, Request
from pydantic import BaseModel, BeforeValidator, ValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from afterword.schemas.mending import mended
from afterword.serving.problems import RequestInvalid, problems_of

JSON = "application/json"
BODY_SECONDS = 30.0
"""Time in which the body of a request must have arrived."""
SMALL_BYTES: Final = 64 * 1024
"""Size up to which a body is parsed at once, and of the largest body of routes that take no texts of messages."""
MOST_VALUES: Final = 100_000
"""Values in a body. Messages have a few each; 800,000 unknown fields would fit into 7 MB and take a second."""
STRING_OR_COMMA: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)|,', re.DOTALL)
PARSER: Final = ThreadPoolExecutor(1, "parser")
"""Parses large bodies one after the other, so that the event loop has its turn in between."""
B = TypeVar("B", bound=BaseModel)
MOST_CHARACTERS = 256
MOST_EPISODE_ID_CHARACTERS = 2 * 3 * MOST_CHARACTERS + 24
"""Characters of a conversation and an agent, each of them escaped, with an ordinal."""


def body_of(model: type[B], most: int | None = None) -> Any:
    """Make the dependency that reads a body of at most so many bytes; None: of the settings' number.

    The framework would parse it first, and numbers in texts, lists and tuples would not be told apart any more.
    """

    async def read(request: Request) -> B:
        content = await read_json(request, most)
        if len(content) <= SMALL_BYTES:
            return _validated(model, content)
        return await asyncio.get_running_loop().run_in_executor(PARSER, _validated, model, content)

    return Depends(read)


def _validated(model: type[B], given: bytes) -> B:
    try:
        return model.model_validate_json(given)
    except ValidationError as error:
        if (whole := mended(given)) != given:
            return _validated(model, whole)
        raise RequestInvalid(problems=problems_of(error, "body")) from None


async def read_json(request: Request, most: int | None = None) -> bytes:
    """Read the body.

    Raises: HTTPException 415 for another media type, 408 if it is slow, 413 if it is large; RequestInvalid if it has
    too many values.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != JSON:  # a form of another site cannot send it without asking
        raise HTTPException(415)
    content = await read_body(request, most)
    if content.count(b",") >= MOST_VALUES and await asyncio.get_running_loop().run_in_executor(
        PARSER, has_too_many_values, content
    ):
        raise RequestInvalid(problems=[("body", f"has more than {MOST_VALUES:,} values")])
    return content


def has_too_many_values(content: bytes) -> bool:
    """Count commas outside of strings, and stop at the first that is too many."""
    found = (match for match in STRING_OR_COMMA.finditer(content) if match[0] == b",")
    return next(islice(found, MOST_VALUES - 1, None), None) is not None


async def read_body(request: Request, most: int | None = None) -> bytes:
    """Read the body, of at most so many bytes; None: of the settings' number.

    Raises: HTTPException 413 for one that is too large, 408 for one that comes too slowly.
    """
    settings = request.app.state.services.settings.serve
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _bounded(request, settings.max_body_bytes if most is None else most)
    except TimeoutError:
        raise HTTPException(408) from None


async def _bounded(request: Request, most: int) -> bytes:
    """Read the body. Raises: HTTPException 413 before more than `most` bytes are held."""
    content = bytearray()
    if int(request.headers.get("content-length", "0")) > most:
        raise HTTPException(413)
    async for chunk in request.stream():
        if len(content) + len(chunk) > most:
            raise HTTPException(413)
        content += chunk
    return bytes(content)


def described_body(model: type[BaseModel]) -> dict[str, Any]:
    """Describe a body for the OpenAPI document; `app.py` adds the schema of each of BODIES."""
    BODIES[model.__name__] = model
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema}}}}


BODIES: dict[str, type[BaseModel]] = {}
"""Models of bodies by name, filled when the routes are defined."""


class EncodedPaths:
    """Middleware that leaves paths as they came: servers decode them before routes are matched, `%2F` included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and "raw_path" in scope:
            scope["path"] = scope["raw_path"].decode("latin-1")
        await self._app(scope, receive, send)


def decoded(part: str) -> str:
    """Decode one part of a path. Raises: ValueError for what is no UTF-8."""
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise ValueError("must be percent-encoded UTF-8") from None


def _id_in_path(most: int, description: str) -> object:
    return Path(min_length=1, max_length=most, description=f"{description}, percent-encoded.")


ConversationId = Annotated[str, BeforeValidator(decoded), _id_in_path(MOST_CHARACTERS, "Id of the conversation")]
MessageId = Annotated[str, BeforeValidator(decoded), _id_in_path(MOST_CHARACTERS, "Id of the message")]
ErasureId = Annotated[str, BeforeValidator(decoded), _id_in_path(MOST_CHARACTERS, "Id of the erasure")]
EpisodeId = Annotated[str, BeforeValidator(decoded), _id_in_path(MOST_EPISODE_ID_CHARACTERS, "Id of the episode")]
