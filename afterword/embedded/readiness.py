"""Waiting until a server answers, no longer than a deadline, and not at all once it is dead."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from afterword.embedded.errors import StartTimeout
from afterword.embedded.process import Process

READY_SECONDS = 120.0
"""Generous: a cold start takes 3 s on an idle machine, and a test machine may be anything but idle."""
POLL_SECONDS = 0.05
REQUEST_MILLISECONDS = 5_000

Probe = Callable[[], Awaitable[None]]


class NotReady(Exception):
    """Not yet."""


async def until_ready(process: Process, probe: Probe, seconds: float = READY_SECONDS) -> None:
    """Raises: ProcessExited, StartTimeout."""
    deadline = time.monotonic() + seconds
    while (problem := await _problem(probe)) is not None:
        process.check()
        if time.monotonic() > deadline:
            raise StartTimeout(
                name=process.name, seconds=seconds, problem=problem, log=process.log, tail=process.tail()
            )
        await asyncio.sleep(POLL_SECONDS)


async def accepts(host: str, port: int) -> None:
    """Raises: OSError while nobody listens."""
    _, writer = await asyncio.open_connection(host, port)
    writer.close()
    await writer.wait_closed()


async def has_brokers(bootstrap_server: str, count: int) -> None:
    """Raises: NotReady, KafkaError or OSError until this broker knows `count` live ones."""
    host, port = bootstrap_server.split(":")
    await accepts(host, int(port))  # aiokafka logs an error for every refused connection
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_server, request_timeout_ms=REQUEST_MILLISECONDS)
    try:
        await admin.start()
        found = len((await admin.describe_cluster())["brokers"])
    finally:
        await admin.close()
    if found != count:
        raise NotReady(f"{found} of {count} brokers are there")


async def _problem(probe: Probe) -> str | None:
    try:
        await probe()
    except (OSError, KafkaError, NotReady) as error:
        return str(error) or type(error).__name__
    return None
