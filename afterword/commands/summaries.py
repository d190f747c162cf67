"""Commands about stored summaries: redo them, try another prompt on them, and add up what they used."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from afterword.commands.common import Conversation, DryRun, Json, Since, Yes, start_command
from afterword.terminal import counting, print_json, print_table

if TYPE_CHECKING:
    from afterword.operating.redo import RedoCounts, RedoPlan
    from afterword.operating.trial import TrialSummary
    from afterword.streams.stores.episodes import UsageTotals

app = typer.Typer(help="Redo stored summaries.", no_args_is_help=True)

prompt_app = typer.Typer(help="Try prompts before they are used.", no_args_is_help=True)

File = Annotated[Path | None, typer.Argument(metavar="FILE", help="Prompt template; default: the current prompt.")]
Size = Annotated[int, typer.Option("--sample", min=1, max=10_000, help="Number of stored summaries.")]
Model = Annotated[str | None, typer.Option(help="Model to ask; default: the current one.")]
Show = Annotated[int, typer.Option(min=0, help="Texts to print side by side, the worst first.")]
By = Annotated[
    Literal["tenant", "user", "model", "day"], typer.Option("--by", help="What to group by. Days are in UTC.")
]
USAGE_COLUMNS = ("episodes", "prompt tokens", "cached", "answer tokens", "seconds")


@app.command()
def redo(
    since: Since = None,
    conversation: Conversation = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Have the LLM rewrite summaries that were made with another prompt or model.

    The summarizers do the work from the archived messages, within their budgets; run this with their settings. If you
    stop it, they finish at most 100 summaries more; run it again to continue. Exit 1 if some summaries stay as they
    are.
    """
    from afterword.operating.redo import plan
    from afterword.operating.redo import redo as run

    settings = start_command()
    found = asyncio.run(plan(settings, since, conversation))
    if dry_run or not found.episodes:
        _print_plan(found, as_json)
        return
    if not yes:
        _print_plan(found, as_json=False, err=True)
        typer.confirm(f"Let the LLM redo {found.episodes:,} summaries?", err=True, abort=True)
    with counting() as show:

        def progress(so_far: "RedoCounts") -> None:
            show("summaries", sum(vars(so_far).values()), found.episodes)

        done = asyncio.run(run(settings, since, conversation, progress))
    if as_json:
        print_json(asdict(done))
    else:
        others = (
            (done.kept, "kept; the summarizers' log event redo_skipped says why"),
            (done.not_archived, "kept, because their messages are not in the archive"),
            (done.gone, "deleted meanwhile"),
        )
        typer.echo(", ".join([f"{done.redone:,} redone", *(f"{number:,} {what}" for number, what in others if number)]))
    if done.kept:
        raise typer.Exit(1)


def _print_plan(found: "RedoPlan", as_json: bool, err: bool = False) -> None:
    if as_json:
        made_by = [{**maker._asdict(), "summaries": number} for maker, number in found.by_maker.items()]
        print_json({"summaries": found.episodes, "message_tokens": found.tokens, "made_by": made_by})
        return
    if found.by_maker and not err:
        rows = [(maker.model, maker.prompt_version or "", f"{number:,}") for maker, number in found.by_maker.items()]
        print_table(("model", "prompt", "summaries"), rows)
    typer.echo(f"{found.episodes:,} summaries of {found.tokens:,} tokens of messages", err=err)


@prompt_app.command("try")
def try_prompt(
    file: File = None,
    size: Size = 50,
    model: Model = None,
    show: Show = 5,
    as_json: Json = False,
) -> None:
    """Summarize stored episodes with another prompt or model, and compare. Nothing is stored.

    Exit 1 if the candidate is worse: if more of its summaries fail the quality gate, or if less of their content is in
    the messages.
    """
    from afterword.operating.trial import compare

    if file is None and model is None:
        raise typer.BadParameter("give a prompt FILE, --model, or both")

    settings = start_command()
    with counting() as progress:
        found = asyncio.run(compare(settings, file, model, size, lambda done: progress("summaries", done, size)))
    if as_json:
        print_json({"worse": found.is_worse, "measures": found.measures, **asdict(found)})
    else:
        rows = [(name, f"{before:.3f}", f"{after:.3f}") for name, (before, after) in found.measures.items()]
        print_table((f"mean of {len(found.trials):,}", "stored", "candidate"), rows)
        texts = [(one.episode_id, _text(one.stored), _text(one.candidate)) for one in found.trials[:show]]
        if texts:
            typer.echo("")
            print_table(("episode", "stored", "candidate"), texts)
        if found.not_archived:
            typer.echo(f"{found.not_archived:,} sampled episodes have messages that are not in the archive", err=True)
        typer.echo("the candidate is worse" if found.is_worse else "the candidate is not worse")
    if found.is_worse:
        raise typer.Exit(1)


def _text(made: "TrialSummary") -> str:
    refused = f" ({made.refused})" if made.refused else ""
    return f"[{made.grounding:.2f}{refused}, {made.model}] {made.long_summary}"


def usage(by: By = "model", as_json: Json = False) -> None:
    """Add up the tokens, seconds and cost of the last revision of every stored episode.

    The cost uses the current AFTERWORD_LLM__PROMPT_PRICE, __CACHED_PRICE and __ANSWER_PRICE.
    """
    from afterword.streams.stores.opening import open_stores

    settings = start_command()

    async def read() -> "list[UsageTotals]":
        async with open_stores(settings) as stores:
            return await stores.episodes.usage(by)

    found = asyncio.run(read())
    costs = [settings.llm.cost(*one[2:5]) for one in found]
    if as_json:
        named = [{by if name == "group" else name: value for name, value in one._asdict().items()} for one in found]
        print_json([{**one, "cost": cost} for one, cost in zip(named, costs, strict=True)])
        return
    has_cost = any(cost is not None for cost in costs)
    rows = [
        [one.group or "–", *(f"{number:,.0f}" for number in one[1:]), *([f"{cost:,.2f}"] if cost is not None else [])]
        for one, cost in zip(found, costs, strict=True)
    ]
    print_table([by, *USAGE_COLUMNS, *(["cost"] if has_cost else [])], rows, none="no episodes are stored")
