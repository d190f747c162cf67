"""`afterword dev` and `afterword demo`: a whole deployment on this machine."""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from afterword.extras import extra_required
from afterword.streams.visible import shown

if TYPE_CHECKING:
    from afterword.demo import Shown
    from afterword.embedded import DownloadProgress
    from afterword.schemas import EpisodeClosed, SummaryCreated


Directory = Annotated[Path, typer.Option("--data-dir", help="Directory of the data, which survives a restart.")]


def dev(data_dir: Directory = Path(".afterword")) -> None:
    """Run Kafka, MongoDB, Qdrant and a worker of each role in the foreground, until Ctrl-C."""
    from afterword.commands.common import start_quietly

    with extra_required("dev", "afterword dev"):
        from afterword.dev import dev as run

    start_quietly()
    with suppress(KeyboardInterrupt), _progress() as progress:
        asyncio.run(run(data_dir, progress, typer.echo))


def demo() -> None:
    """Run everything in a temporary directory, replay sample conversations, show the summaries, and end."""
    from afterword.commands.common import start_quietly
    from afterword.samples import sample_lines

    with extra_required("dev", "afterword demo"):
        from afterword.demo import Show
        from afterword.demo import demo as run

    start_quietly()
    show = Show(say=typer.echo, episode=_print_episode, summary=_print_summary)
    with tempfile.TemporaryDirectory(prefix="afterword-demo-") as name, _progress() as progress:
        done = asyncio.run(run(Path(name), sample_lines(), progress, show))
    _print_end(done)


def _print_episode(event: "EpisodeClosed") -> None:
    line = f"episode closed   {event.episode_id}  {event.message_count} messages, {event.close_reason}"
    typer.echo(shown(line))


def _print_summary(event: "SummaryCreated") -> None:
    typer.echo(shown(f"summary created  {event.episode_id}  {event.title}: {event.short_summary}"))


def _print_end(done: "Shown") -> None:
    typer.echo(
        f"\n{done.messages} messages of {done.conversations} conversations became {done.episodes} episodes; each is "
        "stored, indexed and announced.\nWhere to look next:\n"
        "  afterword dev                     the same with persistent data; then in another terminal:\n"
        "  afterword produce FILE            your own messages, one JSON object a line\n"
        "  afterword watch                   summaries as they arrive\n"
        "  afterword context CONVERSATION    what an agent would load\n"
        "  afterword audit                   is every message in exactly one episode?\n"
        "  README.md                         how to point it at your Kafka and your LLM"
    )


@contextmanager
def _progress() -> "Iterator[DownloadProgress]":
    """Show a progress bar for the downloads of the first start, if there are any."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    with Progress(TextColumn("fetching {task.description}"), BarColumn(), DownloadColumn(), transient=True) as bar:
        task = bar.add_task("", visible=False)

        def report(name: str, done: int, total: int) -> None:
            bar.update(task, description=name, completed=done, total=total, visible=done < total)

        yield report
