"""Measures `afterword serve` beside running workers: 50 reads a second, writes, and clients that only listen.

Requests begin at fixed times, whether or not earlier ones are answered, and the clock starts at those times. The
program compared with it reads the same rows with FastAPI and apsw, in the same run and from the same file.
"""

import asyncio
import math
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from afterword.embedded import EmbeddedStack, Process
from afterword.embedded.claims import HOST, free_ports
from afterword.local.dev import CONFIG_FILE, SERVER, write_config
from afterword.operating.topics import ensure_topics
from afterword.streams.roles import ALWAYS_RUN
from afterword.streams.settings import CONFIG_FILE_VARIABLE, PREFIX
from benchmarks.measuring import (
    Form,
    Running,
    megabytes,
    memory_bytes,
    percentiles,
    quantile,
    ratio,
    settings_of,
    show,
    worker,
)

CONVERSATIONS, MESSAGES = 40, 26
"""Each conversation has two episodes, and six messages that are in no episode yet."""
FILLED = {"episode_count": 2, "pending_count": 6}
REQUESTS_A_SECOND = 50
READ_SECONDS, WRITE_SECONDS, SHORT_SECONDS = 15.0, 10.0, 3.0
WRITERS, BATCH = 4, 100
CLIENTS, AT_ONCE = 500, 100
"""As many streams as a key may have, and fewer than an address may have connections without a key."""
READY_SECONDS, ANSWER_SECONDS, STOP_SECONDS = 180.0, 30.0, 20.0
TIMER_SECONDS = 0.0015
"""Timers may be this late, because epoll counts milliseconds. Half of this would otherwise be in every figure."""


async def run(form: Form, directory: Path) -> None:
    reading, writing = (SHORT_SECONDS, SHORT_SECONDS) if form.short else (READ_SECONDS, WRITE_SECONDS)
    async with EmbeddedStack(directory / "stack") as stack, AsyncExitStack() as running:
        await ensure_topics(settings_of(stack))
        environment = {**stack.environment(), "AFTERWORD_SERVE__REQUESTS_PER_MINUTE": "0"}
        for role in ALWAYS_RUN:
            own = {**environment, "AFTERWORD_STATE_DIR": str(directory / role)}
            await running.enter_async_context(worker(role, directory, own))
        server = await running.enter_async_context(worker(SERVER, directory, environment))
        by_hand = await running.enter_async_context(served_by_hand(directory, environment))
        ours, theirs = [await running.enter_async_context(client_of(one)) for one in (server, by_hand)]
        await fill(ours)
        context = await timed(reading, lambda n: ours.get(f"/v1/conversations/c{n % CONVERSATIONS}/context"))
        rival = await timed(reading, lambda n: theirs.get(f"/context/c{n % CONVERSATIONS}"))
        recall = await timed(reading, lambda n: ours.post("/v1/recall", json=query(n)))
        file = directory / "stack" / CONFIG_FILE  # as `afterword dev` writes it
        write_config(file, {**stack.environment(), "AFTERWORD_SERVE__PORT": str(server.port)})
        asking = await cpu_of_recall({CONFIG_FILE_VARIABLE: str(file)})
        alone = await cpu_of_recall(stack.environment())
        listening = await bytes_of_clients(ours, server)
        rate = await written(ours, writing)
    rows = [
        {"": "GET context", **figures(context)},
        {
            "": "– by hand, FastAPI and apsw",
            **figures(rival),
            "its p50 ÷ ours": ratio(quantile(rival, 0.5) / quantile(context, 0.5)),
        },
        {"": "POST recall", **figures(recall)},
    ]
    show(f"serve: reads at {REQUESTS_A_SECOND} requests/s, beside running workers without an LLM", rows)
    writes = {"": f"POST messages, {BATCH} to a request, {WRITERS} at a time", "measured": f"{rate:,.0f} messages/s"}
    listeners = {"": f"{CLIENTS:,} idle clients of the event stream", "measured": megabytes(listening)}
    commands = [
        {"": f"afterword recall, CPU of the command {where}", "measured": f"{seconds:.2f} s"}
        for where, seconds in (("beside afterword dev", asking), ("alone", alone))
    ]
    show("serve: writes, listeners and the command line", [writes, listeners, *commands])


async def cpu_of_recall(
    environment: dict[str, str], python: str = sys.executable, directory: Path | None = None
) -> float:
    """Return the user and system time of `afterword recall`, the median of three."""
    left_out = ("PYTHONDONTWRITEBYTECODE",)  # without bytecode, compiling takes longer than everything else
    own = {name: value for name, value in os.environ.items() if not name.startswith((PREFIX, *left_out))} | environment
    command = [python, "-m", "afterword", "recall", "refund of order 1", "--user", "u1"]
    seconds = []
    for _ in range(3):
        before = os.times()
        await asyncio.to_thread(subprocess.run, command, env=own, cwd=directory, stdout=subprocess.DEVNULL, check=True)
        seconds.append(sum(os.times()[2:4]) - sum(before[2:4]))
    return median(seconds)


