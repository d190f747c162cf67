"""What one client can do to another: a client of one tenant does its worst, and another tenant's context is timed.

`make abuse` starts a deployment on 127.0.0.1, lets each client of CLIENTS work for a while in a process of its own, and
prints a table. It ends by itself, and fails if an aim is missed. The clients send nothing that would harm other
software: large or many requests that are valid HTTP and JSON.
"""

import argparse
import asyncio
import logging
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import orjson

from afterword.cli import main as run_command
from afterword.embedded import Process
from afterword.embedded.claims import free_ports
from afterword.schemas.base import episode_id
from afterword.serving.requests import new_key
from afterword.streams.kafka.clients import running_producer
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.settings import Settings
from afterword.streams.stores.messages import ArchivedMessage
from afterword.streams.stores.opening import open_stores
from tests.conftest import stack_settings
from tests.e2e.deployment import deployed, environment_of
from tests.samples import a_conversation, a_message, a_stored_episode, a_summary
from tests.stack import running_stack
from tests.waiting import until

MOST_RATIO, MOST_MS, MOST_STEP_MS = 3.0, 1000.0, 200.0
"""Aims: the victim's p99 divided by its p99 alone, its longest wait, and the CPU time of one step of the loop."""
PAUSE_SECONDS, SHOWN_STEP_SECONDS = 0.02, 0.02
EPISODES, EVENTS, CONVERSATIONS = 1000, 20_000, 2000
MINE = {"tenant_id": "mallory", "user_id": "mallory"}
VICTIM = {"tenant_id": "victim", "user_id": "ann"}
JSON = {"Content-Type": "application/json"}

Client = Callable[[httpx.AsyncClient, int], Awaitable[Any]]
"""Does a piece of work; the number is different each time."""


