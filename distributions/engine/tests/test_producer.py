"""Failures to send."""

from pathlib import Path

import pytest
from aiokafka.errors import KafkaError

from faust_eos import App, Options


async def test_a_send_of_a_worker_that_is_stopping_is_a_failure_of_kafka_like_any_other(tmp_path: Path) -> None:
    """A caller that retries is cancelled in the end. Any other error would end the worker with exit code 1."""
    app = App("stopping", brokers="127.0.0.1:9", engine=Options(), datadir=tmp_path)
    with pytest.raises(KafkaError):
        await app.producer.send("topic", b"key", b"value", None, None, [])
