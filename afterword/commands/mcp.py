"""`afterword mcp`: serve the memory to an agent on the same machine, over standard input and output."""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afterword.commands.common import find_config, start
from afterword.commands.memory import not_empty
from afterword.streams.errors import ConfigurationError
from afterword.streams.text.visible import shown_json

if TYPE_CHECKING:
    from afterword.streams.settings import Serve

NAME = "afterword"
KEY_VARIABLE = "MEMORY_KEY"
HEADER_VARIABLE = "MEMORY_AUTHORIZATION"
OUR_VARIABLES = "AFTERWORD_"

AgentsUser = Annotated[
    str | None,
    typer.Option("--user", callback=not_empty, help="User whose memory it is; default: AFTERWORD_SERVE__MCP_USER."),
]
AgentsTenant = Annotated[
    str | None, typer.Option("--tenant", help="Tenant of the user; default: AFTERWORD_SERVE__MCP_TENANT, or none.")
]
Write = Annotated[bool, typer.Option("--write", help="Also offer the tools that write.")]
Configuration = Annotated[
    bool, typer.Option("--json", help="Print what to paste into Claude Desktop, Cursor and VS Code, and exit.")
]


def mcp(
    user: AgentsUser = None, tenant: AgentsTenant = None, write: Write = False, configuration: Configuration = False
) -> None:
    """Serve one user's memory to an agent over the Model Context Protocol, on standard input and output.

    The agent's program starts this command. `afterword serve` offers the same over HTTP at /mcp.
    """
    from afterword.extras import extra_required
    from afterword.reading.context import ANYONE

    with extra_required("serve", "afterword mcp"):
        from afterword.serving.mcp import run_over_stdio
        from afterword.serving.principal import Principal
    find_config()
    settings = start()
    named = user or settings.serve.mcp_user or ANYONE
    if named is ANYONE:
        raise ConfigurationError(setting="AFTERWORD_SERVE__MCP_USER", problem="it names no user; give one with --user")
    if configuration:
        _print_configurations(settings.serve, _arguments(user, tenant, write))
        return
    scopes = frozenset({"read", "write"} if write else {"read"})
    principal = Principal("stdio", scopes, tenant or settings.serve.mcp_tenant or None, named)
    asyncio.run(run_over_stdio(settings, principal))


def _arguments(user: str | None, tenant: str | None, write: bool) -> list[str]:
    given = ("--user", user), ("--tenant", tenant)
    return ["-m", "afterword", "mcp", *(part for name, value in given if value for part in (name, value))] + (
        ["--write"] if write else []
    )


def _print_configurations(settings: "Serve", arguments: list[str]) -> None:
    from afterword.streams.settings import CONFIG_FILE_VARIABLE

    file = os.environ.get(CONFIG_FILE_VARIABLE)
    environment = {CONFIG_FILE_VARIABLE: str(Path(file).absolute())} if file else {}
    made = {
        "stdio": stdio_configurations(sys.executable, arguments, environment),
        "http": http_configurations(f"http://{settings.host}:{settings.port}/mcp", settings.auth != "none"),
    }
    typer.echo(shown_json(json.dumps(made, ensure_ascii=False, indent=2)))
    if others := sorted(name for name in os.environ if name.startswith(OUR_VARIABLES) and name not in environment):
        typer.echo(f"afterword: also add these variables, which are set here, to `env`: {', '.join(others)}", err=True)


def stdio_configurations(command: str, arguments: list[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return each client's configuration for starting the server itself."""
    server = {"command": command, "args": arguments, "env": dict(environment)}
    return {
        "claude_desktop": {"mcpServers": {NAME: server}},
        "cursor": {"mcpServers": {NAME: server}},
        "vscode": {"servers": {NAME: {"type": "stdio", **server}}},
    }


def http_configurations(address: str, needs_key: bool) -> dict[str, Any]:
    """Return each client's configuration for a running `afterword serve`.

    If it needs a key, they have a placeholder.
    """
    # Claude Desktop's file only supports servers that it starts itself
    bridge: dict[str, Any] = {"command": "npx", "args": ["-y", "mcp-remote", address]}
    cursor: dict[str, Any] = {"url": address}
    vscode: dict[str, Any] = {"type": "http", "url": address}
    inputs = []
    if needs_key:
        bridge["args"] += ["--header", f"Authorization:${{{HEADER_VARIABLE}}}"]
        bridge["env"] = {HEADER_VARIABLE: "Bearer <key>"}
        cursor["headers"] = {"Authorization": f"Bearer ${{env:{KEY_VARIABLE}}}"}
        vscode["headers"] = {"Authorization": "Bearer ${input:afterword_key}"}
        inputs = [{"type": "promptString", "id": "afterword_key", "description": "Afterword key", "password": True}]
    return {
        "claude_desktop": {"mcpServers": {NAME: bridge}},
        "cursor": {"mcpServers": {NAME: cursor}},
        "vscode": {"servers": {NAME: vscode}} | ({"inputs": inputs} if inputs else {}),
    }
