"""A whole deployment on one machine: embedded Kafka, topics, the workers and the server, all supervised."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from afterword.embedded import EmbeddedStack, Process
from afterword.embedded.claims import HOST, remembered_ports
from afterword.embedded.process import accepts
from afterword.embedded.stack import Broker, is_full
from afterword.operating.topics import create_sources, ensure_topics
from afterword.streams.errors import AfterwordError
from afterword.streams.ingest.sources import load_sources
from afterword.streams.private import write_private
from afterword.streams.roles import ALL
from afterword.streams.settings import CONFIG_FILE_VARIABLE, Settings, load_settings
from afterword.terminal import Screen
from faust_eos.options import allocate_sparingly, return_freed_memory

CONFIG_FILE = "afterword.toml"
INGEST = "ingest"
"""The role that runs if there are sources, that is, topics of other applications."""
SERVER = "server"
LOOK_SECONDS = 0.5
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""A worker that ran at least this long is restarted without backoff."""
STOP_SECONDS = 40.0
DRAIN_VARIABLE = "AFTERWORD_DRAIN_SECONDS"
DRAIN_SECONDS = 3.0
"""Short, because somebody is waiting. The next worker does what this one does not finish."""
MILLION = 1_000_000
LOADING = """
import json, os, sys
import afterword.cli, afterword.serving.server
from afterword.streams.roles import ALWAYS_RUN
for role in ALWAYS_RUN:
    __import__(f"afterword.streams.{role}.agent")
os.environ.update(json.loads(sys.stdin.readline()))
afterword.cli.main(sys.argv[1:])
"""
"""What `afterword worker all --serve` imports, and then that command, with the environment that it is told."""

Ended = Callable[[str, str], None]
"""Called with the name of a process that exited by itself or failed to start, and with what happened."""


def start_worker(
    role: str, directory: Path, environment: Mapping[str, str] | None = None, *, name: str | None = None
) -> Process:
    """Start `afterword worker ROLE` as a child that logs to `directory`/logs and does not outlive this process.

    The role `server` runs `afterword serve`, and `all` serves too.
    """
    arguments = {SERVER: ["serve"], ALL: ["worker", ALL, "--serve"]}.get(role, ["worker", role])
    command = [sys.executable, "-m", "afterword", *arguments]
    return Process(name or role, command, directory / "logs" / f"{name or role}.log", environment=environment)


@asynccontextmanager
async def loading_worker(directory: Path) -> AsyncIterator[Process]:
    """Start the worker of all roles, which imports its modules while Kafka starts, and waits for its environment."""
    command = [sys.executable, "-c", LOADING, "worker", ALL, "--serve"]
    process = Process(ALL, command, directory / "logs" / f"{ALL}.log")
    try:
        yield process
    finally:
        process.kill()


async def supervise(
    directory: Path,
    environment: Mapping[str, str],
    ended: Ended,
    kafka: Broker,
    roles: Sequence[str],
    loading: Process,
) -> None:
    """Keep Kafka and a worker of each role running; restart any that exits. The first of all roles is `loading`.

    Once cancelled, it waits until every worker has drained and exited. It does not stop Kafka.
    """
    workers: dict[str, Process] = {}

    def worker(role: str) -> Process:
        if role == ALL and role not in workers:
            loading.tell(json.dumps(environment).encode())
            workers[role] = loading
        else:
            workers[role] = start_worker(role, directory, environment)
        return workers[role]

    def restarted_kafka() -> Process:
        kafka.start()
        return kafka.process

    try:
        async with asyncio.TaskGroup() as keepers:
            keepers.create_task(keep("kafka", restarted_kafka, ended))
            for role in roles:
                keepers.create_task(keep(role, partial(worker, role), ended))
    finally:
        await asyncio.shield(asyncio.gather(*[asyncio.to_thread(one.stop, STOP_SECONDS) for one in workers.values()]))


async def keep(name: str, start: Callable[[], Process], ended: Ended) -> NoReturn:
    """Keep a process running: restart it with backoff whenever it has exited or fails to start."""
    wait, loop = FIRST_WAIT_SECONDS, asyncio.get_running_loop()
    while True:
        began = loop.time()
        ended(name, await _end_of(start))
        wait = FIRST_WAIT_SECONDS if loop.time() - began > STEADY_SECONDS else min(2 * wait, LONGEST_WAIT_SECONDS)
        await asyncio.sleep(wait)


