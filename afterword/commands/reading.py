"""Commands that read the memory: users, conversations, context, episodes, recall, profile and watch."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afterword.commands.common import (
    Conversation,
    Json,
    RequiredUser,
    Tenant,
    TimeZone,
    User,
    from_memory,
    moment,
    not_empty,
    start_command,
)
from afterword.terminal import Screen, context_lines, print_json, print_table
from afterword_text.visible import printable, shown, shown_json, shown_lines

if TYPE_CHECKING:
    from afterword.reading.memory import ConversationPage, Memory, UserPage
    from afterword.schemas import SummaryCreated, SummaryDeleted
    from afterword.schemas.base import Owner
    from afterword.streams.stores.index import Recalled

ConversationId = Annotated[str, typer.Argument(help="Id of the conversation.")]
Agent = Annotated[str | None, typer.Option("--agent", help="Only episodes of this agent.")]
LastMessages = Annotated[
    int | None,
    typer.Option(min=0, help="Number of last messages beside a summary; default: all messages that fit."),
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", min=1, help="Maximum number of tokens.")]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="Episodes on one page.")]
Before = Annotated[int | None, typer.Option(min=1, help="Only episodes with a smaller ordinal, for the next page.")]
QueryText = Annotated[str, typer.Argument(help="Text to search for, in any words; or `try`.")]
Questions = Annotated[
    Path | None,
    typer.Argument(
        exists=True, dir_okay=False, help="After `try`: lines of a question, a tab and a text that its answer contains."
    ),
]
FromBeginning = Annotated[bool, typer.Option("--from-beginning", help="Start with the oldest summary on the topic.")]
SummaryLimit = Annotated[int | None, typer.Option(min=1, help="Stop after this many.")]
Hits = Annotated[int, typer.Option("-k", min=1, max=100, help="Maximum number of hits.")]
BeganSince = Annotated[
    datetime | None,
    typer.Option("--since", parser=moment, help="Only episodes that began since this time, or since 2h or 3d ago."),
]
EndedBefore = Annotated[
    datetime | None, typer.Option("--until", parser=moment, help="Only episodes that ended before this time.")
]
MinCoverage = Annotated[
    float,
    typer.Option(min=0, max=1, help="Show nothing unless a hit covers at least this share of the query."),
]

Person = Annotated[str, typer.Argument(callback=not_empty, help="Id of the user.")]
MaxProfileTokens = Annotated[int, typer.Option("--max-tokens", min=1, help="Maximum number of tokens in the facts.")]

PageLimit = Annotated[int, typer.Option(min=1, max=200, help="Rows on one page.")]
After = Annotated[str | None, typer.Option("--after", help="The next page, as the one before names it.")]
UserPrefix = Annotated[str, typer.Option("--prefix", help="Only users whose ids begin with this.")]

USER_COLUMNS = ("user", "conversations", "episodes", "last message")
CONVERSATION_COLUMNS = ("conversation", "episodes", "messages", "last message", "title")
FACT_COLUMNS = ("kind", "said", "fact", "says so", "until")
MISSED_COLUMNS = ("missed question", "expected", "best hit instead")
HIT_COLUMNS = ("score", "episode", "ended", "messages that match", "title and short summary")
EPISODE_COLUMNS = ("no.", "ended", "messages", "tokens", "saved", "made by", "title", "short summary")


def context(
    conversation: ConversationId,
    messages: LastMessages = None,
    max_tokens: MaxTokens = 3500,
    agent: Agent = None,
    user: User = None,
    tenant: Tenant = None,
    time_zone: TimeZone = None,
    as_json: Json = False,
) -> None:
    """Print what an agent loads: all messages, or a summary and the last ones. Exit 1 for an unknown conversation."""
    wanted: dict[str, Any] = {**_owner(user, tenant)._asdict(), "time_zone": time_zone}
    found = from_memory(lambda memory: memory.context(conversation, messages, max_tokens, agent, **wanted))
    if found is None:
        typer.echo(f"nothing is known about conversation {shown(conversation)}", err=True)
        raise typer.Exit(1)
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        screen = Screen()
        for number, line in enumerate(context_lines(found)):
            screen.line(line, "" if number else "bold")


def _owner(user: str | None, tenant: str | None) -> "Owner":
    from afterword.schemas.base import ANYONE, Owner

    return Owner(ANYONE if user is None else user, ANYONE if tenant is None else tenant)


def episodes(
    conversation: ConversationId,
    limit: Limit = 20,
    before: Before = None,
    agent: Agent = None,
    user: User = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> None:
    """Show a conversation's episodes, newest first, page by page."""
    owner = _owner(user, tenant)
    page = from_memory(lambda memory: memory.episodes(conversation, limit, before, agent, **owner._asdict()))
    if as_json:
        own = ("fingerprint", "close_reason", "overlap_ids")
        documents = [
            stored.summary.model_dump(mode="json") | {name: getattr(stored, name) for name in own}
            for stored in page.episodes
        ]
        print_json({"episodes": documents, "next_before": page.next_before})
        return
    rows = [
        (
            str(summary.ordinal),
            f"{summary.ended_at:%Y-%m-%d %H:%M}",
            str(summary.message_count),
            str(summary.compression.tokens_before),
            f"{summary.compression.ratio:.0%}" if summary.compression.ratio > 0 else "",
            _written_by(summary),
            summary.title,
            summary.short_summary,
        )
        for summary in (stored.summary for stored in page.episodes)
    ]
    print_table(EPISODE_COLUMNS, rows, below=2, none="no episodes")
    if page.next_before:
        typer.echo(f"older episodes: --before {page.next_before}", err=True)


