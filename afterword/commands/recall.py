"""`afterword recall`: which of a user's episodes have to do with something."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from afterword.commands.common import Json, print_json, print_table, start_quietly

if TYPE_CHECKING:
    from afterword.streams.stores.index import Recalled

Query = Annotated[str, typer.Argument(help="What is searched for, in any words.")]
User = Annotated[str, typer.Option("--user", help="Whose episodes.")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Of which tenant.")]
NoTenant = Annotated[bool, typer.Option("--no-tenant", help="Only episodes without a tenant.")]
Hits = Annotated[int, typer.Option("-k", min=1, max=100, help="How many at most.")]
Agent = Annotated[str | None, typer.Option("--agent", help="Only episodes of this agent.")]
Conversation = Annotated[str | None, typer.Option("--conversation", help="Only episodes of this conversation.")]


def recall(
    query: Query,
    user: User,
    tenant: Tenant = None,
    no_tenant: NoTenant = False,
    k: Hits = 5,
    agent: Agent = None,
    conversation: Conversation = None,
    as_json: Json = False,
) -> None:
    """Search one user's episodes, best first: scores, short summaries, message ids. Never without user and tenant."""
    if (tenant is None) != no_tenant:
        raise typer.BadParameter("either --tenant or --no-tenant: nobody's episodes are searched without")
    hits = asyncio.run(_search(query, user, tenant, k, agent, conversation))
    if as_json:
        print_json([hit.model_dump(mode="json") for hit in hits])
    elif hits:
        print_table(("score", "episode", "ended", "short summary"), [_row(hit) for hit in hits])
    else:
        typer.echo("nothing found", err=True)


async def _search(
    query: str, user: str, tenant: str | None, k: int, agent: str | None, conversation: str | None
) -> "list[Recalled]":
    from afterword.memory import Memory

    async with Memory.from_settings(start_quietly()) as memory:
        return await memory.recall(
            query, user_id=user, tenant_id=tenant, k=k, agent_id=agent, conversation_id=conversation
        )


def _row(hit: "Recalled") -> tuple[str, ...]:
    fallback = " (fallback)" if hit.source == "fallback" else ""
    return f"{hit.score:.2f}", hit.episode_id, f"{hit.ended_at:%Y-%m-%d %H:%M}", hit.short_summary + fallback
