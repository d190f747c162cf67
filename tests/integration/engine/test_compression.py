"""Compression of records is the producer's choice: franz-go's default is snappy."""

import pytest
from aiokafka import AIOKafkaProducer

from tests.integration.engine.lab import Lab

pytestmark = pytest.mark.nightly

CODECS = ("gzip", "snappy", "lz4", "zstd")
RECORDS = [(number % 4, {"padding": "a" * 200}) for number in range(20)]


async def test_records_are_read_however_they_are_compressed(lab: Lab) -> None:
    plain = lab.producer
    for codec in CODECS:
        async with AIOKafkaProducer(bootstrap_servers=lab.brokers, compression_type=codec, linger_ms=20) as producer:
            lab.producer = producer
            await lab.produce(RECORDS)
    lab.producer = plain
    lab.worker()
    await lab.all_counted()
