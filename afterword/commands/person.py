"""Commands about one person's data: `erase`, its verification, and `export`."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from afterword.commands.common import Json, print_json, start_command, tenant_of
from afterword.commands.reading import not_empty
from afterword.streams.text.visible import many, shown

if TYPE_CHECKING:
    from afterword.operating.erasing.eraser import Eraser, ErasurePlan
    from afterword.operating.erasing.receipt import Receipt

Result = TypeVar("Result")

DEAD_LETTERS = ("dead letter", "dead letters")

app = typer.Typer(invoke_without_command=True)

UserToErase = Annotated[
    str | None, typer.Option("--user", callback=not_empty, help="The user, matched exactly. Required.")
]
OfTenant = Annotated[str | None, typer.Option("--tenant", help="Only data of this tenant.")]
OfNoTenant = Annotated[bool, typer.Option("--no-tenant", help="Only data without a tenant.")]
Conversation = Annotated[str | None, typer.Option("--conversation", help="Only in this conversation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be erased without changing anything.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
By = Annotated[str | None, typer.Option("--by", help="Who asked for it, for the receipt.")]
ReceiptFile = Annotated[
    Path | None,
    typer.Option(
        "--receipt", metavar="FILE", help="Write the receipt here; default: erasure-ID.json in the current directory."
    ),
]
Timeout = Annotated[
    float, typer.Option("--timeout", min=0, metavar="SECONDS", help="Maximum wait until nothing is left; then exit 1.")
]
ReceiptToRead = Annotated[Path, typer.Argument(metavar="RECEIPT", help="Receipt file.")]
OfUser = Annotated[str, typer.Option("--user", callback=not_empty, help="The user, matched exactly.")]


@app.callback()
def erase(
    context: typer.Context,
    user: UserToErase = None,
    tenant: OfTenant = None,
    no_tenant: OfNoTenant = False,
    conversation: Conversation = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    by: By = None,
    receipt: ReceiptFile = None,
    timeout: Timeout = 600,
    as_json: Json = False,
) -> None:
    """Delete everything that a user wrote, wait until nothing is left, and print a receipt.

    --user and either --tenant or --no-tenant are required.

    If it is interrupted, run the same command again: it starts over under the same id. The workers must be running.
    """
    if context.invoked_subcommand:
        return
    whose, of_tenant = _person(user, tenant, no_tenant)
    if receipt and receipt.exists() and not dry_run:
        raise typer.BadParameter("the file already exists", param_hint="--receipt")
    if dry_run or not yes:
        plan = asyncio.run(_with_eraser(lambda eraser: eraser.plan(whose, of_tenant, conversation)))
        if dry_run and as_json:
            print_json(asdict(plan))
        else:
            typer.echo(shown(_plan_line(plan)), err=not dry_run)
        if dry_run:
            return
        if not typer.confirm("Erase all of it?", err=True):
            typer.echo("nothing was erased", err=True)
            raise typer.Exit(1)
    made = asyncio.run(
        _with_eraser(
            lambda eraser: eraser.erase(
                whose, of_tenant, conversation, asked_by=by, timeout_seconds=timeout, progress=_report
            )
        )
    )
    made.write(receipt or Path(f"erasure-{made.receipt_id}.json"))
    if as_json:
        print_json(made.model_dump(mode="json"))
    else:
        typer.echo(shown(made.line()))
        _print_dates(made)


@app.command("verify")
def verify(
    receipt: ReceiptToRead,
    user: UserToErase = None,
    tenant: OfTenant = None,
    no_tenant: OfNoTenant = False,
    as_json: Json = False,
) -> None:
    """Search stores and topics again for what a receipt says is gone. Exit 1 if anything is left past its date.

    The receipt does not name the user, so give --user and either --tenant or --no-tenant again.
    """
    from afterword.operating.erasing.receipt import Receipt
    from afterword.operating.erasing.verifying import verify as look_again

    whose, of_tenant = _person(user, tenant, no_tenant)
    found = asyncio.run(look_again(start_command(), Receipt.read(receipt), whose, of_tenant))
    if as_json:
        findings = [
            {"place": one.place, "number": one.number, "gone_by": one.gone_by and one.gone_by.isoformat()}
            | {"late": one in found.late}
            for one in found.findings
        ]
        print_json({"findings": findings, "unbounded": found.unbounded, "late": len(found.late)})
    else:
        lines = [one.line(found.looked_at) for one in found.findings]
        lines += [f"{topic}: never expires, because of the topic's settings" for topic in found.unbounded]
        typer.echo("\n".join(map(shown, lines)) or "nothing is left")
    if found.late:
        raise typer.Exit(1)


def _person(user: str | None, tenant: str | None, no_tenant: bool) -> tuple[str, str | None]:
    if user is None:
        raise typer.BadParameter("name the user with --user")
    return user, tenant_of(tenant, no_tenant)


async def _with_eraser(work: "Callable[[Eraser], Awaitable[Result]]") -> Result:
    from afterword.operating.erasing.eraser import Eraser

    async with Eraser.from_settings(start_command()) as eraser:
        return await work(eraser)


async def _report(stage: str, left: int) -> None:
    noun, _, rest = stage.partition(" ")
    typer.echo(shown(f"{many(left, noun.removesuffix('s'), noun)} {rest}"), err=True)


def _plan_line(plan: "ErasurePlan") -> str:
    episodes, dead_letters = many(plan.episodes, "episode", "episodes"), many(plan.dead_letters, *DEAD_LETTERS)
    conversations = many(plan.conversations, "conversation", "conversations")
    return (
        f"{many(plan.messages, 'message', 'messages')} in {conversations}, others wrote in "
        f"{plan.shared_conversations:,} of them; {episodes}, {dead_letters}"
    )


def _print_dates(receipt: "Receipt") -> None:
    for name in receipt.unbounded:
        typer.echo(shown(f"{name} keeps its records forever; see: afterword check"), err=True)
    for topic in receipt.topics:
        if not topic.ours:
            from afterword.schemas.base import rfc3339

            when = rfc3339(topic.gone_by) if isinstance(topic.gone_by, datetime) else topic.gone_by
            typer.echo(
                shown(f"{topic.topic} is your own topic and was not touched; its records will be gone by: {when}"),
                err=True,
            )


def export(user: OfUser, tenant: OfTenant = None, no_tenant: OfNoTenant = False) -> None:
    """Print everything that is stored about a user as JSON Lines: messages, episodes and rolling summaries.

    --user and either --tenant or --no-tenant are required. The last line has the type `end` and counts the others.
    """
    asyncio.run(_print(user, tenant_of(tenant, no_tenant)))


async def _print(user: str, tenant: str | None) -> None:
    from afterword.operating.export import export as lines_of

    async with aclosing(lines_of(start_command(), user, tenant)) as lines:
        async for line in lines:
            print_json(line)
