"""Commands that set up, verify and repair a deployment and its stored summaries."""

import asyncio
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from afterword.commands.common import (
    Conversation,
    DryRun,
    Json,
    Since,
    Yes,
    find_config,
    next_step,
    start,
    start_command,
    use,
)
from afterword.terminal import counting, print_json, print_table
from afterword_text.visible import many, shown

if TYPE_CHECKING:
    from afterword.operating.redo import TrialSummary
    from afterword.streams.summarizer.timers import RedoCounts

NOTHING = "–"

Limit = Annotated[int | None, typer.Option(min=1, help="Redo at most this many more.")]
SqliteFile = Annotated[Path, typer.Argument(help="SQLite file to copy from.")]
Directory = Annotated[Path, typer.Argument(help="Directory to write to.")]
RegistryUrl = Annotated[str, typer.Argument(metavar="URL", help="Registry, such as https://user:password@host:8081.")]
Timeout = Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Maximum wait for the summary.")]
Wait = Annotated[
    float,
    typer.Option(
        min=0, metavar="SECONDS", help="First wait up to this long for everything to be consumed and summarized."
    ),
]
AtMost = Annotated[float, typer.Option("--timeout", min=0, metavar="SECONDS", help="Maximum wait; then exit 1.")]
All = Annotated[bool, typer.Option("--all", help="Index every episode, even if it is indexed already.")]
File = Annotated[Path | None, typer.Argument(metavar="FILE", help="Prompt template; default: the current prompt.")]
Size = Annotated[int, typer.Option("--sample", min=1, max=10_000, help="Number of stored summaries.")]
Model = Annotated[str | None, typer.Option(help="Model to ask; default: the current one.")]
Show = Annotated[int, typer.Option(min=0, help="Texts to print side by side, the worst first.")]
By = Annotated[
    Literal["tenant", "user", "model", "outcome", "day"],
    typer.Option("--by", help="What to group by. Days are in UTC."),
]
USAGE_COLUMNS = ("episodes", "prompt tokens", "cached", "answer tokens", "seconds")


def create_topics() -> None:
    """Create missing topics and compare the others. It can be repeated. Exit 1 if a topic is wrong."""
    from afterword.operating.topics import ensure_topics

    reports = asyncio.run(ensure_topics(start_command()))
    width = max(len(report.name) for report in reports)
    for report in reports:
        detail = f": {report.detail}" if report.detail else ""
        typer.echo(shown(f"{report.name:<{width}}  {report.status}{detail}"))
        if report.warning:
            typer.echo(shown(f"{'':<{width}}  warning: {report.warning}"))
    if not all(report.fine for report in reports):
        raise typer.Exit(1)


def wait_for_topics(timeout: AtMost = 240) -> None:
    """Wait until Kafka accepts the credentials and every topic exists. Print what is missing."""
    from afterword.operating.topics import await_topics

    settings = start_command()
    count = asyncio.run(await_topics(settings, timeout, lambda reason: typer.echo(shown(f"waiting: {reason}"))))
    typer.echo(f"all {count} topics exist")


def show_config(as_json: Json = False) -> None:
    """Print every effective setting without secrets. A star marks those that were set."""
    from afterword.streams.settings import shown_as_dict, shown_settings

    find_config()
    settings = start()
    if as_json:
        print_json(shown_as_dict(settings))
        return
    found = list(shown_settings(settings))
    width = max(len(variable) for variable, *_ in found)
    for variable, value, was_set in found:
        typer.echo(shown(f"{'*' if was_set else ' '} {variable:<{width}}  {NOTHING if value is None else value}"))


def export_schemas(directory: Directory = Path("schemas/generated")) -> None:
    """Write a JSON Schema (2020-12) for each event, and an AsyncAPI 3.1 document of the configured topics."""
    from afterword.operating.contract import documents
    from afterword.streams.settings import load_settings

    directory.mkdir(parents=True, exist_ok=True)
    for name, content in documents(load_settings().kafka).items():
        (directory / name).write_bytes(content)
        typer.echo(str(directory / name))


def register_schemas(url: RegistryUrl) -> None:
    """Register the schema of each topic's events with a schema registry, as JSON Schema. It can be repeated."""
    from afterword.operating.contract import register

    for subject, schema_id in asyncio.run(register(url, start_command().kafka)).items():
        typer.echo(shown(f"{schema_id}  {subject}"))


