"""`afterword serve` beside running workers: reads at 50 requests a second, writes, and clients that only listen.

Requests begin at fixed times, whether or not earlier ones are answered; the clock starts at those times. The rival
reads the same documents by hand, with FastAPI and motor, in the same run and from the same database.
"""

import asyncio
import math
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from afterword.dev import SERVER, start_worker
from afterword.embedded import EmbeddedStack, Process
from afterword.embedded.claims import HOST, free_ports
from afterword.streams.settings import load_settings
from afterword.topics import ensure_topics
from benchmarks import programs
from benchmarks.llm import StandIn
from benchmarks.processes import status_bytes, worker
from benchmarks.quantiles import quantile
from benchmarks.suite import Finding, Form, Line

PARTITIONS = 4
CONVERSATIONS, MESSAGES = 40, 26
"""Two episodes each, and six messages that no episode has yet."""
FILLED = {"episode_count": 2, "pending_count": 6}
REQUESTS_A_SECOND = 50
READ_SECONDS, SHORT_READ_SECONDS = 30.0, 4.0
WRITE_SECONDS, SHORT_WRITE_SECONDS = 15.0, 3.0
WRITERS, BATCH = 4, 100
CLIENTS = 1000
READY_SECONDS, ANSWER_SECONDS, STOP_SECONDS = 180.0, 30.0, 20.0
UNLIMITED = httpx.Limits(max_connections=None)
"""The client's own queue would be in the figures."""
TIMER_SECONDS = 0.0015
"""Time by which a timer may be late, as epoll counts in milliseconds: else half of that would be in every figure."""
P50_SECONDS, P99_SECONDS, MESSAGES_A_SECOND, CLIENT_BYTES = 0.010, 0.050, 5000, 100_000_000
MEM0 = Path("build/mem0-venv/bin/python")
WITHOUT_MEM0 = (
    f"mem0 is left out: {MEM0} is missing; python3 -m venv build/mem0-venv && "
    "build/mem0-venv/bin/pip install mem0ai==2.2.1 fastapi uvicorn"
)
SHARED = "Servers, workers, clients and rival share the machine's cores."

Ask = Callable[[int], Awaitable[httpx.Response]]


class Service(NamedTuple):
    """A process that serves HTTP, and a client of it."""

    process: Process
    port: int
    client: httpx.AsyncClient


async def run(form: Form, directory: Path) -> Sequence[Finding]:
    seconds = SHORT_READ_SECONDS if form.short else READ_SECONDS
    writing = SHORT_WRITE_SECONDS if form.short else WRITE_SECONDS
    async with EmbeddedStack(directory / "stack") as stack, StandIn() as llm, AsyncExitStack() as running:
        settings = load_settings(kafka={"bootstrap_servers": stack.bootstrap_servers, "partitions": PARTITIONS})
        await ensure_topics(settings)
        environment = {**stack.environment(), **llm.environment(slots=8)}
        for role in ("segmenter", "summarizer", "archiver"):
            ours = {**environment, "AFTERWORD_STATE_DIR": str(directory / role)}
            started = await running.enter_async_context(worker(role, directory, ours))
            await started.until_ready()
        server = await running.enter_async_context(served(directory, environment))
        by_hand = await running.enter_async_context(served_by_hand(directory, environment))
        await fill(server.client)
        context = await timed(seconds, lambda n: server.client.get(f"/v1/conversations/c{n % CONVERSATIONS}/context"))
        rival = await timed(seconds, lambda n: by_hand.client.get(f"/context/c{n % CONVERSATIONS}"))
        recalled = await timed(seconds, lambda n: server.client.post("/v1/recall", json=query(n)))
        of_mem0 = await recalled_by_mem0(directory, llm, seconds) if has_mem0() else None
        idle = await bytes_of_clients(server)
        rate = await written(server.client, writing)
    return findings(context, rival, (recalled, of_mem0), rate, idle)


@asynccontextmanager
async def served(directory: Path, environment: dict[str, str]) -> AsyncIterator[Service]:
    (port,) = free_ports(1)
    ours = {"AFTERWORD_SERVE__PORT": str(port), "AFTERWORD_SERVE__REQUESTS_PER_MINUTE": "0"}
    process = start_worker(SERVER, directory, {**environment, **ours})
    async with answering(process, port, "/readyz") as service:
        yield service


@asynccontextmanager
async def served_by_hand(directory: Path, environment: dict[str, str]) -> AsyncIterator[Service]:
    (port,) = free_ports(1)
    program = "benchmarks.programs.serve_by_hand:app"
    command = [sys.executable, "-m", "uvicorn", program, "--port", str(port), "--no-access-log", "--http", "h11"]
    process = Process("by-hand", command, directory / "logs" / "by-hand.log", environment=environment)
    async with answering(process, port, "/context/none") as service:
        yield service


def has_mem0() -> bool:
    return MEM0.exists()


async def recalled_by_mem0(directory: Path, llm: StandIn, seconds: float) -> list[float]:
    """Seconds of each search in mem0, which holds as many texts of the user as there are episodes."""
    (port,) = free_ports(1)
    store = directory / "mem0"
    store.mkdir()
    url = llm.environment(slots=1)["AFTERWORD_LLM__BASE_URL"]
    command = [str(MEM0), str(Path(programs.__path__[0]) / "serve_mem0.py"), str(port), str(store), url]
    environment = {"MEM0_TELEMETRY": "False", "MEM0_DIR": str(store), "HOME": str(store)}
    process = Process("mem0", command, directory / "logs" / "mem0.log", environment=environment)
    async with answering(process, port, "/ready") as mem0:
        for n in range(2 * CONVERSATIONS):
            text = {"text": message(f"c{n}", n)["content"], "user_id": "u1"}
            (await mem0.client.post("/memories", json=text)).raise_for_status()
        return await timed(seconds, lambda n: mem0.client.post("/recall", json=query(n)))


