"""Sizes of transactions are halved after a timeout, and grow again when the broker can take more."""

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from distributions.engine.tests.partition import Partition, Producer, echo, record
from faust_eos.batch import Batch
from faust_eos.transaction import GROW_AFTER, LEAST_BYTES, Slices

MOST, MOST_BYTES = 2000, 1 << 20


@given(st.lists(st.integers(0, 3 << 20), min_size=1, max_size=50), st.integers(1, 20))
def test_slice_of_several_records_is_bounded_in_bytes(sizes: list[int], most: int) -> None:
    number = Slices(most, MOST_BYTES, MOST_BYTES).take(sizes)
    assert 1 <= number <= min(most, len(sizes))
    assert number == 1 or sum(sizes[:number]) <= MOST_BYTES
    assert number in (most, len(sizes)) or sum(sizes[: number + 1]) > MOST_BYTES


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3000)), max_size=200))
def test_slice_after_a_timeout_is_at_most_half(history: list[tuple[bool, int]]) -> None:
    slices = Slices(MOST, MOST_BYTES, 8 * MOST_BYTES)
    for timed_out, available in history:
        number = slices.take([1000] * available)
        if not timed_out:
            slices.committed(number)
            continue
        slices.timed_out(number, 1000 * number, 3000 * number)
        assert slices.take([1000] * 3000) <= max(1, number // 2)
        assert slices.most_written <= max(LEAST_BYTES, 3000 * number // 2)


@given(st.integers(1, MOST), st.integers(1, 5_000))
def test_slow_broker_costs_few_timeouts_and_receives_everything(capacity: int, records: int) -> None:
    slices, left, timeouts = Slices(MOST, MOST_BYTES, MOST_BYTES), records, 0
    while left:
        number = slices.take([1] * left)
        if number > capacity:
            timeouts += 1
            slices.timed_out(number, number, number)
        else:
            slices.committed(number)
            left -= number
    assert timeouts <= 11 or (timeouts - 11) * GROW_AFTER * max(1, capacity // 2) <= records


def test_slices_regrow_soon_after_an_outage() -> None:
    slices = Slices(MOST, MOST_BYTES, MOST_BYTES)
    for _ in range(20):
        slices.timed_out(slices.take([100] * MOST), 100, 100)
    for _ in range(11 * GROW_AFTER):
        slices.committed(slices.take([100] * MOST))
    assert slices.take([100] * MOST) == MOST


async def writing(work: Any, batch: Batch) -> None:
    """Write 1 MiB for each record, and take no more records than there is room for."""
    written = done = 0
    for one in work:
        if written >= batch.most_bytes:
            break
        batch.send(echo(one, size=1 << 20))
        written += 1 << 20
        done += 1
    batch.take_first(done)


async def test_broker_that_times_out_gets_smaller_slices() -> None:
    partition = Partition(writing, producer=Producer(most_bytes=3 << 20))
    await partition.process([record(offset) for offset in range(50)])
    assert len(partition.values("out")) == 50
    assert partition.producer.tried[:2] == [(8 << 20) + 11 - 3, (4 << 20) + 4]
    refused = [size for size in partition.producer.tried if size > 3 << 20]
    assert len(refused) <= 5


async def test_transaction_stays_near_its_bound_whatever_records_lead_to() -> None:
    partition = Partition(writing, max_written_bytes=4 << 20)
    await partition.process([record(offset) for offset in range(50)])
    assert max(partition.producer.tried) < (5 << 20)


async def test_eight_hundred_large_records_make_many_transactions() -> None:
    async def agent(work: Any, batch: Batch) -> None:
        sizes.append(sum(len(one.value) for one in work))
        await asyncio.sleep(0)

    sizes: list[int] = []
    partition = Partition(agent)
    body = record(0, size=600_000).value
    records = [record(offset, size=0) for offset in range(800)]
    for one in records:
        one.value = body
    await partition.process(records)
    assert sum(sizes) == 800 * 600_000
    assert max(sizes) <= 1 << 20
