"""`afterword serve`: the memory over HTTP."""

import asyncio

import typer

from afterword.commands.common import find_config, start


def serve() -> None:
    """Serve the memory over HTTP until SIGTERM: conversations, context, episodes and recall."""
    from afterword.extras import extra_required
    from afterword.streams.errors import WorkerFailed

    with extra_required("serve", "afterword serve"):
        from afterword.serving.server import run_server
    find_config()
    settings = start()
    try:
        asyncio.run(run_server(settings, lambda address: typer.echo(f"serving at {address}", err=True)))
    except OSError as error:  # a port in use
        raise WorkerFailed(problem=str(error)) from error
