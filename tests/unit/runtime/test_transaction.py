"""Opening the producer of a partition."""

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError

from afterword.streams.runtime.options import Options
from afterword.streams.runtime.transaction import TransactionalProducer


class Unstartable:
    """As aiokafka's when a broker that just comes up names no broker."""

    async def start(self) -> None:
        raise AssertionError("Did we not perform bootstrap?")


async def test_a_broker_that_names_no_broker_is_one_that_cannot_be_reached_yet() -> None:
    clients: Any = SimpleNamespace(producer=lambda **_: Unstartable())
    with pytest.raises(KafkaConnectionError):
        await TransactionalProducer("t", clients, Options()).open(timeout_seconds=5)
