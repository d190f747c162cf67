"""`afterword worker`: run one role until SIGTERM."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import typer

from afterword.commands.common import report, start

if TYPE_CHECKING:
    from afterword.streams.settings import Settings

RunRole = Callable[["Settings"], Coroutine[Any, Any, None]]

app = typer.Typer(help="Run one role until SIGTERM, then drain.", no_args_is_help=True)


@app.command()
def segmenter() -> None:
    """Split conversations into episodes: messages → episode.closed."""
    from afterword.streams.app import run_segmenter

    _run(run_segmenter)


@app.command()
def summarizer() -> None:
    """Summarize episodes: episode.closed → the stores and summary.created."""
    from afterword.streams.summarizer_app import run_summarizer

    _run(run_summarizer)


@app.command()
def archiver() -> None:
    """Archive the latest version of every message: messages → the stores."""
    from afterword.consumers.archiver import run_archiver

    _run(run_archiver)


@app.command()
def ingest() -> None:
    """Read topics of other applications: their topics → messages, as mapped by the [[sources]] of a file."""
    from afterword.streams.ingest.agent import run_ingest

    _run(run_ingest)


@app.command()
def webhooks() -> None:
    """Post summaries and deletions to HTTP endpoints."""
    from afterword.streams.webhooks.agent import run_webhooks

    _run(run_webhooks)


def _run(role: RunRole) -> None:
    settings = start()
    asyncio.run(to_its_end(role(settings), settings.kafka.bootstrap_servers))


async def to_its_end(
    role: Coroutine[Any, Any, None], bootstrap_servers: str, leave: Callable[[int], None] = os._exit
) -> None:
    """Run a role, then exit the process at once, with one line about a failure. A supervisor restarts the worker.

    A regular exit of Python waits for threads that may be busy with abandoned work, and collects garbage. On a busy
    machine that takes seconds, and no timer can cut it short.
    """
    from afterword.streams.errors import AfterwordError, WorkerFailed
    from afterword.streams.kafka.clients import broker_errors
    from afterword.streams.logs import log
    from faust_eos.errors import EngineError

    code = 0
    try:
        with broker_errors(bootstrap_servers):
            await role
    except (EngineError, OSError) as error:  # for example lost state, a port in use or a full disk
        code = report(WorkerFailed(problem=str(error)))
    except AfterwordError as error:
        code = report(error)
    else:
        log.info("worker_stopped")
    leave(code)
