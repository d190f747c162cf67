"""Everything on one machine: embedded servers, topics, and a worker of each role."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from afterword.crew import Crew, Ended
from afterword.embedded import EmbeddedStack, Progress
from afterword.streams.errors import AfterwordError
from afterword.streams.settings import CONFIG_FILE_VARIABLE, Settings, load_settings, without_credentials
from afterword.topics import ensure_topics

CONFIG_FILE = "afterword.toml"


class TopicsNotFine(AfterwordError):
    """topic {name}: {detail}"""


@asynccontextmanager
async def deployment(directory: Path, progress: Progress, ended: Ended) -> AsyncIterator[Settings]:
    """Runs all of it below `directory`; the settings point at it.

    Raises: what the embedded stack raises, ConfigurationError, TopicsNotFine.
    """
    async with EmbeddedStack(directory, progress=progress) as stack:
        environment = stack.environment()
        # the workers inherit it, and so does whatever this process starts or loads
        os.environ.update(environment)
        write_config(directory / CONFIG_FILE, environment)
        settings = load_settings()
        for report in await ensure_topics(settings):
            if not report.fine:
                raise TopicsNotFine(name=report.name, detail=report.detail or report.status)
        crew = asyncio.create_task(Crew(directory, environment, ended).run())
        try:
            yield settings
        finally:
            crew.cancel()
            with suppress(asyncio.CancelledError):
                await crew


def write_config(file: Path, environment: Mapping[str, str]) -> None:
    """The same as TOML, for other terminals: `export AFTERWORD_CONFIG=…`."""
    lines: dict[str, list[str]] = {"": []}
    for name, value in environment.items():
        *section, key = name.removeprefix("AFTERWORD_").lower().split("__")
        lines.setdefault(section[0] if section else "", []).append(f"{key} = {json.dumps(value)}")
    top = lines.pop("")
    text = "\n".join(top + [f"\n[{section}]\n" + "\n".join(keys) for section, keys in lines.items()])
    file.write_text(text + "\n")


async def dev(directory: Path, progress: Progress, say: Callable[[str], None]) -> None:
    """In the foreground until SIGINT or SIGTERM. Raises: as `deployment`."""
    stop = asyncio.Event()

    def ended(role: str, code: int, log: Path) -> None:
        say(f"worker {role} ended with code {code} and is started again; see {log}")

    async with deployment(directory, progress, ended) as settings:
        say(f"Kafka   {settings.kafka.bootstrap_servers}")
        say(f"MongoDB {without_credentials(settings.mongo.uri.get_secret_value())}")
        say(f"logs    {directory / 'logs'}")
        say(f"In another terminal: export {CONFIG_FILE_VARIABLE}={(directory / CONFIG_FILE).absolute()}")
        say("then: afterword produce FILE, afterword watch, afterword context CONVERSATION, afterword audit")
        # Only now: before, Ctrl-C is to end the starting
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await stop.wait()
        say("stopping")