def message(n: int, size: int = 100, **fields: Any) -> dict[str, Any]:
    fields = {"conversation_id": f"mallory-{n % CONVERSATIONS}", **fields}
    return {"id": f"m{n}", "user_id": "mallory", "role": "user", "content": "word " * (size // 5), **fields}


async def nested_bodies(client: httpx.AsyncClient, _: int) -> None:
    nest = b'{"a":' * 12 + b"1" + b"}" * 12
    await client.post("/v1/messages", content=b'{"messages":[' + b",".join([nest] * 80_000) + b"]}", headers=JSON)


async def many_values(client: httpx.AsyncClient, n: int) -> None:
    """Send the most values that are let through."""
    metadata = {"a": [[[[]] * 1000] * 12]}
    batch = [message(7 * n + at, metadata=metadata) for at in range(7)]
    await client.post("/v1/messages", json={"messages": batch})


async def lists(client: httpx.AsyncClient, n: int) -> None:
    await client.get("/conversations/recent", params={"count": 1 + n % 96})


async def catch_ups(client: httpx.AsyncClient, _: int) -> None:
    async with client.stream("GET", "/v1/events", headers={"Last-Event-ID": "0,0,0,0;0,0,0,0;0,0,0,0"}) as answer:
        async for line in answer.aiter_lines():
            if line == ": so far":
                return


async def subscribers(client: httpx.AsyncClient, _: int) -> None:
    with suppress(httpx.HTTPError):
        async with client.stream("GET", "/v1/events") as answer:
            await answer.aread()


async def export(client: httpx.AsyncClient, n: int) -> None:
    path, params = [
        ("/v1/conversations/mallory-0/episodes", {"limit": 1000}),
        ("/v1/conversations/mallory-0/context", {"max_tokens": 1_000_000, "keep_recent": 500, "form": "text"}),
        ("/v1/conversations/mallory-0/messages", {"limit": 200}),
    ][n % 3]
    await client.get(path, params=params)


async def imports(client: httpx.AsyncClient, n: int) -> None:
    batch = [message(1000 * n + at, 5000) for at in range(1000)]
    await client.post("/v1/messages", json={"messages": batch})


CLIENTS: dict[str, tuple[Client, int]] = {
    "nested bodies of 6 MB": (nested_bodies, 8),
    "bodies of 100,000 values": (many_values, 8),
    "lists of all sizes": (lists, 96),
    "catch-ups from the beginning": (catch_ups, 4),
    "1,000 subscribers": (subscribers, 1000),
    "export of large pages": (export, 16),
    "import of large batches": (imports, 8),
}
"""Clients, each with the number of its connections."""


class Waits(NamedTuple):
    """How long the victim waited, in milliseconds."""

    p50: float
    p99: float
    longest: float


class Row(NamedTuple):
    name: str
    requests: int
    waits: Waits
    step_ms: float


async def attack(name: str, port: int, key: str, seconds: float) -> int:
    """Work as a client for a while, and return the number of requests that were answered."""
    work, connections = CLIENTS[name]
    limits = httpx.Limits(max_connections=None)
    address, done = f"http://127.0.0.1:{port}", 0
    numbers = count(time.time_ns() // 1_000_000)
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=120, limits=limits, trust_env=False) as one:
        await one.post("/sign-in", data={"key": key}, headers={"Origin": address})

        async def again() -> None:
            nonlocal done
            while True:
                with suppress(httpx.TransportError):
                    await work(one, next(numbers))
                    done += 1
                await asyncio.sleep(0.01)

        tell("at work")
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                for _ in range(connections):
                    group.create_task(again())
    return done


async def victim(port: int, key: str, seconds: float) -> Waits:
    waits: list[float] = []
    until_time = time.monotonic() + seconds
    headers = {"Authorization": f"Bearer {key}"}
    # from an address of its own, because new connections of the other one may be refused
    own = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
    address = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=120, transport=own) as client:
        while time.monotonic() < until_time:
            began = time.monotonic()
            answer = await client.get("/v1/conversations/ann-1/context")
            assert answer.status_code == 200, answer.text
            waits.append(1000 * (time.monotonic() - began))
            await asyncio.sleep(PAUSE_SECONDS)
    return Waits(statistics.median(waits), statistics.quantiles(waits, n=100)[98], max(waits))


async def fill(settings: Settings) -> tuple[str, str]:
    """Store what the clients read, and return the keys of client and victim."""
    mallory, of_mallory = new_key(("read", "write", "erase"), "mallory", None)
    ann, of_ann = new_key(("read",), "victim", "ann")
    async with open_stores(settings) as stores:
        await stores.prepare_database()
        for record in (of_mallory, of_ann):
            await stores.keys.put(record)
        for name, whose, number, size in (("ann-1", VICTIM, 20, 200), ("mallory-0", MINE, 2000, 2000)):
            said = [a_message(f"m{n}", name, content="word " * (size // 5), **whose) for n in range(number)]
            await stores.messages.put_many([ArchivedMessage(one, 0, n) for n, one in enumerate(said)])
        fields = {"conversation_id": "mallory-0", "long_summary": "All is well. " * 100, **MINE}
        every = (
            a_stored_episode(ordinal, episode_id=episode_id("mallory-0", ordinal), **fields)
            for ordinal in range(1, EPISODES + 1)
        )
        await asyncio.gather(*(stores.episodes.put(one, None) for one in every))
        for name, whose, number in (("mallory-0", MINE, EPISODES), ("ann-1", VICTIM, 1)):
            known = a_conversation(name, episode_count=number, last_ordinal=number, **whose)
            await stores.episodes.put_conversation(known, None)
    kafka, headers = settings.kafka, [("ce_type", b"summary.created")]
    async with running_producer(kafka) as producer:
        sent = []
        for n in range(1, EVENTS + 1):
            name = f"c{n % 50}"
            event = a_summary(n, name, **MINE).to_json()
            sent.append(await producer.send(kafka.summaries_topic, event, key=name.encode(), headers=headers))
        for n in range(CONVERSATIONS):
            value = orjson.dumps(message(n, tenant_id="mallory"))
            sent.append(await producer.send(kafka.messages_topic, value, key=b"mallory-%d" % n))
        await asyncio.gather(*sent)
    return mallory, ann


def tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def serve() -> None:
    """Run the server, and print each step of its event loop that takes CPU time."""
    run_step = asyncio.Handle._run

    def run_timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run_step(handle)
        if (took := time.thread_time() - began) > SHOWN_STEP_SECONDS:
            tell(f"step {time.time():.3f} {1000 * took:.0f} {handle!r:.300}")

    asyncio.Handle._run = run_timed  # type: ignore[method-assign]
    sys.argv = ["afterword", "serve"]
    run_command()


@asynccontextmanager
async def server(settings: Settings, directory: Path) -> AsyncIterator[tuple[int, Path]]:
    """Run a server with keys; yields its port and its log."""
    port, log = free_ports(1)[0], directory / "serve.log"
    ours = {"AFTERWORD_SERVE__PORT": str(port), "AFTERWORD_SERVE__AUTH": "keys", "AFTERWORD_CONFIG": ""}
    command = [sys.executable, "-m", "tests.abuse", "--serve"]
    process = Process("serve", command, log, environment={**environment_of(settings), **ours})
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:

            async def is_ready() -> bool:
                assert process.returncode is None, log.read_text()
                with suppress(httpx.TransportError):
                    return (await client.get("/readyz")).status_code == 200
                return False

            await until(is_ready)
        yield port, log
    finally:
        await asyncio.to_thread(process.stop, 30)


def longest_step(log: Path, since: float) -> tuple[float, str]:
    """Return the CPU time of the longest step of the loop since then, in milliseconds, and what ran in it."""
    steps = [line.split(" ", 3) for line in log.read_text().splitlines() if line.startswith("step ")]
    return max(((float(ms), what) for _, at, ms, what in steps if float(at) >= since), default=(0.0, ""))


async def measured(name: str, port: int, log: Path, keys: tuple[str, str], seconds: float) -> Row:
    """Time the victim while a client of this name works; nobody works if it is empty."""
    began = time.time()
    attacker = None
    if name:
        given = ["--attack", name, "--port", str(port), "--seconds", str(seconds + 2)]
        attacker = await asyncio.create_subprocess_exec(
            *("nice", "-n", "5", sys.executable, "-m", "tests.abuse", *given),
            stdin=-1,
            stdout=-1,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert attacker.stdin
        assert attacker.stdout
        attacker.stdin.write(keys[0].encode() + b"\n")
        await attacker.stdout.readline()  # it is at work
        await asyncio.sleep(2)
    waits = await victim(port, keys[1], seconds)
    requests = int((await attacker.communicate())[0] or 0) if attacker else 0
    step_ms, what = longest_step(log, began)
    if step_ms > MOST_STEP_MS:
        tell(f"{name or 'nobody'}: {step_ms:.0f} ms in {what}")
    return Row(name or "nobody", requests, waits, step_ms)


def table(rows: Sequence[Row]) -> str:
    alone = rows[0].waits.p99
    lines = [
        "| client | requests | victim's context: p50 | p99 | longest | p99 ÷ alone | longest step of the loop |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        cells = (row.name, f"{row.requests:,}", *(f"{wait:.0f} ms" for wait in row.waits))
        lines.append(f"| {' | '.join(cells)} | {row.waits.p99 / alone:.1f} | {row.step_ms:.0f} ms |")
    return "\n".join(lines)


async def run(seconds: float, only: str, directory: Path) -> bool:
    names = [name for name in CLIENTS if only in name]
    async with running_stack(directory) as stack:
        settings = stack_settings(stack, "", "abuse", directory, kafka={"partitions": 4})
        async with deployed(settings, directory) as deployment:
            keys = await fill(settings)
            deployment.start("archiver")
            kafka = settings.kafka
            async with open_log(kafka) as reading:
                ends = await reading.ends(kafka.messages_topic)

                async def is_archived() -> bool:
                    return not await reading.left(kafka.group_of("archiver"), kafka.messages_topic, ends)

                await until(is_archived)
            async with server(settings, directory) as (port, log):
                rows = [await measured(name, port, log, keys, seconds) for name in ("", *names)]
    tell(table(rows))
    most = min(MOST_MS, MOST_RATIO * rows[0].waits.p99)
    return all(row.waits.p99 <= most and row.waits.longest <= MOST_MS and row.step_ms <= MOST_STEP_MS for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.abuse", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="for each client")
    parser.add_argument("--only", default="", help="clients with this in their name")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    if given.serve:
        serve()
    elif given.attack:
        tell(str(asyncio.run(attack(given.attack, given.port, sys.stdin.readline().strip(), given.seconds))))
    else:
        directory = Path(tempfile.mkdtemp(prefix="abuse-"))
        if not asyncio.run(run(given.seconds, given.only, directory)):
            sys.exit(f"an aim was missed; the logs are in {directory}")
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
