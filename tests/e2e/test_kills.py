"""The promise holds while workers are killed, frozen, doubled and lose their state. SEED is fixed."""

import asyncio
import os
import random

from afterword.streams.roles import ALWAYS_RUN
from tests.e2e.deployment import Deployment, expected_fingerprints, fingerprints, repeated

SEED = int(os.environ.get("SEED", "1"))
MESSAGES_PER_SECOND = 60.0
BETWEEN_KILLS_SECONDS = (1.0, 4.0)
PAST_THE_SESSION_SECONDS = 8.0
VICTIMS = ("segmenter", "summarizer", "archiver")


async def kill_at_random(deployment: Deployment, chance: random.Random, until: asyncio.Event) -> int:
    """Kill workers and restart them; one loses its state. Returns the number of kills."""
    kills = 0
    while not until.is_set():
        await asyncio.sleep(chance.uniform(*BETWEEN_KILLS_SECONDS))
        victim = chance.choice(VICTIMS)
        deployment.kill(victim)
        if kills == 2:
            deployment.kill("segmenter")
            deployment.lose_state("segmenter")
            deployment.start("segmenter")
        if kills != 2 or victim != "segmenter":
            deployment.start(victim)
        kills += 1
    return kills


async def join_freeze_and_leave(deployment: Deployment) -> None:
    """Let a second segmenter join, suspend it past its session so that the first takes over, resume it, and stop it."""
    deployment.start("segmenter", "segmenter-2")
    await asyncio.sleep(5)
    deployment.workers["segmenter-2"].suspend()
    await asyncio.sleep(PAST_THE_SESSION_SECONDS)
    deployment.workers["segmenter-2"].resume()
    await asyncio.sleep(4)
    await deployment.stop("segmenter-2")


async def test_kills_freezes_and_lost_state_lose_and_repeat_nothing(
    deployment: Deployment, dialogues: list[bytes]
) -> None:
    lines, produced = repeated(dialogues, 2), asyncio.Event()
    for role in ALWAYS_RUN:
        deployment.start(role)
    async with asyncio.TaskGroup() as work:
        kills = work.create_task(kill_at_random(deployment, random.Random(SEED), produced))
        work.create_task(join_freeze_and_leave(deployment))
        await deployment.produce(lines, rate=MESSAGES_PER_SECOND)
        produced.set()
    report = await deployment.audit()
    assert kills.result() > 5
    assert report.clean, [f"SEED={SEED}", *report.lines()]
    assert report.messages["in_an_episode"] == report.messages["total"]
    assert report.summaries["announced"] == report.episodes["total"]
    assert report.summaries["repeats"] == 0, f"SEED={SEED}: announced twice"
    closed = await deployment.episodes()
    assert len(closed) == len({episode.episode_id for episode in closed}), f"SEED={SEED}: committed twice"
    assert fingerprints(closed) == expected_fingerprints(lines, deployment.settings)
