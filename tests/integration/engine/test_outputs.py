"""Topics that an agent's outputs go to, and failures to send to them."""

import asyncio
from pathlib import Path

import pytest
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from faust_eos.app import App
from faust_eos.options import Options
from tests.integration.engine.lab import Lab, until

pytestmark = pytest.mark.nightly


async def test_a_send_after_one_that_the_broker_refused_is_delivered(lab: Lab, tmp_path: Path) -> None:
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
