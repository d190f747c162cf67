"""`afterword export`: print what is stored about a person."""

import asyncio
from contextlib import aclosing
from typing import Annotated

import typer

from afterword.commands.common import print_json, start_command
from afterword.commands.memory import not_empty

OfUser = Annotated[str, typer.Option("--user", callback=not_empty, help="The user, matched exactly.")]
OfTenant = Annotated[str | None, typer.Option("--tenant", help="Only data of this tenant.")]
OfNoTenant = Annotated[bool, typer.Option("--no-tenant", help="Only data without a tenant.")]


def export(user: OfUser, tenant: OfTenant = None, no_tenant: OfNoTenant = False) -> None:
    """Print everything that is stored about a user as JSON Lines: messages, episodes and rolling summaries.

    --user and either --tenant or --no-tenant are required. The last line has the type `end` and counts the others.
    """
    if (tenant is None) != no_tenant:
        raise typer.BadParameter("give either --tenant or --no-tenant")
    asyncio.run(_print(user, tenant))


async def _print(user: str, tenant: str | None) -> None:
    from afterword.operating.export import export as lines_of

    async with aclosing(lines_of(start_command(), user, tenant)) as lines:
        async for line in lines:
            print_json(line)