async def _end_of(start: Callable[[], Process]) -> str:
    """Run a process to its end; return what happened."""
    try:
        process = start()
    except OSError as error:  # for example a full disk, which may have space again later
        return f"cannot be started: {error}"
    while process.running:  # noqa: ASYNC110 – there is no event for the end of a process
        await asyncio.sleep(LOOK_SECONDS)
    process.kill()  # reaps the process
    directory, reason = process.log.parent, f"see {process.log}"
    if is_full(directory):  # the log cannot give the reason
        reason = f"the disk of {directory.parent.absolute()} is full"
    return f"exited with code {process.returncode}; {reason}"


class TopicsNotFine(AfterwordError):
    """topic {name}: {detail}"""


@asynccontextmanager
async def deployment(directory: Path, screen: Screen, ended: Ended, *, once: bool = False) -> AsyncIterator[Settings]:
    """Run a deployment in `directory`; yields settings that point to it.

    `once` skips preparations that only benefit later deployments on this machine. The screen describes each
    wait. Raises: ConfigurationError, TopicsNotFine, and what `EmbeddedStack.start` raises.
    """

    def downloading(name: str, done: int, total: int) -> None:
        if done < total:
            screen.doing(f"fetching {name}, {done / MILLION:.0f} of {total / MILLION:.0f} MB", live=True)

    allocate_sparingly()
    screen.doing("starting Kafka")
    async with (
        loading_worker(directory) as loading,
        EmbeddedStack(directory, progress=downloading, record=not once) as stack,
    ):
        # the same as last time, because people may have the server's address open
        [port] = remembered_ports(directory / "server-port.json", 1, [load_settings().serve.port])
        environment = {
            **stack.environment(),
            "AFTERWORD_SERVE__HOST": HOST,
            "AFTERWORD_SERVE__PORT": str(port),
            "AFTERWORD_SERVE__DOCS": "true",
        }
        # the workers, and everything else that this process starts, inherit these variables
        os.environ.update(environment)
        write_config(directory / CONFIG_FILE, environment)
        settings = load_settings()
        screen.doing("creating topics")
        for report in await ensure_topics(settings):
            if not report.fine:
                raise TopicsNotFine(name=report.name, detail=report.detail or report.status)
        sources = () if once else load_sources(settings)
        await create_sources(settings, sources)
        screen.doing("starting the workers")
        drain = os.environ.get(DRAIN_VARIABLE) or str(DRAIN_SECONDS)
        environment, roles = {**environment, DRAIN_VARIABLE: drain}, (ALL, INGEST) if sources else (ALL,)
        workers = asyncio.create_task(supervise(directory, environment, ended, stack.kafka, roles, loading))
        return_freed_memory()
        try:
            yield settings
        finally:
            workers.cancel()
            screen.doing("stopping")
            with suppress(asyncio.CancelledError):
                await workers


async def served_at(settings: Settings) -> str:
    """Wait until the server is listening, and return its address."""
    while True:
        with suppress(OSError):
            await accepts(settings.serve.host, settings.serve.port)
            return f"http://{settings.serve.host}:{settings.serve.port}"
        await asyncio.sleep(LOOK_SECONDS)


async def until_told_to_stop() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()


def write_config(file: Path, environment: Mapping[str, str]) -> None:
    """Write the variables as TOML, for other terminals: `export AFTERWORD_CONFIG=…`."""
    lines: dict[str, list[str]] = {"": []}
    for name, value in environment.items():
        *section, key = name.removeprefix("AFTERWORD_").lower().split("__")
        lines.setdefault(section[0] if section else "", []).append(f"{key} = {json.dumps(value)}")
    top = lines.pop("")
    text = "\n".join(top + [f"\n[{section}]\n" + "\n".join(keys) for section, keys in lines.items()])
    write_private(file, f"{text}\n".encode())


async def dev(directory: Path, screen: Screen) -> None:
    """Run in the foreground until SIGINT or SIGTERM. Raises: the errors of `deployment`."""

    def ended(name: str, what: str) -> None:
        screen.line(f"{name} {what}; restarting")

    async def show_page(settings: Settings) -> None:
        screen.line(f"page    {await served_at(settings)}/")

    async with deployment(directory, screen, ended) as settings:
        screen.doing("")
        screen.line(f"Kafka   {settings.kafka.bootstrap_servers}")
        screen.line(f"stores  {settings.sqlite.path}")
        screen.line(f"logs    {directory / 'logs'}")
        screen.line("In another terminal: afterword produce FILE, afterword watch, afterword context CONVERSATION")
        file = (directory / CONFIG_FILE).absolute()
        screen.line(f"In another directory, first: export {CONFIG_FILE_VARIABLE}={file}")
        page = asyncio.create_task(show_page(settings))
        await until_told_to_stop()  # until here, Ctrl-C aborts the start instead
        page.cancel()