def check(as_json: Json = False) -> None:
    """Verify that Kafka, its topics, the stores and the LLM are reachable and configured. Exit 1 if any is not.

    It also checks the permissions for transactional ids and Qdrant's version. It warns about API keys that would be
    sent unencrypted to another machine, and about topic limits that do not fit.
    """
    from afterword.operating.checks import check_all

    results = asyncio.run(check_all(start_command()))
    rows = [(result, result.detail + (next_step(result.error) if result.error else "")) for result in results]
    if as_json:
        print_json([{"name": result.name, "result": result.word, "detail": detail} for result, detail in rows])
    else:
        for result, detail in rows:
            typer.echo(shown(f"{result.word:<4}  {result.name:<8} {detail}"))
    if any(result.word == "FAIL" for result in results):
        raise typer.Exit(1)


def smoke(timeout: Timeout = 120) -> None:
    """Send a short conversation and wait for its summary; both stay in topics and stores. Exit 1 on timeout."""
    from afterword.operating.checks import smoke as run

    began = time.monotonic()
    event = asyncio.run(run(start_command(), timeout))
    seconds = time.monotonic() - began
    typer.echo(shown(f"{event.event_id} after {seconds:.1f} s, by {event.quality.source}: {event.short_summary}"))


def audit(wait: Wait = 0, as_json: Json = False) -> None:
    """Report every message that is lost, duplicated, out of order or not yet summarized.

    It reads all topics and stores, and can run beside the workers. Exit 1 if anything is lost, duplicated or
    conflicting; exit 2 if --wait timed out, and name what was left.
    """
    from afterword.operating.audit import run

    settings = start_command()
    with counting() as progress:
        report = asyncio.run(run(settings, wait_seconds=wait, progress=progress))
    if as_json:
        print_json(report.as_dict())
    else:
        typer.echo("\n".join(report.lines()))
    if report.findings:
        raise typer.Exit(1)
    if report.missing:
        raise typer.Exit(2)


def rebuild_index(everything: All = False) -> None:
    """Index stored episodes that are missing from the search index, or with --all every episode. It can be repeated.

    It also removes from the index what the stores do not have.
    """
    from afterword.operating.rebuild import rebuild_index

    settings = start_command()
    with counting() as show:
        done = asyncio.run(rebuild_index(settings, lambda d: show("episodes", d.seen, d.total), everything))
    others = "; the others are indexed or deleted" if done.written < done.seen else ""
    typer.echo(f"{done.written} of {many(done.seen, 'episode', 'episodes')} written{others}")
    if done.removed:
        typer.echo(f"{many(done.removed, 'episode', 'episodes')} removed from the index: not in the stores")
    if done.incomplete:
        typer.echo(f"{done.incomplete} episodes have messages that are not yet archived", err=True)


def copy_stores(file: SqliteFile) -> None:
    """Copy messages, episodes, conversations and keys from an SQLite file to MongoDB. It can be repeated.

    Stop the workers first, and rebuild the search index afterwards.
    """
    from afterword.operating.copying import copy_stores

    settings = start_command()
    with counting() as show:
        done = asyncio.run(copy_stores(settings, file, lambda so_far: show("messages", so_far.messages, None)))
    typer.echo(", ".join(f"{count} {name}" for name, count in asdict(done).items()))


def rebuild(yes: Yes = False) -> None:
    """Rebuild the segmenter's state after its changelogs were lost and recreated empty. Stop the segmenters first.

    Conversations continue after their last episode. Messages are read again; those in an episode are skipped.
    """
    from afterword.operating.rebuild import rebuild_state as run

    settings = start_command()
    if not yes:
        typer.confirm(
            "Rebuild the state of every partition without one? The segmenters must be stopped.", err=True, abort=True
        )
    for done in asyncio.run(run(settings)):
        if done.left:
            typer.echo(f"partition {done.partition}: already has state, left unchanged")
        else:
            typer.echo(
                f"partition {done.partition}: {done.conversations:,} conversations continue, reading from offset"
                f" {done.source:,}"
            )


