"""Errors of the agent: retried, or the worker stops; never lost, and never half visible."""

import asyncio
from pathlib import Path

import pytest
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from faust_eos.app import App
from faust_eos.options import Options
from tests.integration.engine.lab import Lab, said, until

MANY = 1_000


async def test_failing_record_is_dead_lettered_and_neighbours_done_once(lab: Lab) -> None:
    lab.fault("always", MANY)
    await lab.produce([(2 * (n % 5), {}) for n in range(200)])
    await lab.produce([(12, {"fail": "always"})])
    await lab.produce([(2 * (n % 5), {}) for n in range(200)])
    worker = lab.worker(rejects=True, options={"agent_retries": 2})
    await until(lambda: len(lab.counted()) >= 400, watching=lab)
    numbers = [seen.value["i"] for seen in lab.counted()]
    assert sorted(numbers) == [n for n in range(401) if n != 200]
    assert numbers == sorted(numbers)
    assert [seen.value for seen in lab.outputs if "rejected" in seen.value] == [
        {"rejected": 200, "problem": "ValueError"}
    ]
    lab.fault("always", 0)
    await lab.stop(worker)
    lab.wipe()
    await lab.put(12)  # its state is as if the failed record had not been there
    lab.worker(rejects=True)
    await until(lambda: len(lab.counted()) == 401, watching=lab)
    assert lab.counted()[-1].value["n"] == 1


@pytest.mark.nightly
async def test_overlong_stop_is_cut_short(lab: Lab) -> None:
    lab.fault("once", 1)
    await lab.produce([(0, {}), (0, {"cling": "once"})])
    worker = lab.worker(static=True, options={"drain_seconds": 0.5})
    await until(lambda: lab.fault_left("once") == 0, watching=lab)
    await lab.stop(worker)
    assert "stop_timed_out" in worker.tail()
    lab.worker(static=True)
    await lab.all_counted()


async def test_stop_lets_the_running_batch_finish(lab: Lab) -> None:
    lab.fault("slow", 1)
    await lab.produce([(0, {"sleep": 3.0, "only_if": "slow"})])
    worker = lab.worker(static=True, options={"drain_seconds": 40.0})
    await until(lambda: lab.fault_left("slow") == 0, watching=lab)
    await lab.stop(worker)
    await lab.all_counted()
    await lab.until_committed(1)
    assert await lab.committed() == 1


@pytest.mark.parametrize("at_least_once", [False, pytest.param(True, marks=pytest.mark.nightly)])
async def test_output_that_kafka_refuses_becomes_a_dead_letter(lab: Lab, at_least_once: bool) -> None:
    await lab.configure(lab.output, **{"cleanup.policy": "compact"})
    refused = {50: {"ahead_seconds": 2 * 3600}, 120: {"keyless": True}}
    await lab.produce([(2 * (n % 5), refused.get(n, {})) for n in range(200)])
    worker = lab.worker(at_least_once=at_least_once, rejects=True, ordered=True)
    await until(lambda: len(lab.outputs) == 200, watching=lab)
    assert sorted(seen.value["i"] for seen in lab.counted()) == [n for n in range(200) if n not in refused]
    assert [seen.value for seen in lab.outputs if "rejected" in seen.value] == [
        {"rejected": n, "problem": "OutputRefused"} for n in refused
    ]
    assert sum(line["records"] == 1 for line in said(worker, "output_refused")) == 2
    await lab.stop(worker)


async def test_refused_output_without_dead_letter_topic_stops_worker(lab: Lab) -> None:
    await lab.produce([(0, {}), (0, {"ahead_seconds": 2 * 3600})])
    worker = lab.worker()
    assert await lab.exit_code(worker) != 0
    assert f"topic {lab.output} refuses a record with InvalidTimestampError (32)" in worker.tail()


@pytest.mark.nightly
async def test_send_after_a_refused_one_is_delivered(lab: Lab, tmp_path: Path) -> None:
    """Outside of transactions, where aiokafka's idempotent producer would keep a gap in its sequence numbers."""
    app = App(lab.app_id, brokers=lab.brokers, engine=Options(), datadir=tmp_path)

    async def send(value: bytes) -> None:
        await (await app.producer.send(lab.output, b"key", value, 0, None, []))

    await app.producer.start()
    try:
        await send(b"{}")
        await lab.configure(lab.output, **{"max.message.bytes": "500"})
        large, accepted = b"[%s]" % (b"0," * 2000 + b"0"), 4
        async with asyncio.timeout(20):
            while not isinstance((await asyncio.gather(send(large), return_exceptions=True))[0], KafkaError):
                accepted += 1  # the broker does not know its new limit yet
        refused = await asyncio.gather(*[send(large) for _ in range(5)], return_exceptions=True)
        assert {type(error) for error in refused} == {MessageSizeTooLargeError}
        async with asyncio.timeout(20):
            for _ in range(3):
                await send(b"{}")
    finally:
        await app.producer.stop()
    await until(lambda: len(lab.outputs) == accepted, watching=lab)
