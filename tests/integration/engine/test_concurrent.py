"""At-least-once with many records at a time. Outputs are committed with what is finished, once."""

import asyncio
import random
from dataclasses import dataclass

from tests.integration.engine.lab import Lab, until


@dataclass(frozen=True)
class Note:
    what: str
    partition: int
    offset: int
    pid: int


def notes(lab: Lab, what: str | None = None) -> list[Note]:
    lines = [line.split() for line in lab.journal.read_text().splitlines()]
    found = [Note(word, int(partition), int(offset), int(pid)) for word, partition, offset, pid in lines]
    return [note for note in found if what in (None, note.what)]


def done(lab: Lab) -> set[tuple[int, int]]:
    return {(note.partition, note.offset) for note in notes(lab, "done")}


async def test_slow_record_delays_the_commit_but_not_others(lab: Lab) -> None:
    await lab.produce([(0, {"until": "released"}), *[(0, {})] * 40])
    lab.worker(at_least_once=True, options={"max_in_flight": 5, "commit_interval_seconds": 0.1})
    await until(lambda: len(done(lab)) == 40, watching=lab)
    await asyncio.sleep(0.5)  # time for five commits
    assert await lab.committed() in (-1, 0)
    lab.fault("released", 1)
    await lab.until_committed(41)


async def test_kill_repeats_only_unfinished_records(lab: Lab) -> None:
    await lab.produce([*[(0, {})] * 30, (0, {"until": "released"}), *[(0, {})] * 3])
    worker = lab.worker(at_least_once=True, static=True, options={"commit_interval_seconds": 0.1})
    await until(lambda: len(done(lab)) == 33, watching=lab)
    await lab.until_committed(30)
    await until(lambda: len(lab.counted()) == 33, watching=lab)
    worker.kill()
    lab.fault("released", 1)
    lab.worker(at_least_once=True, static=True)
    await lab.until_committed(34)
    redone = [note.offset for note in notes(lab, "begun") if note.pid != worker.pid]
    assert redone == [30]
    await lab.all_told_once()


async def test_killed_workers_send_nothing_twice_and_lose_nothing(lab: Lab) -> None:
    """The seed chooses a moment between handling and committing, inside of a transaction, or after it."""
    chance = random.Random(1)
    await lab.produce([(number % 2, {"sleep": chance.uniform(0, 0.2)}) for number in range(600)])
    told = {"at_least_once": True, "static": True, "options": {"max_in_flight": 8}}
    for _ in range(5):
        worker, before = lab.worker(**told), len(done(lab))
        await until(lambda before=before: len(done(lab)) > before + 20, watching=lab)
        await asyncio.sleep(chance.uniform(0, 0.1))
        worker.kill()
    lab.worker(**told)
    await lab.all_told_once()


async def test_key_with_a_backlog_blocks_no_other(lab: Lab) -> None:
    await lab.produce([(0, {"until": "released"}), *[(0, {})] * 499, *[(2 * number, {}) for number in range(1, 51)]])
    worker = lab.worker(at_least_once=True, ordered=True, static=True, options={"max_in_flight": 8})
    await until(lambda: len(done(lab)) == 50, watching=lab)
    assert {key for key, seen in zip(lab.keys, range(550), strict=True) if (0, seen) in done(lab)} == set(
        lab.keys[500:]
    )
    await until(lambda: len(lab.counted()) == 50, watching=lab)
    worker.kill()
    lab.fault("released", 1)
    lab.worker(at_least_once=True, ordered=True, static=True, options={"max_in_flight": 8})
    await lab.all_told_once()
    of_the_key = [seen.value["i"] for seen in lab.counted() if seen.key == lab.keys[0]]
    assert of_the_key == sorted(of_the_key)
    assert len([note for note in notes(lab, "begun") if note.offset >= 500]) == 50, "done again after the kill"
