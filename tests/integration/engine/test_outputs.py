"""Topics that an agent's outputs go to, and failures to send to them."""

import asyncio
from pathlib import Path

import pytest
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from faust_eos.app import App
from faust_eos.options import Options
from tests.integration.engine.lab import Lab, said, until


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
