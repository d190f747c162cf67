"""Facts of the golden set that summaries hold: those without an LLM, beginnings of episodes, and those of an LLM."""

import asyncio

from rich.console import Console
from rich.table import Table

from afterword.golden import GoldenScore, golden_episodes, score_writer
from afterword.golden.episodes import KINDS
from afterword.schemas import Quality, Usage
from afterword.streams.settings import Llm, load_settings
from afterword.streams.summarizer.providers import maker_of
from afterword.streams.summarizer.sentences import cut_at_word
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from afterword.trial import golden_score

FIRST_CHARACTERS = 250
"""About as long as a short summary; a long one has up to 1,000, of episodes that have 1,500 on average."""


async def beginning(request: SummaryRequest) -> Summary:
    """Take the beginning of an episode for its summary."""
    said = "\n".join(message.content for message in request.episode.messages)
    text = cut_at_word(said, FIRST_CHARACTERS)
    return Summary("-", "-", text, "-", Quality(source="fallback", reason="beginning"), "beginning", Usage())


def show(console: Console) -> None:
    """Set AFTERWORD_LLM__PROVIDER and what else the LLM needs, and its summaries are scored, too."""
    settings = load_settings()
    scores: dict[str, GoldenScore] = {
        f"first {FIRST_CHARACTERS} characters": asyncio.run(score_writer(beginning, golden_episodes())),
        "extractive": asyncio.run(golden_score(settings.model_copy(update={"llm": Llm()}))),
    }
    if settings.llm.provider != "extractive":
        scores[maker_of(settings).model] = asyncio.run(golden_score(settings))
    facts = sum(len(golden.facts) for golden in golden_episodes())
    table = Table(
        "summaries", "facts", *KINDS, "right figures", "without a summary", title=f"Golden set, {facts} facts"
    )
    for name, found in scores.items():
        kinds = (f"{found.recall_by_kind[kind]:.3f}" for kind in KINDS)
        right = f"{found.figure_precision:.3f} of {found.figures}"
        table.add_row(name, f"{found.recall:.3f}", *kinds, right, str(found.failures.total()))
    console.print(table)