@asynccontextmanager
async def answering(process: Process, port: int, path: str) -> AsyncIterator[Service]:
    """A client of a process, once it answers. Raises: TimeoutError."""
    try:
        async with httpx.AsyncClient(
            base_url=f"http://{HOST}:{port}", timeout=ANSWER_SECONDS, limits=UNLIMITED, trust_env=False
        ) as client:
            await until(client, path, lambda answer: answer.is_success)
            yield Service(process, port, client)
    finally:
        await asyncio.to_thread(process.stop, STOP_SECONDS)


async def until(client: httpx.AsyncClient, path: str, wanted: Callable[[httpx.Response], bool]) -> None:
    """Ask until the answer is as wanted. Raises: TimeoutError."""
    async with asyncio.timeout(READY_SECONDS):
        while True:
            try:
                if wanted(await client.get(path)):
                    return
            except httpx.TransportError:
                pass  # it has not started yet
            await asyncio.sleep(0.1)


def message(conversation: str, number: int) -> dict[str, Any]:
    return {
        "id": f"m{number}",
        "conversation_id": conversation,
        "user_id": "u1",
        "role": "assistant" if number % 2 else "user",
        "content": f"The refund of order {number} was sent on Monday, and the customer asked for a receipt of it.",
    }


async def fill(client: httpx.AsyncClient) -> None:
    """Write the conversations, and wait for their summaries and messages."""
    for n in range(CONVERSATIONS):
        sent = {"messages": [message(f"c{n}", number) for number in range(MESSAGES)]}
        (await client.post("/v1/messages", json=sent)).raise_for_status()
    for n in range(CONVERSATIONS):
        path = f"/v1/conversations/c{n}"
        await until(client, path, lambda answer: answer.is_success and FILLED.items() <= answer.json().items())


def query(number: int) -> dict[str, Any]:
    return {"query": f"refund of order {number % MESSAGES}", "user_id": "u1", "k": 5}


async def timed(seconds: float, ask: Ask) -> list[float]:
    """Seconds of each request, from the moment at which it was due; infinite for one that was not answered.

    Raises: HTTPStatusError, if the first one is.
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
    """Messages acknowledged a second, in batches."""
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


async def bytes_of_clients(server: Service) -> int:
    """Memory that clients of the event stream take which only listen."""
    before = resident_bytes(server)
    listeners = []
    try:
        for _ in range(CLIENTS):
            reader, writer = await asyncio.open_connection(HOST, server.port)
            writer.write(f"GET /v1/events HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            listeners.append((reader, writer))
        await until(server.client, "/metrics", lambda answer: f"afterword_event_clients {CLIENTS}.0" in answer.text)
        return resident_bytes(server) - before
    finally:
        for _, writer in listeners:
            writer.close()


def resident_bytes(server: Service) -> int:
    return status_bytes(Path(f"/proc/{server.process.pid}/status").read_text(), "VmRSS")


def findings(
    context: Sequence[float],
    rival: Sequence[float],
    recalls: tuple[Sequence[float], Sequence[float] | None],
    rate: float,
    idle: int,
) -> list[Finding]:
    recalled, of_mem0 = recalls
    p50, theirs = quantile(context, 0.5), quantile(rival, 0.5)
    lines = [
        line("GET context", context),
        Line("– by hand, FastAPI + motor", figures(rival), theirs / p50),
        line("POST recall", recalled),
    ]
    if of_mem0:
        ratio = quantile(of_mem0, 0.5) / quantile(recalled, 0.5)
        lines.append(Line("– mem0, local store, embedder that answers at once", figures(of_mem0), ratio))
    writes = Line(
        f"POST messages, {BATCH} to a request, {WRITERS} at a time",
        {"measured": f"{rate:,.0f} messages/s"},
        aim=f"≥ {MESSAGES_A_SECOND:,}",
        met=rate >= MESSAGES_A_SECOND,
    )
    clients = Line(
        f"{CLIENTS:,} idle clients of the event stream",
        {"measured": f"{idle / 1e6:.0f} MB"},
        aim=f"≤ {CLIENT_BYTES / 1e6:.0f} MB",
        met=idle <= CLIENT_BYTES,
    )
    title = f"serve: reads at {REQUESTS_A_SECOND} requests/s, beside running workers"
    notes = [SHARED] if of_mem0 else [SHARED, WITHOUT_MEM0]
    return [Finding(title, lines, notes), Finding("serve: writes and listeners", [writes, clients], [SHARED])]


def line(program: str, seconds: Sequence[float]) -> Line:
    met = quantile(seconds, 0.5) <= P50_SECONDS and quantile(seconds, 0.99) <= P99_SECONDS
    aim = f"p50 ≤ {P50_SECONDS * 1000:.0f} ms, p99 ≤ {P99_SECONDS * 1000:.0f} ms"
    return Line(program, figures(seconds), None, aim, met)


def figures(seconds: Sequence[float]) -> dict[str, str]:
    found = {name: quantile(seconds, share) for name, share in (("p50", 0.5), ("p99", 0.99))}
    return {name: f"{one * 1000:.1f} ms" for name, one in found.items()} | {
        "requests": f"{len(seconds):,}",
        "not answered": f"{seconds.count(math.inf):,}",
    }
