"""Commands about one person's data: `erase`, its verification, `assign` and `export`."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afterword.commands.common import (
    Conversation,
    DryRun,
    Json,
    NoTenant,
    RequiredUser,
    Tenant,
    User,
    Yes,
    start_command,
    tenant_of,
    use,
)
from afterword.terminal import print_json
from afterword_text.visible import many, shown

if TYPE_CHECKING:
    from afterword.streams.stores.opening import Stores

app = typer.Typer(invoke_without_command=True)

By = Annotated[str | None, typer.Option("--by", help="Name of the person who asked for it, for the receipt.")]
ReceiptFile = Annotated[
    Path | None,
    typer.Option(
        "--receipt", metavar="FILE", help="Write the receipt here; default: erasure-ID.json in the current directory."
    ),
]
Timeout = Annotated[
    float, typer.Option("--timeout", min=0, metavar="SECONDS", help="Maximum wait until nothing is left; then exit 1.")
]
To = Annotated[str, typer.Option("--to", help="User to whom the messages belong from now on.")]
ReceiptToRead = Annotated[Path, typer.Argument(metavar="RECEIPT", help="Receipt file.")]


@app.callback()
def erase(
    context: typer.Context,
    user: User = None,
    tenant: Tenant = None,
    no_tenant: NoTenant = False,
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
    if user is None:
        raise typer.BadParameter("name the user with --user")
    whose = user, tenant_of(tenant, no_tenant)
    if receipt and receipt.exists() and not dry_run:
        raise typer.BadParameter("the file already exists", param_hint="--receipt")
    from afterword.operating.eraser import Eraser

    settings = start_command()
    if dry_run or not yes:
        plan = use(Eraser.from_settings, settings, lambda eraser: eraser.plan(*whose))
        if dry_run and as_json:
            print_json(plan)
        else:
            typer.echo(_plan_line(plan), err=not dry_run)
        if dry_run:
            return
        typer.confirm("Erase all of it?", err=True, abort=True)
    options: dict[str, Any] = {"asked_by": by, "timeout_seconds": timeout, "progress": _report}
    made = use(Eraser.from_settings, settings, lambda eraser: eraser.erase(*whose, **options))
    made.write(receipt or Path(f"erasure-{made.receipt_id}.json"))
    if as_json:
        print_json(made.model_dump(mode="json"))
    else:
        typer.echo(shown(made.line()))


def _plan_line(plan: dict[str, int]) -> str:
    messages, episodes = many(plan["messages"], "message", "messages"), many(plan["episodes"], "episode", "episodes")
    conversations = many(plan["conversations"], "conversation", "conversations")
    letters = many(plan["dead_letters"], "dead letter", "dead letters")
    shared = f"others wrote in {plan['shared_conversations'] or 'none'} of them"
    return f"{messages} in {conversations}, {shared}; {episodes}, {letters}"


@app.command("verify")
def verify(
    receipt: ReceiptToRead,
    user: RequiredUser,
    tenant: Tenant = None,
    no_tenant: NoTenant = False,
) -> None:
    """Search stores and topics again for what a receipt says is gone. Exit 1 if anything is left that should be gone.

    The receipt does not name the user, so give --user and either --tenant or --no-tenant again.
    """
    from afterword.operating.person import Receipt
    from afterword.operating.person import verify as look_again

    whose = user, tenant_of(tenant, no_tenant)
    remains = asyncio.run(look_again(start_command(), Receipt.read(receipt), *whose))
    typer.echo("\n".join(shown(rest.line()) for rest in remains) or "nothing is left")
    if any(rest.late for rest in remains):
        raise typer.Exit(1)


async def _report(stage: str, left: int) -> None:
    noun, _, rest = stage.partition(" ")
    typer.echo(shown(f"{many(left, noun.removesuffix('s'), noun)} {rest}"), err=True)


def assign(
    user: RequiredUser, to: To, tenant: Tenant = None, no_tenant: NoTenant = False, conversation: Conversation = None
) -> None:
    """Give a user's messages to another user, such as those of a guest who has signed in.

    --user and either --tenant or --no-tenant are required. Without --conversation, it is all of the user's
    conversations. Episodes, facts and recall follow within seconds, if the workers are running.
    """
    from afterword.reading.memory import Memory
    from afterword.schemas import ConversationAssigned
    from afterword.writing.producer import Producer

    settings, tenant_id = start_command(), tenant_of(tenant, no_tenant)
    if user == to:
        raise typer.BadParameter("must be another user", param_hint="--to")

    async def send() -> int:
        async with Memory.from_settings(settings) as memory, Producer.from_settings(settings) as producer:
            names = [conversation] if conversation else await memory.conversation_ids(user_id=user, tenant_id=tenant_id)
            users = {"from_user_id": user, "user_id": to}
            await producer.send_all(
                [ConversationAssigned(conversation_id=name, tenant_id=tenant_id, **users) for name in names]
            )
            return len(names)

    number = asyncio.run(send())
    typer.echo(f"{many(number, 'conversation', 'conversations')} handed over")
    if not number:
        raise typer.Exit(1)


def export(user: RequiredUser, tenant: Tenant = None, no_tenant: NoTenant = False) -> None:
    """Print everything that is stored about a user as JSON Lines: messages, episodes and rolling summaries.

    --user and either --tenant or --no-tenant are required. The last line has the type `end` and counts the others. If
    the output is redirected to a file, only its owner can read it.
    """
    from afterword.operating.copying import export_lines
    from afterword.streams.private import make_output_private
    from afterword.streams.stores.opening import open_stores

    whose = user, tenant_of(tenant, no_tenant)

    async def print_lines(stores: "Stores") -> None:
        async with aclosing(export_lines(stores.episodes, stores.messages, *whose)) as lines:
            async for line in lines:
                print_json(line)

    make_output_private()
    use(open_stores, start_command(), print_lines)
