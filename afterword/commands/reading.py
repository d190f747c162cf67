"""Commands that read the memory: context, episodes, recall, profile and watch."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import aclosing, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afterword.commands.common import (
    Json,
    from_memory,
    moment,
    print_json,
    print_lines,
    print_table,
    start_command,
    tenant_of,
    written_by,
)
from afterword.streams.text.visible import printable, shown, shown_json, shown_lines

if TYPE_CHECKING:
    from afterword.reading.context import Owner
    from afterword.reading.memory import Context, StoredEpisode
    from afterword.reading.profile import KnownFact
    from afterword.schemas import SummaryCreated, SummaryDeleted
    from afterword.streams.stores.index import Recalled

ConversationId = Annotated[str, typer.Argument(help="Id of the conversation.")]
Agent = Annotated[str | None, typer.Option("--agent", help="Only this agent's part, if episodes are kept by agent.")]
LastMessages = Annotated[
    int | None,
    typer.Option(min=0, help="Number of last messages; default: that of the trigger's preset, usually 4."),
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", min=1, help="Maximum number of tokens.")]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="Episodes on one page.")]
Before = Annotated[int | None, typer.Option(min=1, help="Only episodes with a smaller ordinal, for the next page.")]
QueryText = Annotated[str, typer.Argument(help="Text to search for, in any words.")]
FromBeginning = Annotated[bool, typer.Option("--from-beginning", help="Start with the oldest summary on the topic.")]
SummaryLimit = Annotated[int | None, typer.Option(min=1, help="Stop after this many.")]


def not_empty(user: str | None) -> str | None:
    """Reject an empty user, as an unset variable in a script would give. Raises: typer.BadParameter."""
    if user == "":
        raise typer.BadParameter("it is empty; name a user")
    return user


User = Annotated[str, typer.Option("--user", callback=not_empty, help="Only episodes of this user.")]
OfUser = Annotated[
    str | None, typer.Option("--user", callback=not_empty, help="Only if the conversation is this user's.")
]
OfTenant = Annotated[str | None, typer.Option("--tenant", help="Only if the conversation is this tenant's.")]
OfNoTenant = Annotated[bool, typer.Option("--no-tenant", help="Only if the conversation has no tenant.")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only episodes of this tenant.")]
NoTenant = Annotated[bool, typer.Option("--no-tenant", help="Only episodes without a tenant.")]
Hits = Annotated[int, typer.Option("-k", min=1, max=100, help="Maximum number of hits.")]
ByAgent = Annotated[str | None, typer.Option("--agent", help="Only episodes of this agent.")]
BeganSince = Annotated[
    datetime | None,
    typer.Option("--since", parser=moment, help="Only episodes that began since this time, or in the last 2h, 3d."),
]
EndedBefore = Annotated[
    datetime | None, typer.Option("--until", parser=moment, help="Only episodes that ended before this time.")
]
InConversation = Annotated[str | None, typer.Option("--conversation", help="Only episodes of this conversation.")]
MinCoverage = Annotated[
    float,
    typer.Option(min=0, max=1, help="Show nothing unless a hit covers at least this share of the query."),
]
MinScoreRatio = Annotated[
    float, typer.Option(min=0, max=1, help="Leave out hits that score less than this share of the best one.")
]

Person = Annotated[str, typer.Argument(callback=not_empty, help="Id of the user.")]
MaxProfileTokens = Annotated[int, typer.Option("--max-tokens", min=1, help="Maximum number of tokens of the facts.")]

FACT_COLUMNS = ("kind", "said", "fact", "says so", "until")
HIT_COLUMNS = ("score", "episode", "ended", "messages that match", "title and short summary")
EPISODE_COLUMNS = ("no.", "ended", "messages", "tokens", "saved", "made by", "title", "short summary")


def context(
    conversation: ConversationId,
    messages: LastMessages = None,
    max_tokens: MaxTokens = 3500,
    agent: Agent = None,
    user: OfUser = None,
    tenant: OfTenant = None,
    no_tenant: OfNoTenant = False,
    as_json: Json = False,
) -> None:
    """Print what an agent loads: title, rolling summary, last messages. Exit 1 if the conversation is unknown."""
    owner = _owner(user, tenant, no_tenant)
    found = asyncio.run(
        from_memory(lambda memory: memory.context(conversation, messages, max_tokens, agent, **owner._asdict()))
    )
    if found is None:
        typer.echo(f"nothing is known about conversation {shown(conversation)}", err=True)
        raise typer.Exit(1)
    if as_json:
        print_json(found.as_dict())
    else:
        print_lines(context_lines(found))


def _owner(user: str | None, tenant: str | None, no_tenant: bool) -> "Owner":
    from afterword.reading.context import ANYONE, Owner

    if tenant is not None and no_tenant:
        raise typer.BadParameter("give either --tenant or --no-tenant")
    return Owner(ANYONE if user is None else user, ANYONE if tenant is None and not no_tenant else tenant)


def context_lines(found: "Context") -> Iterator[str]:
    """Format a context for people. Only our own text starts a line, so no summary or content can pass for a turn."""
    yield from found.as_text(printable).splitlines()
    yield ""
    saved = f", {found.compression:.1%} less" if found.compression > 0 else ""
    events = f"{found.events} of {found.events_full} events"
    whole = "; messages in full, because a summary would be longer" if found.verbatim else ""
    yield f"{found.tokens:,} of {found.tokens_full:,} tokens{saved}; {events}{whole}"


def episodes(
    conversation: ConversationId,
    limit: Limit = 20,
    before: Before = None,
    agent: Agent = None,
    user: OfUser = None,
    tenant: OfTenant = None,
    no_tenant: OfNoTenant = False,
    as_json: Json = False,
) -> None:
    """Show a conversation's episodes, newest first, page by page."""
    owner = _owner(user, tenant, no_tenant)
    page = asyncio.run(
        from_memory(lambda memory: memory.episodes(conversation, limit, before, agent, **owner._asdict()))
    )
    if as_json:
        print_json({"episodes": [_document(stored) for stored in page.episodes], "next_before": page.next_before})
        return
    rows = [_episode_row(stored) for stored in page.episodes]
    print_table(EPISODE_COLUMNS, rows, below=2, none="no episodes")
    if page.next_before:
        typer.echo(f"older episodes: --before {page.next_before}", err=True)


