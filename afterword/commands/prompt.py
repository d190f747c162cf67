"""`afterword prompt`: compare candidate prompts."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afterword.commands.common import Json, print_json, print_table, start_command

if TYPE_CHECKING:
    from afterword.operating.trial import Comparison, Measures, TrialSummary

app = typer.Typer(help="Try prompts before they are used.", no_args_is_help=True)

PROGRESS_EVERY = 10

File = Annotated[Path | None, typer.Argument(metavar="FILE", help="Prompt template; default: the current prompt.")]
Size = Annotated[int, typer.Option("--sample", min=1, max=10_000, help="Number of stored summaries.")]
Model = Annotated[str | None, typer.Option(help="Model to ask; default: the current one.")]
Seed = Annotated[int, typer.Option(help="The same seed chooses the same summaries.")]
Show = Annotated[int, typer.Option(min=0, help="Texts to print side by side, the worst first.")]
PromptPrice = Annotated[float | None, typer.Option(min=0, help="Price of a million prompt tokens.")]
AnswerPrice = Annotated[float | None, typer.Option(min=0, help="Price of a million answer tokens.")]


@app.callback()
def prompt() -> None:
    """Try prompts before they are used."""


@app.command("try")
def try_prompt(
    file: File = None,
    size: Size = 50,
    model: Model = None,
    seed: Seed = 0,
    show: Show = 5,
    prompt_price: PromptPrice = None,
    answer_price: AnswerPrice = None,
    as_json: Json = False,
) -> None:
    """Summarize stored episodes with another prompt or model, and compare. Nothing is stored.

    Exit 1 if the candidate is worse: if more summaries fail the quality gate, or if less of them is in the messages.
    """
    from afterword.operating.trial import compare

    if file is None and model is None:
        raise typer.BadParameter("give a prompt FILE, --model, or both")
    if (prompt_price is None) != (answer_price is None):
        raise typer.BadParameter("give both prices or none")
    prices = None if prompt_price is None or answer_price is None else (prompt_price, answer_price)
    found = asyncio.run(compare(start_command(), file, model, size, seed, _progress))
    if as_json:
        print_json(_document(found, prices))
    else:
        _print(found, prices, show)
    if found.is_worse:
        raise typer.Exit(1)


def _progress(done: int) -> None:
    if done % PROGRESS_EVERY == 0:
        typer.echo(f"{done} summaries", err=True)


def _document(found: "Comparison", prices: tuple[float, float] | None) -> dict[str, Any]:
    def side(measures: "Measures") -> dict[str, Any]:
        return asdict(measures) | ({"cost_of_1000": measures.cost(*prices)} if prices else {})

    def made(one: "TrialSummary") -> dict[str, Any]:
        texts = {name: value for name, value in vars(one).items() if name not in ("maker", "usage")}
        return {**texts, **one.maker._asdict(), "usage": one.usage.model_dump()}

    return {
        "worse": found.is_worse,
        "not_archived": found.not_archived,
        "stored": side(found.stored),
        "candidate": side(found.candidate),
        "episodes": [
            {
                "episode_id": trial.episode_id,
                "stored": made(trial.stored),
                "candidate": made(trial.candidate),
            }
            for trial in found.trials
        ],
    }


def _print(found: "Comparison", prices: tuple[float, float] | None, show: int) -> None:
    both = found.stored, found.candidate
    rows = [
        ("model", *(side.model for side in both)),
        ("prompt", *(side.prompt_version or "" for side in both)),
        ("summaries", *(f"{side.summaries:,}" for side in both)),
        ("refused by the gate", *(f"{side.refused:,}" for side in both)),
        ("grounding", *(f"{side.grounding:.3f}" for side in both)),
        ("unsupported, each", *(f"{side.unsupported:.2f}" for side in both)),
        ("tokens of the long summary", *(f"{side.long_tokens:.0f}" for side in both)),
        ("tokens of the short summary", *(f"{side.short_tokens:.0f}" for side in both)),
        ("tokens of prompts, each", *(f"{side.prompt_tokens:.0f}" for side in both)),
        ("tokens of answers, each", *(f"{side.answer_tokens:.0f}" for side in both)),
    ]
    if prices:
        rows.append(("cost of 1,000", *(f"{side.cost(*prices):.2f}" for side in both)))
    print_table(("", "stored", "candidate"), rows)
    texts = [(t.episode_id, _text(t.stored), _text(t.candidate)) for t in found.trials[:show]]
    if texts:
        typer.echo("")
        print_table(("episode", "stored", "candidate"), texts)
    if found.not_archived:
        typer.echo(f"{found.not_archived:,} sampled episodes have messages that are not in the archive", err=True)
    typer.echo("the candidate is worse" if found.is_worse else "the candidate is not worse")


def _text(made: "TrialSummary") -> str:
    refused = f" ({made.refused})" if made.refused else ""
    return f"[{made.grounding:.2f}{refused}] {made.long_summary}"
