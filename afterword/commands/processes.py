"""Commands that run until they are stopped: `worker`, `serve`, `mcp`, and for a whole deployment `dev` and `demo`.

The command `keys` manages the keys of `afterword serve`.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from afterword.commands.common import (
    Json,
    NoTenant,
    Tenant,
    User,
    find_config,
    not_empty,
    report,
    start,
    start_command,
    start_quietly,
    tenant_of,
    use,
)
from afterword.streams.installed import extra_required
from afterword.streams.roles import ALL, ROLES
from afterword.terminal import Screen, print_json, print_table
from afterword_text.visible import shown_json

if TYPE_CHECKING:
    from afterword.streams.stores.bookkeeping import ApiKeys

Result = TypeVar("Result")

worker_app = typer.Typer(help="Run one role until SIGTERM, then drain.", no_args_is_help=True)

Directory = Annotated[Path, typer.Option("--data-dir", help="Directory for the data, which survives restarts.")]
Port = Annotated[int | None, typer.Option("--port", min=0, max=65535, help="Port; default: AFTERWORD_SERVE__PORT.")]
Scopes = Annotated[list[str], typer.Option("--scope", help="Permission: read, write, erase or admin. Repeatable.")]
KeyId = Annotated[str, typer.Argument(metavar="KEY_ID", help="Id of the key, as `afterword keys list` shows it.")]
AgentsUser = Annotated[str, typer.Option("--user", callback=not_empty, help="User whose memory it is.")]
AgentsTenant = Annotated[str | None, typer.Option("--tenant", help="Tenant of the user; default: none.")]
Write = Annotated[bool, typer.Option("--write", help="Also offer the tools that write.")]
Served = Annotated[bool, typer.Option("--serve", help="Also serve the memory over HTTP, as `afterword serve` does.")]
Configuration = Annotated[
    bool, typer.Option("--json", help="Print what to paste into Claude Desktop and Cursor, and exit.")
]
OUR_VARIABLES = "AFTERWORD_"


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
        asyncio.run(run(data_dir, screen))


def demo() -> None:
    """Run everything in a temporary directory: what one person says in three chats, and what is remembered of it.

    On a terminal, it ends with a chat on the page, served until Ctrl-C.
    """
    with suppress(KeyboardInterrupt), Screen() as screen:
        screen.line("Afterword on this machine: Kafka, the workers and a server, in a temporary directory.")
        screen.doing("starting")
        with extra_required("dev", "afterword demo"):
            from afterword.local.demo import Story, temporary_directory
            from afterword.local.demo import demo as run

        start_quietly()
        end_as_by_ctrl_c()
        watched = sys.stdin.isatty() and sys.stdout.isatty() and not os.environ.get("CI")
        story = Story(screen, keep_serving=watched)
        with temporary_directory(story) as directory:
            asyncio.run(run(directory, story))


def end_as_by_ctrl_c() -> None:
    """Make SIGTERM, and SIGHUP from a closed terminal, act like Ctrl-C, unless they are ignored."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))


def run_role(context: typer.Context) -> None:
    _run(str(context.info_name))


def _run(role: str, beside: Callable[..., Awaitable[None]] | None = None) -> None:
    from afterword.streams.app import run_worker

    settings = start()
    runs = [partial(beside, settings=settings, started=_tell_address)] if beside else []
    asyncio.run(to_its_end(run_worker(role, settings, beside=runs), settings.kafka.bootstrap_servers))


for name, role in ROLES.items():
    worker_app.command(name, help=role.help)(run_role)


@worker_app.command(ALL)
def run_all(serve: Served = False) -> None:
    """Run segmenter, summarizer and archiver in one process, for a laptop or a small deployment."""
    if not serve:
        return _run(ALL)
    with extra_required("serve", "afterword worker all --serve"):
        from afterword.serving.server import serve_until
    return _run(ALL, serve_until)


