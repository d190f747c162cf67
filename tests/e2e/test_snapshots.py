"""A worker that is lost with its disk: the next one starts from a snapshot, in a folder or in a bucket."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest

from afterword.dev import ROLES
from afterword.produce import ProduceOptions, produce
from afterword.streams.settings import Settings
from tests.bucket import BUCKET, bucket_server
from tests.e2e.deployment import Deployment, deployed
from tests.processes import until

pytestmark = pytest.mark.nightly

WAIT_SECONDS = 120
SECONDS = 60
TALKS = [f"talk-{n}" for n in range(12)]


def said(numbers: range) -> Iterator[bytes]:
    for n in numbers:
        for talk in TALKS:
            role = "assistant" if n % 2 else "user"
            text = f"This was said as number {n} in {talk}, about the trip to Rome and the hotel there."
            yield orjson.dumps({"id": f"m{n}", "conversation_id": talk, "user_id": "u", "role": role, "content": text})


async def say(settings: Settings, numbers: range, *, flush: bool = False) -> None:
    async def each() -> AsyncIterator[bytes]:
        for line in said(numbers):
            yield line

    await produce(settings, each(), ProduceOptions(flush=flush))


def events(deployment: Deployment, name: str, event: str) -> list[dict[str, Any]]:
    lines = [line for line in deployment.logs(name).splitlines() if line.startswith("{")]
    return [found for found in map(json.loads, lines) if found.get("event") == event]


@pytest.mark.parametrize("place", ["folder", "bucket"])
async def test_a_worker_that_is_lost_with_its_disk_is_replaced_by_one_that_starts_from_its_snapshots(
    place: str, make_settings: Callable[..., Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as closing:
        bucket = await closing.enter_async_context(bucket_server())
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        settings = make_settings(
            kafka={"partitions": 4, "session_timeout_seconds": 6, "rebalance_timeout_seconds": 15},
            engine={
                "tick_seconds": 0.2,
                "snapshot_url": str(tmp_path / "kept") if place == "folder" else f"s3://{BUCKET}/kept",
                "snapshot_seconds": 1,
            },
            drain_seconds=10,
        )
        deployment = await closing.enter_async_context(deployed(settings, tmp_path))
        for role in ROLES:
            deployment.start(role)
        await say(settings, range(7))
        await asyncio.to_thread(until, lambda: has_copied(deployment, settings), SECONDS)
        await say(settings, range(7, 9))
        deployment.kill("segmenter")
        deployment.lose_state("segmenter")
        deployment.start("segmenter", "new")
        await say(settings, range(9, 30), flush=True)
        report = await deployment.audit(WAIT_SECONDS)
        assert report.clean, list(report.lines())
        assert report.messages["in_an_episode"] == report.messages["total"] == 30 * len(TALKS)
        restored = events(deployment, "new", "snapshot_restored")
        assert len(restored) == settings.kafka.partitions
        assert sum(one["rows"] for one in restored) > 7 * len(TALKS)
        recovered = events(deployment, "new", "recovered")
        assert not any(one["rebuilt"] for one in recovered)
        assert not events(deployment, "new", "snapshot_ignored")
        assert "THE-SECRET" not in deployment.logs("segmenter") + deployment.logs("new")


def has_copied(deployment: Deployment, settings: Settings) -> bool:
    """Tell whether each partition has a snapshot."""
    written = {one["snapshot"] for one in events(deployment, "segmenter", "snapshot_written")}
    return len(written) == settings.kafka.partitions
