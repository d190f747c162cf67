"""`afterword dev` and `afterword demo`: a whole deployment on this machine."""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from afterword.commands.common import start_quietly
from afterword.extras import extra_required
from afterword.terminal import Screen

if TYPE_CHECKING:
    from afterword.embedded import DownloadProgress


Directory = Annotated[Path, typer.Option("--data-dir", help="Directory for the data, which survives restarts.")]

MILLION = 1_000_000


def dev(data_dir: Directory = Path(".afterword")) -> None:
    """Run Kafka, the workers and the server in the foreground, with one SQLite file.

    Stop it with Ctrl-C.
    """
    with suppress(KeyboardInterrupt), Screen() as screen:
        screen.doing("starting")
        with extra_required("dev", "afterword dev"):
            from afterword.local.dev import dev as run

        start_quietly()
        end_as_by_ctrl_c()
        asyncio.run(run(data_dir, _downloads(screen), screen.line, screen.doing))


def demo() -> None:
    """Run everything in a temporary directory, and follow a sample conversation from its messages to recall.

    Then replay the other sample conversations. On a terminal, it ends with a chat on the page, served until Ctrl-C.
    """
    from afterword.samples import sample_lines

    with suppress(KeyboardInterrupt), Screen() as screen:
        screen.line("Afterword on this machine: Kafka, three workers and a server, in a temporary directory.")
        screen.doing("starting")
        with extra_required("dev", "afterword demo"):
            from afterword.local.demo import Story, temporary_directory
            from afterword.local.demo import demo as run

        start_quietly()
        end_as_by_ctrl_c()
        watched = sys.stdin.isatty() and sys.stdout.isatty() and not os.environ.get("CI")
        story = Story(screen, keep_serving=watched)
        with temporary_directory(story) as directory:
            asyncio.run(run(directory, sample_lines(), _downloads(screen), story))


def end_as_by_ctrl_c() -> None:
    """Make SIGTERM, and SIGHUP from a closed terminal, act like Ctrl-C, unless they are ignored."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))


def _downloads(screen: Screen) -> "DownloadProgress":
    def report(name: str, done: int, total: int) -> None:
        if done < total:
            screen.doing(f"fetching {name}, {done / MILLION:.0f} of {total / MILLION:.0f} MB", live=True)

    return report