def _document(stored: "StoredEpisode") -> dict[str, Any]:
    more = {"fingerprint": stored.fingerprint, "close_reason": stored.close_reason, "overlap_ids": stored.overlap_ids}
    return {**stored.summary.model_dump(mode="json"), **more}


def _episode_row(stored: "StoredEpisode") -> tuple[str, ...]:
    summary = stored.summary
    tokens, saved = summary.compression.tokens_before, f"{summary.compression.ratio:.0%}"
    numbers = (
        str(summary.ordinal),
        f"{summary.ended_at:%Y-%m-%d %H:%M}",
        str(summary.message_count),
        str(tokens),
        saved,
    )
    return (*numbers, written_by(summary), summary.title, summary.short_summary)


def recall(
    query: QueryText,
    user: User,
    tenant: Tenant = None,
    no_tenant: NoTenant = False,
    k: Hits = 5,
    agent: ByAgent = None,
    conversation: InConversation = None,
    since: BeganSince = None,
    until: EndedBefore = None,
    min_coverage: MinCoverage = 0.18,
    min_score_ratio: MinScoreRatio = 0.4,
    as_json: Json = False,
) -> None:
    """Search the episodes of one user, best first; --user and either --tenant or --no-tenant are required."""
    filters = {
        "user_id": user,
        "tenant_id": tenant_of(tenant, no_tenant),
        "k": k,
        "agent_id": agent,
        "conversation_id": conversation,
        "started_after": since,
        "ended_before": until,
        "min_coverage": min_coverage,
        "min_score_ratio": min_score_ratio,
    }
    hits = asyncio.run(_search(query, filters))
    if as_json:
        print_json([hit.model_dump(mode="json") for hit in hits])
    else:
        print_table(HIT_COLUMNS, [_hit_row(hit) for hit in hits], below=2, none="nothing is known about this")


