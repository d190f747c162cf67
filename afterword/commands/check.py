"""`afterword check`: is everything there?"""

import asyncio
from dataclasses import asdict

import typer

from afterword.commands.common import Json, print_json, start_quietly


def check(as_json: Json = False) -> None:
    """Verify that Kafka, its topics, MongoDB, Qdrant and the LLM are reachable and configured. Exit 1 if one is not."""
    from afterword.checks import check_all

    results = asyncio.run(check_all(start_quietly()))
    if as_json:
        print_json([asdict(result) for result in results])
    else:
        for result in results:
            typer.echo(f"{'OK  ' if result.ok else 'FAIL'}  {result.name:<8} {result.detail}")
    if not all(result.ok for result in results):
        raise typer.Exit(1)
