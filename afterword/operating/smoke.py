"""Smoke test of a deployment: sends one conversation through the whole path."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from uuid import uuid4

import orjson
from aiokafka import AIOKafkaConsumer

from afterword.reading.watch import events, seek_to_now
from afterword.schemas import SummaryCreated
from afterword.streams.errors import AfterwordError
from afterword.streams.kafka import running_consumer
from afterword.streams.settings import Settings
from afterword.writing.produce import ProduceOptions, produce

TURNS = (
    ("user", "Is the smoke test of this deployment through yet?"),
    ("assistant", "Not yet: this conversation has to be summarized first."),
    ("user", "Then I wait for its summary."),
)


class NoSummary(AfterwordError):
    """{seconds:g} seconds after it was sent, conversation {conversation_id} has no summary; is each role running?"""


async def smoke(settings: Settings, seconds: float) -> SummaryCreated:
    """Send a short conversation with a new id and return its summary. Both stay in the stores.

    Raises: NoSummary, BrokerUnavailable, TopicMissing.
    """
    conversation_id = f"afterword-smoke-{uuid4()}"
    async with running_consumer(
        settings.kafka, settings.kafka.summaries_topic, auto_offset_reset="earliest"
    ) as consumer:
        await seek_to_now(consumer)  # before anything is sent, so that no summary is missed
        try:
            async with asyncio.timeout(seconds):
                await produce(settings, smoke_lines(conversation_id), ProduceOptions(flush=True))
                return await _announced(consumer, conversation_id)
        except TimeoutError:
            raise NoSummary(seconds=seconds, conversation_id=conversation_id) from None


def smoke_lines(conversation_id: str) -> Iterator[bytes]:
    for number, (role, content) in enumerate(TURNS):
        yield orjson.dumps(
            {
                "id": str(number),
                "conversation_id": conversation_id,
                "user_id": "afterword-smoke",
                "role": role,
                "content": content,
            }
        )


async def _announced(consumer: AIOKafkaConsumer, conversation_id: str) -> SummaryCreated:
    async with aclosing(events(consumer)) as found:
        async for event in found:
            if isinstance(event, SummaryCreated) and event.conversation_id == conversation_id:
                return event
    raise AssertionError("a topic has no end")
