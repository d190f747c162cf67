"""Producers that choose partitions differently: the segmenter warns, and the audit names the conversations."""

from collections.abc import Callable
from pathlib import Path

import pytest

from afterword.operating import audit
from afterword.streams.kafka.clients import running_producer
from afterword.streams.segmenter.agent import standard_partition
from afterword.streams.settings import Settings
from tests.e2e.deployment import deployed
from tests.integration.afterword.test_telemetry import LINES, MESSAGES, Worker

pytestmark = pytest.mark.nightly

CONVERSATION = b"c0"


async def test_a_conversation_in_two_partitions_is_counted_and_named_by_the_audit(
    make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    settings = make_settings(kafka={"partitions": 2}, health={"port": 0}, drain_seconds=5)
    topic, standard = settings.kafka.messages_topic, standard_partition(CONVERSATION, 2)
    async with deployed(settings, tmp_path) as deployment:
        deployment.start("segmenter")
        async with running_producer(settings.kafka) as producer:
            for line in LINES[: MESSAGES - 1]:
                await producer.send_and_wait(topic, line, key=CONVERSATION)
            await producer.send_and_wait(topic, LINES[MESSAGES - 1], key=CONVERSATION, partition=1 - standard)
        segmenter = Worker(deployment, "segmenter")
        await segmenter.until("afterword_messages_total", "taken", value=MESSAGES)
        await segmenter.until("afterword_conversations_in_another_partition_total", value=1)
        log = deployment.logs("segmenter")
    assert log.count("conversation_in_another_partition") == 1
    report = await audit.run(settings)
    assert report.findings["two_partitions"].examples == ["c0, partitions 0, 1"]
