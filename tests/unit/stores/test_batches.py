import asyncio
from collections.abc import Sequence

import pytest

from afterword.streams.stores.batches import Batches


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
