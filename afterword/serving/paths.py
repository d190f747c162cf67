"""Ids in paths: percent-encoded, so that one may hold a slash."""

from typing import Annotated
from urllib.parse import unquote

from fastapi import Path
from pydantic import BeforeValidator
from starlette.types import ASGIApp, Receive, Scope, Send

MOST_CHARACTERS = 256
MOST_EPISODE_ID_CHARACTERS = 2 * 3 * MOST_CHARACTERS + 24
"""Characters of a conversation and an agent, each of them escaped, with an ordinal."""


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