def _written_by(summary: "SummaryCreated") -> str:
    from afterword.streams.summarizer.summary import EXTRACTIVE

    if summary.quality.source == "llm":
        return summary.model
    reason = summary.quality.reason or ""
    return "no LLM" if reason == EXTRACTIVE else f"without the LLM: {reason.replace('_', ' ')}"


def recall(
    query: QueryText,
    user: RequiredUser,
    questions: Questions = None,
    tenant: Tenant = None,
    k: Hits = 5,
    agent: Agent = None,
    conversation: Conversation = None,
    since: BeganSince = None,
    until: EndedBefore = None,
    min_coverage: MinCoverage = 0.17,
    time_zone: TimeZone = None,
    as_json: Json = False,
) -> None:
    """Search the episodes of one user, best first. Without --tenant, only episodes without a tenant are searched.

    `recall try FILE` asks each question of a file, and prints how many have a hit with the expected text, and which
    have not. Without an expected text, there should be no hit.
    """
    if questions is not None and query != "try":
        raise typer.BadParameter(f"{str(questions)!r} is one argument too many: put the query into quotes")
    filters: dict[str, Any] = {
        "user_id": user,
        "tenant_id": tenant,
        "k": k,
        "agent_id": agent,
        "conversation_id": conversation,
        "started_after": since,
        "ended_before": until,
        "min_coverage": min_coverage,
        "time_zone": time_zone,
    }
    if questions is not None:
        asked = _questions_in(questions)
        answers = _recalled([question for question, _ in asked], filters)
        _print_trial(asked, answers, as_json)
        return
    [hits] = _recalled([query], filters)
    if as_json:
        print_json([hit.model_dump(mode="json") for hit in hits])
    else:
        print_table(
            HIT_COLUMNS, [_hit_row(hit) for hit in hits], below=2, none=f"nothing is known about this{_hint(tenant)}"
        )


def _recalled(queries: Sequence[str], filters: dict[str, Any]) -> "list[list[Recalled]]":
    from afterword.local.served import served_hits

    async def search(memory: "Memory") -> "list[list[Recalled]]":
        return [await memory.recall(query, **filters) for query in queries]

    settings = start_command()
    served = served_hits(settings.serve, queries, filters)
    return from_memory(search, settings) if served is None else served


def _questions_in(file: Path) -> list[tuple[str, str]]:
    lines = filter(str.strip, file.read_text(encoding="utf-8-sig", errors="replace").splitlines())
    parts = [line.partition("\t") for line in lines]
    if not parts or not all(question.strip() and tab for question, tab, _ in parts):
        raise typer.BadParameter(f"{file}: each line has to be a question, a tab and the expected text")
    return [(question.strip(), expected.strip()) for question, _, expected in parts]


def _print_trial(questions: Sequence[tuple[str, str]], answers: "Sequence[Sequence[Recalled]]", as_json: bool) -> None:
    tried = [(*asked, hits, place_of(asked[1], hits)) for asked, hits in zip(questions, answers, strict=True)]
    missed = [
        (question, expected, next((_texts(hit)[0] for hit in hits), "nothing"))
        for question, expected, hits, place in tried
        if place is None
    ]
    answered, first = len(tried) - len(missed), sum(place == 1 for *_, place in tried)
    if as_json:
        rows = [dict(zip(("question", "expected", "best_hit"), row, strict=True)) for row in missed]
        print_json({"questions": len(tried), "found": answered, "first": first, "missed": rows})
        return
    share = answered / len(tried)
    typer.echo(f"{answered} of {len(tried)} questions have the expected answer ({share:.0%}), {first} in the best hit")
    print_table(MISSED_COLUMNS, missed, below=2)


def place_of(expected: str, hits: "Sequence[Recalled]") -> int | None:
    """Return the place, from 1, of the first hit whose messages or summary contain a text, whatever its case and white
    space; None if there is none. Without a text, nothing is known, so that no hit is place 1.
    """
    if not expected:
        return None if hits else 1
    wanted = " ".join(expected.casefold().split())
    texts = [[" ".join(text.casefold().split()) for text in _texts(hit)] for hit in hits]
    return next((place for place, of_hit in enumerate(texts, 1) if any(wanted in text for text in of_hit)), None)


def _texts(hit: "Recalled") -> list[str]:
    return [*(match.content for match in hit.matches), f"{hit.title}: {hit.short_summary}"]


def _hint(tenant: str | None) -> str:
    """Point to --tenant, without which a tenant's data is not searched."""
    return "" if tenant else "; data of tenants was not searched, see --tenant"


