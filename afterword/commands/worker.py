"""`afterword worker`: one role until SIGTERM."""

import asyncio

import typer

from afterword.commands.common import start

app = typer.Typer(help="Run one role until SIGTERM, then drain.", no_args_is_help=True)


@app.callback()
def worker() -> None:
    """Run one role until SIGTERM, then drain."""


@app.command()
def segmenter() -> None:
    """messages → episode.closed, exactly once."""
    from streams.app import run_segmenter

    asyncio.run(run_segmenter(start()))


@app.command()
def summarizer() -> None:
    """episode.closed → MongoDB, Qdrant and summary.created."""
    from streams.app import run_summarizer

    asyncio.run(run_summarizer(start()))


@app.command()
def archiver() -> None:
    """messages → MongoDB, every one as it was produced."""
    from consumers.run_archiver import run_archiver

    asyncio.run(run_archiver(start()))