async def _search(query: str, filters: dict[str, Any]) -> "list[Recalled]":
    from afterword.reading.memory import Memory
    from afterword.streams.stores.opening import open_stores

    settings = start_command()
    async with open_stores(settings) as stores:
        await stores.reach()
    async with Memory.from_settings(settings) as memory:
        return await memory.recall(query, **filters)


def _hit_row(hit: "Recalled") -> tuple[str, ...]:
    from afterword.streams.text.fences import speaker_of

    who = [f"{match.sent_at:%Y-%m-%d}, {speaker_of(match.role, match.name)}" for match in hit.matches]
    said = "\n".join(
        shown_lines(f"{speaker}: {match.content} ({shown(match.message_id)})")
        for speaker, match in zip(who, hit.matches, strict=True)
    )
    fallback = " (without the LLM)" if hit.source == "fallback" else ""
    ended = f"{hit.ended_at:%Y-%m-%d %H:%M}"
    return f"{hit.score:.2f}", hit.episode_id, ended, said, f"{shown(hit.title)}: {hit.short_summary}{fallback}"


def profile(
    user: Person,
    tenant: Tenant = None,
    no_tenant: NoTenant = False,
    max_tokens: MaxProfileTokens = 1000,
    as_json: Json = False,
) -> None:
    """Show what is known about a user, and what was known before. Either --tenant or --no-tenant is required."""
    whose = user, tenant_of(tenant, no_tenant)
    found = asyncio.run(from_memory(lambda memory: memory.profile(*whose, max_tokens)))
    if as_json:
        print_json(found.as_dict())
        return
    rows = [_fact_row(fact) for fact in (*found.facts, *found.superseded)]
    print_table(FACT_COLUMNS, rows, below=2, none="nothing is known of this user")
    if found.omitted:
        typer.echo(f"{found.omitted} more: raise --max-tokens", err=True)


def _fact_row(fact: "KnownFact") -> tuple[str, ...]:
    newest = fact.sources[0]
    until = f"{fact.superseded_at:%Y-%m-%d}" if fact.superseded_at else ""
    said_in = f"{shown(newest.conversation_id)}: {', '.join(map(shown, newest.message_ids))}"
    return fact.kind, f"{newest.ended_at:%Y-%m-%d}", fact.as_line(printable), said_in, until


def watch(from_beginning: FromBeginning = False, limit: SummaryLimit = None, as_json: Json = False) -> None:
    """Print summaries, revisions and deletions as they arrive, until Ctrl-C."""
    with suppress(KeyboardInterrupt):
        asyncio.run(_watch(from_beginning, limit, as_json))


async def _watch(from_beginning: bool, limit: int | None, as_json: bool) -> None:
    from afterword.reading.watch import watch as events

    count = 0
    async with aclosing(events(start_command(), from_beginning)) as found:
        async for event in found:
            _print(event, as_json)
            count += 1
            if count == limit:
                return


def _print(event: "SummaryCreated | SummaryDeleted", as_json: bool) -> None:
    from afterword.schemas import SummaryDeleted

    if as_json:
        typer.echo(shown_json(event.to_json().decode()))
    elif isinstance(event, SummaryDeleted):
        typer.echo(shown(f"{event.episode_id}  {_revision(event)}: deleted"))
    elif sys.stdout.isatty():
        _print_panel(event)
    else:
        revised = f"  {_revision(event)}" if event.revision > 1 else ""
        typer.echo(shown(f"{event.episode_id}{revised}  {event.title}: {event.short_summary}"))


def _revision(event: "SummaryCreated | SummaryDeleted") -> str:
    return f"revision {event.revision}" + (f" ({event.reason})" if event.reason else "")


def _print_panel(event: "SummaryCreated") -> None:
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    revised = [_revision(event)] if event.revision > 1 else []
    footer = " · ".join([event.episode_id, *revised, f"{event.message_count} messages", written_by(event)])
    # as Text, so that user content is not read as markup
    text, title, subtitle = map(Text, (printable(event.short_summary), shown(event.title), shown(footer)))
    Console().print(Panel(text, title=title, subtitle=subtitle, title_align="left"))