@asynccontextmanager
async def served_by_hand(directory: Path, environment: dict[str, str]) -> AsyncIterator[Running]:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "benchmarks.programs", "serve", str(port)]
    process = Process("by-hand", command, directory / "logs" / "by-hand.log", environment=environment)
    try:
        started = Running(process, port)
        await started.until_ready("/context/none")
        yield started
    finally:
        await asyncio.to_thread(process.stop, STOP_SECONDS)


@asynccontextmanager
async def client_of(server: Running) -> AsyncIterator[httpx.AsyncClient]:
    unlimited = httpx.Limits(max_connections=None)  # otherwise the client's own queue would be in the figures
    url = f"http://{HOST}:{server.port}"
    async with httpx.AsyncClient(base_url=url, timeout=ANSWER_SECONDS, limits=unlimited, trust_env=False) as client:
        yield client


async def until(client: httpx.AsyncClient, path: str, is_reached: Callable[[httpx.Response], bool]) -> None:
    """Wait until the answer satisfies `is_reached`. Raises: TimeoutError."""
    async with asyncio.timeout(READY_SECONDS):
        while not is_reached(await client.get(path)):  # noqa: ASYNC110 – the server has no event for it
            await asyncio.sleep(0.1)


def message(conversation: str, number: int) -> dict[str, Any]:
    return {
        "id": f"m{number}",
        "conversation_id": conversation,
        "user_id": "u1",
        "role": "assistant" if number % 2 else "user",
        "content": f"The refund of order {number} was sent on Monday, and the customer asked for a receipt of it.",
    }


def query(number: int) -> dict[str, Any]:
    return {"query": f"refund of order {number % MESSAGES}", "user_id": "u1", "k": 5}


async def fill(client: httpx.AsyncClient) -> None:
    """Write the conversations, and wait for their summaries and messages."""
    for n in range(CONVERSATIONS):
        sent = {"messages": [message(f"c{n}", number) for number in range(MESSAGES)]}
        (await client.post("/v1/messages", json=sent)).raise_for_status()
    for n in range(CONVERSATIONS):
        path = f"/v1/conversations/c{n}"
        await until(client, path, lambda answer: answer.is_success and FILLED.items() <= answer.json().items())


async def timed(seconds: float, ask: Callable[[int], Awaitable[httpx.Response]]) -> list[float]:
    """Return each request's seconds from the moment it was due; infinite if it was not answered.

    Raises: HTTPStatusError if the first one fails.
    """
    (await ask(0)).raise_for_status()
    began = time.monotonic()

    async def one(number: int) -> float:
        due = began + number / REQUESTS_A_SECOND
        await asyncio.sleep(max(0.0, due - TIMER_SECONDS - time.monotonic()))
        while time.monotonic() < due:  # noqa: ASYNC110 – a time sets no event
            await asyncio.sleep(0)
        try:
            is_served = (await ask(number)).is_success
        except httpx.TimeoutException:
            is_served = False
        return time.monotonic() - due if is_served else math.inf

    return await asyncio.gather(*[one(number) for number in range(int(seconds * REQUESTS_A_SECOND))])


async def written(client: httpx.AsyncClient, seconds: float) -> float:
    """Send batches, and return the messages/s that are acknowledged."""
    numbers, ends = count(), time.monotonic() + seconds

    async def write(name: str) -> int:
        sent = 0
        while time.monotonic() < ends:
            batch = [message(name, next(numbers)) for _ in range(BATCH)]
            (await client.post("/v1/messages", json={"messages": batch})).raise_for_status()
            sent += BATCH
        return sent

    began = time.monotonic()
    total = sum(await asyncio.gather(*[write(f"w{n}") for n in range(WRITERS)]))
    return total / (time.monotonic() - began)


def _counts(open_clients: int, metrics: httpx.Response) -> bool:
    return f"afterword_event_clients {open_clients}.0" in metrics.text


async def bytes_of_clients(client: httpx.AsyncClient, server: Running) -> int:
    before = memory_bytes(server.pid)
    writers = []
    try:
        for open_clients in range(AT_ONCE, CLIENTS + 1, AT_ONCE):
            for _ in range(AT_ONCE):
                _, writer = await asyncio.open_connection(HOST, server.port)
                writer.write(f"GET /v1/events HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
                writers.append(writer)
            await until(client, "/metrics", partial(_counts, open_clients))
        return memory_bytes(server.pid) - before
    finally:
        for writer in writers:
            writer.close()


def figures(seconds: Sequence[float]) -> dict[str, str]:
    counts = {"requests": f"{len(seconds):,}", "not answered": f"{seconds.count(math.inf):,}"}
    return percentiles(seconds) | counts
