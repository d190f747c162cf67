"""`afterword keys`: manage the keys of `afterword serve`."""

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from afterword.commands.common import Json, print_json, print_table, start_command
from afterword.commands.memory import not_empty
from afterword.extras import extra_required
from afterword.schemas.base import rfc3339

if TYPE_CHECKING:
    from afterword.streams.stores.bookkeeping import ApiKey

app = typer.Typer(help="Keys for `afterword serve`.", no_args_is_help=True)

ForTenant = Annotated[str | None, typer.Option("--tenant", help="Only data of this tenant.")]
ForNoTenant = Annotated[bool, typer.Option("--no-tenant", help="Only data without a tenant.")]
ForUser = Annotated[str | None, typer.Option("--user", callback=not_empty, help="Only data of this user.")]
Scopes = Annotated[list[str], typer.Option("--scope", help="Permission: read, write, erase or admin. Repeatable.")]
KeyId = Annotated[str, typer.Argument(metavar="KEY_ID", help="Id of the key, as `afterword keys list` shows it.")]


@app.command()
def create(
    scope: Scopes,
    tenant: ForTenant = None,
    no_tenant: ForNoTenant = False,
    user: ForUser = None,
    as_json: Json = False,
) -> None:
    """Create a key and print it once; the database keeps only its digest.

    Either --tenant or --no-tenant is required.
    """
    if (tenant is None) != no_tenant:
        raise typer.BadParameter("give either --tenant or --no-tenant")
    with extra_required("serve", "afterword keys"):
        from afterword.serving.principal import SCOPES, new_key
    if unknown := sorted(set(scope) - SCOPES):
        raise typer.BadParameter(f"{unknown[0]!r} is not a scope; the scopes are {', '.join(sorted(SCOPES))}")
    key, record = new_key(tuple(sorted(set(scope))), tenant, user)
    asyncio.run(_store(record))
    if as_json:
        print_json({"key": key, "key_id": record.key_id})
    else:
        typer.echo(f"key {record.key_id}; it will not be shown again:", err=True)
        typer.echo(key)


@app.command("list")
def list_keys(as_json: Json = False) -> None:
    """List the keys, without their secrets."""
    found = asyncio.run(_all())
    if as_json:
        print_json([_shown(key) for key in found])
    else:
        columns = ("key", "tenant", "user", "scopes", "created")
        print_table(columns, [_row(key) for key in found], none="no keys")


@app.command()
def revoke(key: KeyId) -> None:
    """Revoke a key; running servers refuse it within 5 seconds. Exit 1 if there is no such key."""
    if not asyncio.run(_remove(key)):
        typer.echo("there is no such key", err=True)
        raise typer.Exit(1)
    typer.echo("revoked", err=True)


def _shown(key: "ApiKey") -> dict[str, object]:
    return {name: value for name, value in asdict(key).items() if name != "digest"} | {
        "created_at": rfc3339(key.created_at)
    }


def _row(key: "ApiKey") -> tuple[str, ...]:
    tenant = "(none)" if key.tenant_id is None else key.tenant_id
    user = "(any)" if key.user_id is None else key.user_id
    return key.key_id, tenant, user, " ".join(key.scopes), rfc3339(key.created_at)


async def _store(key: "ApiKey") -> None:
    from afterword.streams.stores.opening import open_stores

    async with open_stores(start_command()) as stores:
        await stores.keys.put(key)


async def _all() -> "list[ApiKey]":
    from afterword.streams.stores.opening import open_stores

    async with open_stores(start_command()) as stores:
        return await stores.keys.list()


async def _remove(key_id: str) -> bool:
    from afterword.streams.stores.opening import open_stores

    async with open_stores(start_command()) as stores:
        return await stores.keys.remove(key_id)
