"""What all routes share: limits for reading from Kafka, ids in paths, and JSON bodies.

Bodies are validated as strictly as records of the topics.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from itertools import accumulate
from typing import Annotated, Any, Final, Generic, TypeVar
from urllib.parse import unquote

from fastapi import Depends, Path, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints, ValidationError
from starlette.exceptions import HTTPException

from afterword.schemas.base import Id, mended
from afterword.serving.outbox import in_time
from afterword.serving.problems import RequestInvalid, problems_of
from afterword.serving.services import services_of
from afterword.streams.settings import Kafka
from afterword.streams.tasks import Paced

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


def body_of(model: type[B], most: int = MOST_BYTES) -> Any:
    """Build the dependency that reads a body of at most `most` bytes.

    It parses the bytes itself: the framework would decode them first, after which a number in a string, or a list and a
    tuple, could no longer be told apart.
    """

    async def read(request: Request) -> AsyncIterator[B]:
        async with large_turn(request, most):  # until the request is answered
            yield await read_json(request, partial(_validated, model), most)

    return Depends(read)


def _validated(model: type[B], given: bytes) -> B:
    try:
        return model.model_validate_json(given)
    except ValidationError as error:
        if (whole := mended(given)) != given:
            return _validated(model, whole)
        raise RequestInvalid(problems=problems_of(error, "body")) from None


async def read_json(request: Request, parse: Callable[[bytes], T], most: int = MOST_BYTES) -> T:
    """Read and parse a JSON body.

    Raises: HTTPException 415 for another media type, 408 if it arrives too slowly, 413 if it is too large;
    RequestInvalid if it has too many values or is nested too deeply, and what `parse` raises.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != JSON:  # a form on another site cannot send this type without a preflight request
        raise HTTPException(415)

    def parse_checked(content: bytes) -> T:
        if problem := json_problem(content):
            raise RequestInvalid(problems=[("body", problem)])
        return parse(content)

    return await parsed_body(request, most, parse_checked)


async def parsed_body(request: Request, most: int, parse: Callable[[bytes], T]) -> T:
    """Read a body of at most `most` bytes, and parse it, in a thread if it is large.

    Raises: as `read_body` and `parse`.
    """
    content = await read_body(request, most)
    return await asyncio.to_thread(parse, content) if _is_large(request, most) else parse(content)


def large_turn(request: Request, most: int) -> AbstractAsyncContextManager[None]:
    """Wait for a turn of the request's key if its body of at most `most` bytes is large: each key has one at a time."""
    if not _is_large(request, most):  # also before signing in
        return nullcontext()
    return services_of(request).turns.of(request.state.key_id)


def _is_large(request: Request, most: int) -> bool:
    return min(most, int(request.headers.get("content-length", most))) > SMALL_BYTES


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


async def read_body(request: Request, most: int = MOST_BYTES) -> bytes:
    """Read a body of at most `most` bytes.

    Raises: HTTPException 413 if it is too large, 408 if it arrives too slowly.
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
    return bytes(content)


def described_body(model: type[BaseModel]) -> dict[str, Any]:
    """Describe a body for the OpenAPI document. `server.py` adds the schema of each model in BODIES."""
    BODIES[model.__name__] = model
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema}}}}


BODIES: dict[str, type[BaseModel]] = {}
"""Models of bodies by name, collected as the routes are defined."""


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
