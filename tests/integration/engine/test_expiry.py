"""Records are deleted before they are read: how many is in the log, and the work goes on with those that are left."""

import asyncio
from typing import Any

import orjson
import pytest
from aiokafka import AIOKafkaProducer

from afterword.embedded.process import Process
from tests.integration.engine.lab import Lab, until
from tests.integration.engine.test_concurrent import done

pytestmark = pytest.mark.nightly

FETCH_ENDS_SECONDS = 0.6
"""Time after which the broker has answered the last fetch of a suspended worker."""


def losses(worker: Process) -> list[tuple[int, int, int]]:
    """First lost offset, next offset and count of each loss that the worker logged."""
    log = worker.log.read_text().splitlines()
    lines = [orjson.loads(line) for line in log if '"records_expired"' in line]
    return [(line["first_lost"], line["next_offset"], line["count"]) for line in lines]


def handled(lab: Lab, told: dict[str, Any]) -> set[int]:
    """Offsets of partition 0 whose records were handled."""
    if told:
        return {offset for partition, offset in done(lab) if partition == 0}
    return {seen.value["i"] for seen in lab.counted()}


@pytest.mark.parametrize("told", [{}, {"at_least_once": True}], ids=["exactly once", "at least once"])
async def test_records_that_expire_under_a_suspended_worker_are_counted_and_the_rest_is_handled(lab: Lab, told) -> None:
    await lab.produce([(0, {})] * 5)
    worker = lab.worker(**told)
    await until(lambda: len(handled(lab, told)) == 5, watching=lab)
    worker.suspend()
    await asyncio.sleep(FETCH_ENDS_SECONDS)
    await lab.produce([(0, {})] * 10)
    await lab.expire(before=12)
    worker.resume()
    await until(lambda: len(handled(lab, told)) == 8, watching=lab)
    assert handled(lab, told) == {*range(5), *range(12, 15)}
    assert losses(worker) == [(5, 12, 7)]


async def test_records_that_expire_before_an_at_least_once_worker_starts_are_counted_once(lab: Lab) -> None:
    await lab.produce([(0, {})] * 5)
    worker = lab.worker(at_least_once=True, static=True)
    await until(lambda: len(done(lab)) == 5, watching=lab)
    await lab.until_committed(5)
    await lab.stop(worker)
    await lab.produce([(0, {})] * 10)
    await lab.expire(before=12)
    counting = lab.worker("b", at_least_once=True, static=True)
    await lab.until_committed(15)
    await lab.stop(counting)
    assert losses(counting) == [(5, 12, 7)]
    again = lab.worker("c", at_least_once=True, static=True)
    await lab.produce([(0, {})])
    await lab.until_committed(16)
    assert losses(again) == []


async def test_a_new_group_starts_with_the_earliest_record_and_has_lost_nothing(lab: Lab) -> None:
    await lab.produce([(0, {})] * 5)
    await lab.expire(before=3)
    worker = lab.worker(at_least_once=True)
    await until(lambda: handled(lab, {"at_least_once": True}) == {3, 4}, watching=lab)
    assert losses(worker) == []


@pytest.mark.parametrize("told", [{}, {"at_least_once": True}], ids=["exactly once", "at least once"])
async def test_a_source_topic_made_anew_and_shorter_stops_a_running_worker(lab: Lab, told) -> None:
    await lab.produce([(0, {})] * 5)
    worker = lab.worker(**told)
    await until(lambda: len(handled(lab, told)) == 5, watching=lab)
    await lab.until_committed(5)
    worker.suspend()
    await lab.delete(lab.source)
    await lab.create(lab.source)
    await lab.produce([(0, {})] * 2)
    worker.resume()
    assert await lab.exit_code(worker) > 0
    assert "SourceReplaced" in worker.tail() or "SourceRecreated" in worker.tail()


async def test_a_transactions_marker_that_expires_after_the_last_record_is_no_loss(lab: Lab) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=lab.brokers, transactional_id=lab.app_id)
    await producer.start()
    async with producer.transaction():
        await producer.send_and_wait(lab.source, b'{"i": 0}', partition=0)
    await producer.stop()
    worker = lab.worker(at_least_once=True, static=True)
    await until(lambda: done(lab), watching=lab)
    await lab.until_committed(2)
    await lab.stop(worker)
    await lab.expire(before=2)
    await lab.produce([(0, {})])
    worker = lab.worker(at_least_once=True, static=True)
    await lab.until_committed(3)
    assert losses(worker) == []