def redo(
    since: Since = None,
    conversation: Conversation = None,
    limit: Limit = None,
    refused: Annotated[bool, typer.Option("--refused", help="Only those whose prompt the LLM refused.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Have the LLM rewrite summaries that were made with another prompt or model.

    The command marks them as due and ends. The summarizers redo them from the archived messages, within their budgets;
    run this with their settings. --dry-run shows how many are left.
    """
    from afterword.operating.redo import redo as run

    settings = start_command()
    counts = asyncio.run(run(settings, since, conversation, 0, refused=refused))
    if counts.summaries and not dry_run:
        if not yes:
            which = "them" if limit is None else f"up to {limit:,}"
            typer.confirm(f"{_redo_line(counts)}. Let the LLM redo {which}?", err=True, abort=True)
        counts = asyncio.run(run(settings, since, conversation, limit, refused=refused))
    if as_json:
        made_by = [{**maker._asdict(), "summaries": number} for maker, number in counts.by_maker.items()]
        print_json({**vars(counts), "by_maker": made_by})
        return
    if counts.by_maker:
        rows = [(maker.model, maker.prompt_version or "", f"{number:,}") for maker, number in counts.by_maker.items()]
        print_table(("model", "prompt", "summaries"), rows)
    typer.echo(_redo_line(counts))


def _redo_line(counts: "RedoCounts") -> str:
    waiting = f", {counts.waiting:,} of them waiting for a summarizer" if counts.waiting else ""
    return f"{counts.summaries:,} summaries of {counts.message_tokens:,} tokens of messages{waiting}"


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
    from afterword.operating.redo import compare

    if file is None and model is None:
        raise typer.BadParameter("give a prompt FILE, --model, or both")

    settings = start_command()
    with counting() as progress:
        comparison = asyncio.run(compare(settings, file, model, size, lambda done: progress("summaries", done, size)))
    if as_json:
        print_json({"worse": comparison.is_worse, "measures": comparison.measures, "left_out": comparison.left_out})
    else:
        rows = [(name, f"{before:.3f}", f"{after:.3f}") for name, (before, after) in comparison.measures.items()]
        print_table((f"mean of {len(comparison.trials):,}", "stored", "candidate"), rows)
        texts = [(trial.episode_id, _text(trial.stored), _text(trial.candidate)) for trial in comparison.trials[:show]]
        if texts:
            typer.echo("")
            print_table(("episode", "stored", "candidate"), texts)
        if comparison.left_out:
            missing = "left out, because their messages are no longer in the archive"
            typer.echo(f"{many(comparison.left_out, 'episode', 'episodes')} {missing}", err=True)
        typer.echo("the candidate is worse" if comparison.is_worse else "the candidate is not worse")
    if comparison.is_worse:
        raise typer.Exit(1)


def _text(made: "TrialSummary") -> str:
    refused = f" ({made.refused})" if made.refused else ""
    return f"[{made.grounding:.2f}{refused}, {made.model}] {made.long_summary}"


def usage(by: By = "model", as_json: Json = False) -> None:
    """Add up the tokens, seconds and cost of all calls of the LLM for the stored episodes.

    The cost uses the current AFTERWORD_LLM__PROMPT_PRICE, __CACHED_PRICE and __ANSWER_PRICE.
    """
    from afterword.streams.stores.opening import open_stores

    settings = start_command()
    totals = use(open_stores, settings, lambda stores: stores.episodes.usage(by))
    costs = [settings.llm.cost(*group[2:5]) for group in totals]
    if as_json:
        named = [
            {by if name == "group" else name: value for name, value in group._asdict().items()} for group in totals
        ]
        print_json([{**group, "cost": cost} for group, cost in zip(named, costs, strict=True)])
        return
    has_cost = any(cost is not None for cost in costs)
    rows = [
        [
            group.group or "–",
            *(f"{number:,.0f}" for number in group[1:]),
            *([settings.llm.cost_shown(cost)] if cost is not None else []),
        ]
        for group, cost in zip(totals, costs, strict=True)
    ]
    print_table([by, *USAGE_COLUMNS, *(["cost"] if has_cost else [])], rows, none="no episodes are stored")


def get_model(
    name: Annotated[str, typer.Argument(help="Repository on the hub, such as intfloat/multilingual-e5-small.")],
    directory: Annotated[Path | None, typer.Option(help="Folder to fill; default: models/NAME.")] = None,
    revision: Annotated[str | None, typer.Option(help="Commit, tag or branch; default: the newest commit.")] = None,
) -> None:
    """Fetch a sentence encoder from the Hugging Face hub, once. Nothing of it is run."""
    from afterword.streams.summarizer.embedders import fetch_model

    folder = directory or Path("models", name.rpartition("/")[2])
    commit = fetch_model(name, folder, revision)
    typer.echo(f"{shown(name)} at {commit} is in {folder}. To use it:")
    typer.echo(f"  export AFTERWORD_EMBEDDER__PROVIDER=onnx AFTERWORD_EMBEDDER__DIRECTORY={folder}")
    typer.echo("  afterword index rebuild --all")
