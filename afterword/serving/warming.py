"""Warming up: connections, and what is loaded at its first use, before the server says that it is ready."""

import asyncio
from collections.abc import Awaitable

import structlog
from aiokafka.errors import KafkaError

from afterword.memory import Memory
from afterword.serving.sending import Outbox
from afterword.streams.errors import AfterwordError
from afterword.streams.text.tokens import count_tokens

SECONDS = 10.0
"""Time for all of it; a server without what did not answer by then is ready as well, for what does not need it."""
CONNECTIONS = 4
"""Reads at a time, each on a connection of its own."""
NOBODY = "afterword/warm-up"
"""Stands for a conversation and a user that are not there."""

log = structlog.get_logger(__name__)


async def warm_up(memory: Memory, outbox: Outbox) -> None:
    """Do once what requests do: read a context, search, connect to Kafka. What is away is logged, and left to them."""
    steps = {
        "tokens": asyncio.to_thread(count_tokens, NOBODY),
        "context": asyncio.gather(*[memory.context(NOBODY) for _ in range(CONNECTIONS)]),
        "recall": memory.recall(NOBODY, user_id=NOBODY, tenant_id=None),
        "messages": outbox.open(),
    }
    await asyncio.gather(*[_warm(name, step) for name, step in steps.items()])


async def _warm(name: str, step: Awaitable[object]) -> None:
    try:
        async with asyncio.timeout(SECONDS):
            await step
    except (AfterwordError, KafkaError, TimeoutError) as error:
        log.warning("warm_up_failed", stage="serve", step=name, error_type=type(error).__name__)
