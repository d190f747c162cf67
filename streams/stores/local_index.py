"""Reading Qdrant's local mode from other processes: its owner shows what it has over HTTP.

Only for one machine, as the local mode lets one process open its directory: to callers from the same machine, by GET,
and to those who can read the file that the owner leaves beside the directory, which is for the same user alone.
"""

import ipaddress
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import orjson
from aiohttp import web
from pydantic import BaseModel, TypeAdapter, ValidationError

from afterword.streams.errors import StoreUnavailable
from afterword.streams.stores.index import EpisodeIndex, Query, Recalled

ROUTE = "/index/episodes"
SEARCH_ROUTE = "/index/search"
PARAMETER = "query"
MAX_PARAMETER_BYTES = 3500
"""Percent-encoded; the health server reads no longer request lines than 4,096 bytes."""
OWNER_ONLY = 0o600

Search = Callable[[Query], Awaitable[list[Recalled]]]
Handler = Callable[[web.Request], Awaitable[web.Response]]

_HITS = TypeAdapter(list[Recalled])


class Address(BaseModel):
    """Where the owner listens, and what it asks callers for."""

    url: str
    token: str


def new_token() -> str:
    return secrets.token_urlsafe()


def address_file(path: Path) -> Path:
    """Beside the index's directory: where its owner listens."""
    return path.with_name(f"{path.name}.address")


def announce(path: Path, host: str, port: int, token: str) -> None:
    """Says where the owner listens; in one step, so that nobody reads half of it."""
    file = address_file(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".new")
    unfinished.unlink(missing_ok=True)  # what is there already would keep its mode
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY), "w") as writing:  # noqa: PTH123
        writing.write(Address(url=f"http://{host}:{port}", token=token).model_dump_json())
    os.replace(unfinished, file)  # noqa: PTH105 – the atomic one, by its name


def views(index: EpisodeIndex, search: Search, token: str) -> Mapping[str, Handler]:
    """What the owner shows, by path: every indexed `episode_id`, and the hits of a `Query`; both as JSON arrays."""

    async def ids(_: web.Request) -> web.Response:
        return _json([episode_id async for episode_id in index.all_ids()])

    async def hits(request: web.Request) -> web.Response:
        try:
            query = Query.model_validate_json(request.query.get(PARAMETER, ""))
        except ValidationError:
            raise web.HTTPBadRequest from None
        return _json([hit.model_dump(mode="json") for hit in await search(query)])

    return {ROUTE: _guarded(ids, token), SEARCH_ROUTE: _guarded(hits, token)}


async def ids_of_owner(path: Path) -> set[str]:
    """Every `episode_id` that the owner of this directory has indexed. Raises: StoreUnavailable."""
    return set(orjson.loads(await _ask(path, ROUTE)))


async def search_of_owner(path: Path, query: Query) -> list[Recalled]:
    """What the owner of this directory finds; the text is cut to what a request holds. Raises: StoreUnavailable."""
    return _HITS.validate_json(await _ask(path, f"{SEARCH_ROUTE}?{PARAMETER}={encoded(query)}"))


def encoded(query: Query) -> str:
    """The query as a URL's parameter of at most MAX_PARAMETER_BYTES; the end of a longer text is left out."""
    parameter = quote(query.model_dump_json(), safe="")
    excess = len(parameter) - MAX_PARAMETER_BYTES
    if excess <= 0 or not query.text:
        return parameter
    # a character takes at most twelve bytes, so this many at least have to go
    return encoded(query.model_copy(update={"text": query.text[: -max(1, excess // 12)]}))


async def _ask(path: Path, target: str) -> bytes:
    try:
        address = Address.model_validate_json(address_file(path).read_bytes())
        headers = {"Authorization": f"Bearer {address.token}"}
        async with httpx.AsyncClient(base_url=address.url, headers=headers, trust_env=False) as client:
            return (await client.get(target)).raise_for_status().content
    except (OSError, ValidationError, httpx.HTTPError) as error:
        problem = f"its owner does not answer: {type(error).__name__}"
        raise StoreUnavailable(store="qdrant", problem=problem) from None


def _guarded(handler: Handler, token: str) -> Handler:
    async def guarded(request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "")
        if not _is_loopback(request.remote) or not secrets.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise web.HTTPForbidden
        try:
            return await handler(request)
        except StoreUnavailable:
            raise web.HTTPServiceUnavailable from None

    return guarded


def _is_loopback(remote: str | None) -> bool:
    try:
        return ipaddress.ip_address(remote or "").is_loopback
    except ValueError:
        return False


def _json(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")