async def to_its_end(
    role: Coroutine[Any, Any, None], bootstrap_servers: str, leave: Callable[[int], None] = os._exit
) -> None:
    """Run a role, report a failure in one line, and exit the process at once. A supervisor restarts the worker.

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


def serve(port: Port = None) -> None:
    """Serve the memory over HTTP until SIGTERM: conversations, context, episodes and recall."""
    with extra_required("serve", "afterword serve"):
        from afterword.serving.server import run_server
    find_config()
    settings = start()
    if port is not None:
        settings = settings.model_copy(update={"serve": settings.serve.model_copy(update={"port": port})})
    asyncio.run(run_server(settings, _tell_address))


def _tell_address(address: str) -> None:
    typer.echo(f"serving at {address}", err=True)


def create(
    scope: Scopes,
    tenant: Tenant = None,
    no_tenant: NoTenant = False,
    user: User = None,
    as_json: Json = False,
) -> None:
    """Create a key and print it once; the database keeps only its digest.

    Either --tenant or --no-tenant is required.
    """
    tenant = tenant_of(tenant, no_tenant)
    with extra_required("serve", "afterword keys"):
        from afterword.serving.requests import SCOPES, new_key
    if unknown := sorted(set(scope) - SCOPES):
        raise typer.BadParameter(f"{unknown[0]!r} is not a scope; the scopes are {', '.join(sorted(SCOPES))}")
    key, record = new_key(tuple(sorted(set(scope))), tenant, user)
    _with_keys(lambda keys: keys.put(record))
    if as_json:
        print_json({"key": key, "key_id": record.key_id})
    else:
        typer.echo(f"key {record.key_id}; it will not be shown again:", err=True)
        typer.echo(key)


def list_keys() -> None:
    """List the keys, without their secrets."""
    from afterword.schemas.base import rfc3339

    api_keys = _with_keys(lambda keys: keys.list())
    rows = [
        (
            key.key_id,
            "(none)" if key.tenant_id is None else key.tenant_id,
            "(any)" if key.user_id is None else key.user_id,
            " ".join(key.scopes),
            rfc3339(key.created_at),
        )
        for key in api_keys
    ]
    print_table(("key", "tenant", "user", "scopes", "created"), rows, none="no keys")


def revoke(key: KeyId) -> None:
    """Revoke a key; running servers refuse it within 5 seconds. Exit 1 if there is no such key."""
    if not _with_keys(lambda keys: keys.remove(key)):
        typer.echo("there is no such key", err=True)
        raise typer.Exit(1)
    typer.echo("revoked", err=True)


def _with_keys(work: "Callable[[ApiKeys], Awaitable[Result]]") -> Result:
    from afterword.streams.stores.opening import open_stores

    return use(open_stores, start_command(), lambda stores: work(stores.keys))


def mcp(
    user: AgentsUser, tenant: AgentsTenant = None, write: Write = False, configuration: Configuration = False
) -> None:
    """Serve one user's memory to an agent over the Model Context Protocol, on standard input and output.

    The agent's program starts this command. `afterword serve` offers the same over HTTP at /mcp.
    """
    from afterword.streams.settings import CONFIG_FILE_VARIABLE

    with extra_required("serve", "afterword mcp"):
        from afterword.serving.mcp import run_over_stdio
        from afterword.serving.requests import Principal
    find_config()
    settings = start()
    if configuration:
        arguments = ["-m", "afterword", "mcp", "--user", user, *(["--tenant", tenant] if tenant else [])]
        file = os.environ.get(CONFIG_FILE_VARIABLE)
        environment = {CONFIG_FILE_VARIABLE: str(Path(file).absolute())} if file else {}
        command = {"command": sys.executable, "args": [*arguments, *["--write"] * write], "env": environment}
        typer.echo(shown_json(json.dumps({"mcpServers": {"afterword": command}}, ensure_ascii=False, indent=2)))
        if others := sorted(name for name in os.environ if name.startswith(OUR_VARIABLES) and name not in environment):
            names = ", ".join(others)
            typer.echo(f"afterword: also add these variables, which are set here, to `env`: {names}", err=True)
        return
    scopes = frozenset({"read", "write"} if write else {"read"})
    principal = Principal("stdio", scopes, tenant or None, user)
    asyncio.run(run_over_stdio(settings, principal))
