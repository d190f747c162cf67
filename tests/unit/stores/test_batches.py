import asyncio
from collections.abc import Sequence

import pytest

from afterword.streams.tasks import Batches


async def test_call_that_cancels_itself_leaves_no_job_waiting() -> None:
    async def cancel(_: object, jobs: list[int]) -> Sequence[int]:
        await asyncio.sleep(0)
        if 1 in jobs:
            raise asyncio.CancelledError
        return jobs

    batches = Batches[int](cancel, most=4)
    cancelled, done = (asyncio.create_task(batches.result(number, "kind")) for number in (1, 2))
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(cancelled, 5)
    assert await done == 2


async def test_jobs_of_one_kind_run_together_despite_others_between() -> None:
    ran: list[tuple[object, list[int]]] = []

    async def note(kind: object, jobs: list[int]) -> Sequence[int]:
        await asyncio.sleep(0)
        ran.append((kind, jobs))
        return jobs

    batches = Batches[int](note, most=2)
    kinds = ["read", "write", "read", "write", None, "read", None]
    assert await asyncio.gather(*map(batches.result, range(7), kinds)) == list(range(7))
    assert ran == [("read", [0, 2]), ("write", [1, 3]), (None, [4]), ("read", [5]), (None, [6])]
