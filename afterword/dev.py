"""A whole deployment on one machine: embedded servers, topics, and a supervised worker of each role."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from afterword.embedded import DownloadProgress, EmbeddedStack, Process
from afterword.streams.errors import AfterwordError
from afterword.streams.settings import CONFIG_FILE_VARIABLE, Settings, load_settings, without_credentials
from afterword.topics import ensure_topics

CONFIG_FILE = "afterword.toml"
ROLES = ("segmenter", "summarizer", "archiver")
LOOK_SECONDS = 0.5
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""A worker that ran this long is restarted without backoff."""
STOP_SECONDS = 40.0

Ended = Callable[[str, int, Path], None]
"""Called with role, exit code and log of a worker that ended by itself."""


def start_worker(
    role: str, directory: Path, environment: Mapping[str, str] | None = None, *, name: str | None = None
) -> Process:
    """Start `afterword worker ROLE` as a child that logs to `directory`/logs and does not outlive this process."""
    command = [sys.executable, "-m", "afterword", "worker", role]
    return Process(name or role, command, directory / "logs" / f"{name or role}.log", environment=environment)


class Supervisor:
    """One worker of each role, restarted with backoff when it ends by itself."""

    def __init__(self, directory: Path, environment: Mapping[str, str], ended: Ended) -> None:
        self._directory = directory
        self._environment = environment
        self._ended = ended
        self._workers: dict[str, Process] = {}

    async def run(self) -> None:
        """Run until cancelled, then wait until every worker has drained and ended."""
        try:
            async with asyncio.TaskGroup() as keepers:
                for role in ROLES:
                    keepers.create_task(self._keep(role))
        finally:
            await asyncio.shield(self._stop())

    async def _keep(self, role: str) -> None:
        wait, loop = FIRST_WAIT_SECONDS, asyncio.get_running_loop()
        while True:
            began = loop.time()
            worker = self._workers[role] = start_worker(role, self._directory, self._environment)
            while worker.running:  # noqa: ASYNC110 – a process has no event to wait for
                await asyncio.sleep(LOOK_SECONDS)
            self._ended(role, worker.returncode or 0, worker.log)
            worker.kill()  # reaps it
            wait = FIRST_WAIT_SECONDS if loop.time() - began > STEADY_SECONDS else min(2 * wait, LONGEST_WAIT_SECONDS)
            await asyncio.sleep(wait)

    async def _stop(self) -> None:
        await asyncio.gather(*[asyncio.to_thread(worker.stop, STOP_SECONDS) for worker in self._workers.values()])


class TopicsNotFine(AfterwordError):
    """topic {name}: {detail}"""


@asynccontextmanager
async def deployment(directory: Path, progress: DownloadProgress, ended: Ended) -> AsyncIterator[Settings]:
    """Run a deployment below `directory`; yields settings that point at it.

    Raises: EmbeddedError, ConfigurationError, TopicsNotFine.
    """
    async with EmbeddedStack(directory, progress=progress) as stack:
        environment = stack.environment()
        # inherited by the workers, and by everything that this process starts or loads
        os.environ.update(environment)
        write_config(directory / CONFIG_FILE, environment)
        settings = load_settings()
        for report in await ensure_topics(settings):
            if not report.fine:
                raise TopicsNotFine(name=report.name, detail=report.detail or report.status)
        workers = asyncio.create_task(Supervisor(directory, environment, ended).run())
        try:
            yield settings
        finally:
            workers.cancel()
            with suppress(asyncio.CancelledError):
                await workers


def write_config(file: Path, environment: Mapping[str, str]) -> None:
    """Write the variables as TOML, for other terminals: `export AFTERWORD_CONFIG=…`."""
    lines: dict[str, list[str]] = {"": []}
    for name, value in environment.items():
        *section, key = name.removeprefix("AFTERWORD_").lower().split("__")
        lines.setdefault(section[0] if section else "", []).append(f"{key} = {json.dumps(value)}")
    top = lines.pop("")
    text = "\n".join(top + [f"\n[{section}]\n" + "\n".join(keys) for section, keys in lines.items()])
    file.write_text(text + "\n")


async def dev(directory: Path, progress: DownloadProgress, say: Callable[[str], None]) -> None:
    """Run in the foreground until SIGINT or SIGTERM. Raises: as `deployment`."""
    stop = asyncio.Event()

    def ended(role: str, code: int, log: Path) -> None:
        say(f"worker {role} exited with code {code} and is restarted; see {log}")

    async with deployment(directory, progress, ended) as settings:
        say(f"Kafka   {settings.kafka.bootstrap_servers}")
        say(f"MongoDB {without_credentials(settings.mongo.uri.get_secret_value())}")
        say(f"logs    {directory / 'logs'}")
        say("In another terminal: afterword produce FILE, afterword watch, afterword context CONVERSATION")
        say(f"in another directory, first: export {CONFIG_FILE_VARIABLE}={(directory / CONFIG_FILE).absolute()}")
        # only now: until here, Ctrl-C aborts the start
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await stop.wait()
        say("stopping")
