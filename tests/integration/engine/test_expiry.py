"""Source topics that lose what was read, or was to be read next."""

import asyncio

import pytest
from aiokafka import AIOKafkaProducer

from tests.integration.engine.lab import Lab, said, until
from tests.integration.engine.test_concurrent import done

pytestmark = pytest.mark.nightly

FETCH_ENDS_SECONDS = 0.6
"""Time after which the broker has answered the last fetch of a suspended worker."""


@pytest.mark.parametrize("told", [{}, {"at_least_once": True}], ids=["exactly once", "at least once"])
async def test_records_that_expire_under_a_suspended_worker_are_counted(lab: Lab, told) -> None:
    await lab.produce([(0, {})] * 5)
    worker = lab.worker(**told)
    await lab.until_committed(5)
    worker.suspend()
    await asyncio.sleep(FETCH_ENDS_SECONDS)
    await lab.produce([(0, {})] * 10)
    await lab.expire(before=12)
    worker.resume()
    await lab.until_committed(15)

    def handled() -> set[int]:
        return {offset for _, offset in done(lab)} if told else {seen.value["i"] for seen in lab.counted()}

    await until(lambda: handled() == {*range(5), *range(12, 15)}, watching=lab)
    [lost] = said(worker, "records_expired")
    assert (lost["first_lost"], lost["next_offset"], lost["count"]) == (5, 12, 7)


@pytest.mark.parametrize("told", [{}, {"at_least_once": True}], ids=["exactly once", "at least once"])
async def test_shorter_recreated_source_topic_stops_a_running_worker(lab: Lab, told) -> None:
    await lab.produce([(0, {})] * 5)
    worker = lab.worker(**told)
    await lab.until_committed(5)
    worker.suspend()
    await lab.delete(lab.source)
    await lab.create(lab.source)
    await lab.produce([(0, {})] * 2)
    worker.resume()
    assert await lab.exit_code(worker) > 0
    assert "SourceReplaced" in worker.tail() or "SourceRecreated" in worker.tail()


async def test_expired_transaction_marker_is_no_loss(lab: Lab) -> None:
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
    assert said(worker, "records_expired") == []
