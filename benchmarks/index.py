"""The search index: writing an episode and searching, in a directory and, where there is one, on a server.

The server is Qdrant's own, started as for the tests. Texts differ by a word of a thousand, so that searches rank.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from afterword.schemas import SummaryCreated
from afterword.streams.settings import Qdrant, Settings
from afterword.streams.stores.index import EpisodeIndex, Query
from afterword.streams.stores.opening import open_stores
from benchmarks.llm import TEXTS
from benchmarks.quantiles import quantile
from benchmarks.suite import Finding, Form, Line
from tests.qdrant import chosen_address, running_qdrant
from tests.samples import a_summary

EPISODES, SHORT_EPISODES = 1_000, 100
SEARCHES = 200
WRITERS = 8
"""Writes under way at a time, as a worker has several episodes in hand."""
OWNER = {"user_id": "u1", "tenant_id": "t1"}
NOBODY = "no server: AFTERWORD_TEST_QDRANT=host:port names one"


async def run(form: Form, directory: Path) -> Sequence[Finding]:
    count = SHORT_EPISODES if form.short else EPISODES
    lines = [await measured("in a directory", Qdrant(path=directory / "local"), count)]
    async with server(directory / "server") as url, httpx.AsyncClient() as client:
        if url:
            settings = Qdrant(url=url, collection=f"bench-{time.time_ns()}")
            lines.append(await measured("on a server", settings, count))
            await client.delete(f"{url}/collections/{settings.collection}")
    title = f"index: {count:,} episodes of one user, {WRITERS} writers, then {SEARCHES} searches one after the other"
    return [Finding(title, lines, () if url else (NOBODY,))]


@asynccontextmanager
async def server(directory: Path) -> AsyncIterator[str | None]:
    """URL of the server; None where there is none."""
    if address := chosen_address():
        yield f"http://{address}"
        return
    async with running_qdrant(directory) as started:
        yield started.url if started else None


async def measured(program: str, settings: Qdrant, count: int) -> Line:
    async with open_stores(Settings(qdrant=settings)) as stores:
        puts = await timed_puts(stores.index, [episode(number) for number in range(1, count + 1)])
        searches = [await timed_search(stores.index, f"refund number{number % 997}") for number in range(SEARCHES)]
    return Line(program, {**quantiles("put", puts), **quantiles("search", searches)})


def episode(number: int) -> SummaryCreated:
    return a_summary(number, **{**TEXTS, "title": f"{TEXTS['title']} number{number % 997}"})


async def timed_puts(index: EpisodeIndex, summaries: Sequence[SummaryCreated]) -> list[float]:
    """Seconds of each."""
    await index.put(summaries[0], TEXTS["long_summary"])  # creates the collection
    slots = asyncio.Semaphore(WRITERS)

    async def timed(summary: SummaryCreated) -> float:
        async with slots:
            began = time.monotonic()
            await index.put(summary, TEXTS["long_summary"])
            return time.monotonic() - began

    return await asyncio.gather(*[timed(summary) for summary in summaries])


async def timed_search(index: EpisodeIndex, text: str) -> float:
    began = time.monotonic()
    if not await index.search(Query(text=text, **OWNER)):
        raise RuntimeError(f"nothing was found of {text!r}")
    return time.monotonic() - began


def quantiles(name: str, seconds: Sequence[float]) -> dict[str, str]:
    return {f"{name}, p{share * 100:.0f}": f"{quantile(seconds, share) * 1000:.1f} ms" for share in (0.5, 0.99)}
