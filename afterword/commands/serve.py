"""`afterword serve`: serve the memory over HTTP."""

import asyncio
from typing import Annotated

import typer

from afterword.commands.common import find_config, start

Port = Annotated[int | None, typer.Option("--port", min=0, max=65535, help="Port; default: AFTERWORD_SERVE__PORT.")]


def serve(port: Port = None) -> None:
    """Serve the memory over HTTP until SIGTERM: conversations, context, episodes and recall."""
    from afterword.extras import extra_required
    from afterword.streams.errors import WorkerFailed

    with extra_required("serve", "afterword serve"):
        from afterword.serving.server import run_server
    find_config()
    settings = start()
    if port is not None:
        settings = settings.model_copy(update={"serve": settings.serve.model_copy(update={"port": port})})
    try:
        asyncio.run(run_server(settings, lambda address: typer.echo(f"serving at {address}", err=True)))
    except OSError as error:  # for example a port in use
        address = f"{settings.serve.host}:{settings.serve.port}"
        remedy = "choose another with --port or AFTERWORD_SERVE__PORT"
        raise WorkerFailed(problem=f"{address}: {error.strerror}; {remedy}") from error
