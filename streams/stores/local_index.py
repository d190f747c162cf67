"""Reading Qdrant's local mode from other processes: its owner shows what it has over HTTP.

Only for one machine: the local mode lets one process open its directory.
"""

import os
from pathlib import Path

import httpx
import orjson
from aiohttp import web

from streams.errors import StoreUnavailable
from streams.stores.index import EpisodeIndex

ROUTE = "/index/episodes"


def address_file(path: Path) -> Path:
    """Beside the index's directory: where its owner listens."""
    return path.with_name(f"{path.name}.address")


def announce(path: Path, host: str, port: int) -> None:
    """Says where the owner listens; in one step, so that nobody reads half of it."""
    file = address_file(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".new")
    unfinished.write_text(f"http://{host}:{port}")
    os.replace(unfinished, file)  # noqa: PTH105 – the atomic one, by its name


class IndexView:
    """Answers with every indexed `episode_id`, as a JSON array."""

    def __init__(self, index: EpisodeIndex) -> None:
        self._index = index

    async def __call__(self, _: web.Request) -> web.Response:
        found = [episode_id async for episode_id in self._index.all_ids()]
        return web.Response(body=orjson.dumps(found), content_type="application/json")


async def ids_of_owner(path: Path) -> set[str]:
    """Every `episode_id` that the owner of this directory has indexed. Raises: StoreUnavailable."""
    try:
        async with httpx.AsyncClient(base_url=address_file(path).read_text()) as client:
            answer = (await client.get(ROUTE)).raise_for_status()
    except (OSError, httpx.HTTPError) as error:
        raise StoreUnavailable(store="qdrant", problem=f"its owner does not answer: {type(error).__name__}") from error
    return set(orjson.loads(answer.content))
