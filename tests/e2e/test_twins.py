"""Two deployments with the same names on one cluster, by mistake."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from afterword.streams.settings import Settings
from afterword.streams.stores.opening import open_stores
from tests.e2e.deployment import deployed, expected_fingerprints, fingerprints

pytestmark = pytest.mark.nightly

SECONDS = 200.0
MOST = 1000
"""Maximum number of episodes of a deployment."""


async def stored(settings: Settings) -> set[str]:
    """Return the ids of the episodes in this deployment's stores."""
    async with open_stores(settings) as stores:
        return {episode.event.episode_id for episode in await stores.episodes.page(None, MOST)}


def of_another_day(dialogues: list[bytes], day: int) -> list[bytes]:
    return [orjson.dumps({**orjson.loads(line), "id": f"day {day}, dialogue {n}"}) for n, line in enumerate(dialogues)]


async def test_two_deployments_with_the_same_names_share_the_work_and_each_stores_a_part(
    make_settings: Callable[..., Settings], dialogues: list[bytes], tmp_path: Path
) -> None:
    kafka = {"partitions": 4}
    ours = make_settings(kafka=kafka)
    theirs = make_settings(kafka=kafka, sqlite={"path": tmp_path / "theirs.sqlite"})
    lines: list[bytes] = []
    async with deployed(ours, tmp_path / "1") as first, deployed(theirs, tmp_path / "2") as second:
        for deployment in (first, second):
            deployment.start("segmenter")
            deployment.start("summarizer")
        async with asyncio.timeout(SECONDS):
            while not (await stored(ours) and await stored(theirs)):
                day = of_another_day(dialogues[:20], len(lines))
                await first.produce(day)
                lines += day
                await all_stored(set(expected_fingerprints(lines, ours)), ours, theirs)
        assert fingerprints(await first.episodes()) == expected_fingerprints(lines, ours)
    assert await stored(ours) - await stored(theirs)
    assert await stored(theirs) - await stored(ours)


async def all_stored(expected: set[str], *settings: Settings) -> None:
    while set[str]().union(*[await stored(some) for some in settings]) != expected:  # noqa: ASYNC110 – stores set no event
        await asyncio.sleep(0.3)