def _hit_row(hit: "Recalled") -> tuple[str, ...]:
    from afterword.streams.settings import zone_of
    from afterword_text.fences import speaker_of

    zone = zone_of(hit.time_zone)
    who = [f"{one.sent_at.astimezone(zone):%Y-%m-%d}, {speaker_of(one.role, one.name)}" for one in hit.matches]
    said = "\n".join(
        shown_lines(f"{speaker}: {match.content} ({shown(match.message_id)})")
        for speaker, match in zip(who, hit.matches, strict=True)
    )
    fallback = " (without the LLM)" if hit.source == "fallback" else ""
    ended = f"{hit.ended_at.astimezone(zone):%Y-%m-%d %H:%M}"
    summary = "still open" if hit.pending else f"{shown(hit.title)}: {hit.short_summary}{fallback}"
    return f"{hit.score:.2f}", hit.episode_id, ended, said, summary


def profile(
    user: Person,
    tenant: Tenant = None,
    max_tokens: MaxProfileTokens = 1000,
    time_zone: TimeZone = None,
    as_json: Json = False,
) -> None:
    """Show what is known about a user, and what was known before. Without --tenant, only data without a tenant is
    used."""
    from afterword.streams.settings import zone_of

    found = from_memory(lambda memory: memory.profile(user, tenant, max_tokens, time_zone=time_zone))
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    zone = zone_of(found.time_zone)
    rows: list[tuple[str, ...]] = []
    for fact in (*found.facts, *found.superseded):
        newest = fact.sources[0]
        until = f"{fact.superseded_at.astimezone(zone):%Y-%m-%d}" if fact.superseded_at else ""
        said_in = f"{shown(newest.conversation_id)}: {', '.join(map(shown, newest.message_ids))}"
        rows.append(
            (fact.kind, f"{newest.ended_at.astimezone(zone):%Y-%m-%d}", fact.as_line(printable), said_in, until)
        )
    print_table(FACT_COLUMNS, rows, below=2, none=f"nothing is known about this user{_hint(tenant)}")
    if found.omitted:
        typer.echo(f"{found.omitted} more: raise --max-tokens", err=True)


def users(
    tenant: Tenant = None,
    prefix: UserPrefix = "",
    limit: PageLimit = 50,
    after: After = None,
    as_json: Json = False,
) -> None:
    """List the users who take part in episodes, last active first. Without --tenant, only data without a tenant is
    used."""
    page = from_memory(lambda memory: memory.users(tenant_id=tenant, limit=limit, after=after, prefix=prefix))
    rows = [
        (user.user_id, str(user.conversations), str(user.episodes), f"{user.last_at:%Y-%m-%d %H:%M}")
        for user in page.users
    ]
    _print_page(page, USER_COLUMNS, rows, as_json, none=f"nobody has an episode{_hint(tenant)}")


def conversations(
    user: RequiredUser,
    tenant: Tenant = None,
    limit: PageLimit = 50,
    after: After = None,
    as_json: Json = False,
) -> None:
    """List the summarized conversations that a user began, most recently summarized first. Without --tenant, only data
    without a tenant is used."""
    page = from_memory(lambda memory: memory.conversations(user_id=user, tenant_id=tenant, limit=limit, after=after))
    rows = [
        (
            entry.conversation_id + (f" ({entry.agent_id})" if entry.agent_id else ""),
            str(entry.episode_count),
            str(entry.message_count),
            f"{entry.last_message_at:%Y-%m-%d %H:%M}",
            entry.title,
        )
        for entry in page.conversations
    ]
    _print_page(page, CONVERSATION_COLUMNS, rows, as_json, none=f"no conversation has a summary{_hint(tenant)}")


def _print_page(
    page: "UserPage | ConversationPage",
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    as_json: bool,
    none: str,
) -> None:
    if as_json:
        print_json(page.model_dump(mode="json"))
        return
    print_table(columns, rows, none=none)
    if page.next_after:
        typer.echo(shown(f"more: --after {quote(page.next_after)}"), err=True)


def watch(from_beginning: FromBeginning = False, limit: SummaryLimit = None, as_json: Json = False) -> None:
    """Print summaries, revisions and deletions as they arrive, until Ctrl-C."""
    from afterword.consumers.subscriber import watching

    async def run() -> None:
        count = 0
        async with watching(start_command().kafka, from_beginning=from_beginning) as events:
            async for event in events:
                _print(event, as_json)
                count += 1
                if count == limit:
                    return

    with suppress(KeyboardInterrupt):
        asyncio.run(run())


def _print(event: "SummaryCreated | SummaryDeleted", as_json: bool) -> None:
    from afterword.schemas import SummaryDeleted

    if as_json:
        typer.echo(shown_json(event.to_json().decode()))
    elif isinstance(event, SummaryDeleted):
        why = "" if event.reason == "deleted" else f" ({event.reason})"
        typer.echo(shown(f"{event.episode_id}  revision {event.revision}: deleted{why}"))
    else:
        why = f" ({event.reason})" if event.reason else ""
        revised_to = f"  revision {event.revision}{why}" if event.revision > 1 else ""
        Screen().line(shown(f"{event.episode_id}{revised_to}  {event.title}: {event.short_summary}"))
