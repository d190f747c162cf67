"""`afterword worker`: run one role until SIGTERM."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import typer

from afterword.commands.common import start

if TYPE_CHECKING:
    from afterword.streams.settings import Settings

LEAVE_SECONDS = 0.5

app = typer.Typer(help="Run one role until SIGTERM, then drain.", no_args_is_help=True)


@app.callback()
def worker() -> None:
    """Run one role until SIGTERM, then drain."""


@app.command()
def segmenter() -> None:
    """messages → episode.closed, exactly once."""
    from afterword.streams.app import run_segmenter

    _run(run_segmenter)


@app.command()
def summarizer() -> None:
    """episode.closed → MongoDB, Qdrant and summary.created."""
    from afterword.streams.summarizer_app import run_summarizer

    _run(run_summarizer)


@app.command()
def archiver() -> None:
    """messages → MongoDB, every message as it was produced."""
    from afterword.consumers.archiver import run_archiver

    _run(run_archiver)


async def to_its_end(role: Coroutine[Any, Any, None]) -> None:
    """Run the role, then end the process even if a thread is still busy with an abandoned summary."""
    await role
    leave = threading.Timer(LEAVE_SECONDS, os._exit, [0])
    leave.daemon = True
    leave.start()


def _run(role: "Callable[[Settings], Coroutine[Any, Any, None]]") -> None:
    """Run a role. A failure ends the process with one line that says why; a supervisor restarts it."""
    from afterword.streams.errors import WorkerFailed
    from afterword.streams.kafka import broker_errors
    from afterword.streams.runtime.errors import EngineError

    settings = start()
    try:
        with broker_errors(settings.kafka.bootstrap_servers):
            asyncio.run(to_its_end(role(settings)))
    except (EngineError, OSError) as error:  # lost state, a port in use, a full disk
        raise WorkerFailed(problem=str(error)) from error
