"""The server of a running `afterword dev`, which has loaded what takes a command alone two seconds of its own."""

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError

from afterword.streams.settings import CONFIG_FILE_VARIABLE, PREFIX, READ_ELSEWHERE, Serve
from afterword.streams.stores.index import Recalled

ANSWER_SECONDS = 10.0


class _Answer(BaseModel):
    hits: list[Recalled]


def served_hits(serve: Serve, queries: Sequence[str], filters: dict[str, Any]) -> list[list[Recalled]] | None:
    """Search through the server of the `afterword dev` whose settings these are.

    Return the hits of each query, or None if the server is not there or refuses one.
    """
    if not _is_of_running_dev():
        return None
    from http.client import HTTPException  # imported here because a command alone needs no HTTP
    from urllib.request import ProxyHandler, Request, build_opener

    direct, pages = build_opener(ProxyHandler({})), []
    try:
        for query in queries:
            body, headers = orjson.dumps({"query": query, **filters}), {"Content-Type": "application/json"}
            request = Request(f"http://{serve.host}:{serve.port}/v1/recall", body, headers)
            with direct.open(request, timeout=ANSWER_SECONDS) as answer:
                pages.append(_Answer.model_validate_json(answer.read()).hits)
    except (OSError, HTTPException, ValidationError):  # ValidationError means a server of another revision
        return None
    return pages


def _is_of_running_dev() -> bool:
    """Return whether the file of an `afterword dev`, which locks the file's folder while it runs, has all settings."""
    names = {name for name in os.environ if name.startswith(PREFIX) and not READ_ELSEWHERE.fullmatch(name)}
    if names != {CONFIG_FILE_VARIABLE}:
        return False
    try:
        with Path(os.environ[CONFIG_FILE_VARIABLE]).with_name("lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (OSError, ValueError) as error:  # ValueError means an empty path
        return isinstance(error, BlockingIOError)
    return False
