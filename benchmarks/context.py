"""Measures the context of one conversation by its length: CPU of a call, on SQLite and without servers."""

import time
from itertools import cycle, islice
from pathlib import Path

from benchmarks.data import turn_texts
from benchmarks.measuring import Form, show
from tests.unit.afterword.reading.remembered import Remembered

SIZES, SHORT_SIZES = (500, 50_000), (100, 200)
EPISODE_MESSAGES = 10
BUDGETS = (500, 2000, 3500)
CALLS = 20


async def run(form: Form, _: Path) -> None:
    rows = []
    for size in sorted(form.messages) or (SHORT_SIZES if form.short else SIZES):
        world = Remembered()
        said = await world.say(*islice(cycle(turn_texts()), size))
        await world.summarise(said, size=EPISODE_MESSAGES)
        rows.append(
            {"": f"{size:,} messages", **{f"{budget:,} tokens": await cpu(world, budget) for budget in BUDGETS}}
        )
    show("context of one conversation: CPU of a call", rows)


async def cpu(world: Remembered, max_tokens: int) -> str:
    await world.context(max_tokens=max_tokens)
    began = time.process_time()
    for _ in range(CALLS):
        await world.context(max_tokens=max_tokens)
    return f"{(time.process_time() - began) / CALLS * 1000:.1f} ms"
