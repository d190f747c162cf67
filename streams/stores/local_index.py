"""Reading an index in a directory, which one process at a time can open: its owner serves the others over HTTP.

It answers GET requests from the same machine with a token. The owner writes address and token into a file beside the
directory, readable by the same user alone.
"""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import orjson
from aiohttp import web
from pydantic import BaseModel, TypeAdapter, ValidationError

from afterword.streams.errors import StoreInUse, StoreUnavailable
from afterword.streams.private import write_private
from afterword.streams.settings import is_loopback
from afterword.streams.stores.index import Embed, EpisodeIndex, Query, Recalled

ROUTE = "/index/episodes"
SEARCH_ROUTE = "/index/search"
PARAMETER = "query"
MAX_PARAMETER_BYTES = 3500
"""Percent-encoded; the health server accepts request lines of at most 4,096 bytes."""

IndexView = Callable[[web.Request], Awaitable[web.Response]]

T = TypeVar("T")

_IDS = TypeAdapter(set[str])
_HITS = TypeAdapter(list[Recalled])


class Address(BaseModel):
    """The URL at which the owner serves the index, and the token that it demands."""

    url: str
    token: str


def new_token() -> str:
    return secrets.token_urlsafe()


def address_file(path: Path) -> Path:
    """The file beside the index's directory that holds its owner's address."""
    return path.with_name(f"{path.name}.address")


def announce(path: Path, host: str, port: int, token: str) -> None:
    """Write the owner's address, in one step, so that nobody reads half of it."""
    address = Address(url=f"http://{host}:{port}", token=token)
    write_private(address_file(path), address.model_dump_json().encode())


def index_views(index: EpisodeIndex, embed: Embed, token: str) -> Mapping[str, IndexView]:
    """The owner's HTTP handlers by path: every indexed `episode_id`, and the hits of a `Query`; both as JSON arrays."""

    async def ids(_: web.Request) -> web.Response:
        return _json([episode_id async for episode_id in index.all_ids()])

    async def hits(request: web.Request) -> web.Response:
        try:
            query = Query.model_validate_json(request.query.get(PARAMETER, ""))
        except ValidationError:
            raise web.HTTPBadRequest from None
        found = await index.search(query, await embed(query.text))
        return _json([hit.model_dump(mode="json") for hit in found])

    return {ROUTE: _guarded(ids, token), SEARCH_ROUTE: _guarded(hits, token)}


class IndexReader:
    """Reads the index without owning it: on a server, in a directory, or through the directory's owner.

    A directory is open for one call only: no reader keeps a summarizer from starting. `open_index` opens it, or gives
    the index of a server. Methods raise StoreUnavailable and ConfigurationError.
    """

    def __init__(self, path: Path | None, open_index: Callable[[], EpisodeIndex]) -> None:
        self._path = path
        self._open_index = open_index

    async def search(self, query: Query, embed: Embed) -> list[Recalled]:
        """The best episodes, best first. An owner makes the query's vector itself."""
        if self._path and address_file(self._path).exists():
            with suppress(StoreUnavailable):  # of an owner that was killed: try to open the directory
                return await search_of_owner(self._path, query)
        async with self._opened() as index:
            return await index.search(query, await embed(query.text)) if index else []

    async def has(self, episode_ids: Sequence[str]) -> set[str]:
        """Those of the ids that are indexed."""
        try:
            async with self._opened() as index:
                return set(await index.revisions(episode_ids)) if index else set()
        except StoreInUse as in_use:
            if self._path is None:
                raise
            try:
                return await ids_of_owner(self._path) & set(episode_ids)
            except StoreUnavailable as error:
                raise in_use from error

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[EpisodeIndex | None]:
        """None for a directory that does not exist: opening would create it."""
        if self._path is None:
            yield self._open_index()
        elif not self._path.is_dir():
            yield None
        else:
            index = self._open_index()
            try:
                yield index
            finally:
                await index.close()


async def ids_of_owner(path: Path) -> set[str]:
    """Every `episode_id` that the owner of this directory has indexed. Raises: StoreUnavailable."""
    return await _ask(path, ROUTE, _IDS)


async def search_of_owner(path: Path, query: Query) -> list[Recalled]:
    """The hits of the directory's owner; a text too long for a request is cut. Raises: StoreUnavailable."""
    return await _ask(path, f"{SEARCH_ROUTE}?{PARAMETER}={encoded(query)}", _HITS)


def encoded(query: Query) -> str:
    """The query as a URL's parameter of at most MAX_PARAMETER_BYTES, without the end of a longer text."""
    parameter = quote(query.model_dump_json(), safe="")
    excess = len(parameter) - MAX_PARAMETER_BYTES
    if excess <= 0 or not query.text:
        return parameter
    # a character takes at most twelve bytes, so at least this many must go
    return encoded(query.model_copy(update={"text": query.text[: -max(1, excess // 12)]}))


async def _ask(path: Path, target: str, answer: TypeAdapter[T]) -> T:
    """Ask the owner. Raises: StoreUnavailable, also if something else listens where the owner did."""
    try:
        address = Address.model_validate_json(address_file(path).read_bytes())
        headers = {"Authorization": f"Bearer {address.token}"}
        async with httpx.AsyncClient(base_url=address.url, headers=headers, trust_env=False) as client:
            return answer.validate_json((await client.get(target)).raise_for_status().content)
    except (OSError, ValueError, httpx.HTTPError, httpx.InvalidURL) as error:
        problem = f"its owner does not answer: {type(error).__name__}"
        raise StoreUnavailable(store="qdrant", problem=problem) from None


def _guarded(handler: IndexView, token: str) -> IndexView:
    async def guarded(request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "")
        if not is_loopback(request.remote) or not secrets.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise web.HTTPForbidden
        try:
            return await handler(request)
        except StoreUnavailable:
            raise web.HTTPServiceUnavailable from None

    return guarded


def _json(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")
