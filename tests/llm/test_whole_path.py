"""Twenty real dialogues through the whole path with a real, bad LLM: what is stored is nevertheless right."""

from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

import pytest
from rich.console import Console
from rich.table import Table

from afterword.schemas import EpisodeClosed, SummaryCreated
from afterword.streams.roles import ALWAYS_RUN
from afterword.streams.settings import Settings
from afterword.streams.stores.episodes import living
from afterword.streams.stores.opening import open_stores
from afterword.streams.summarizer.providers import ExtractiveProvider
from afterword.streams.summarizer.summarizer import instructions, source_of
from afterword.streams.summarizer.summary import SummaryRequest
from afterword_text.extractive import summarize
from afterword_text.gate import assess
from afterword_text.texts import Texts
from tests.e2e.deployment import deployed
from tests.llm.conftest import MODEL, Llama

DIALOGUES = Path(__file__).parents[1] / "data" / "dialogues.jsonl"
COUNT = 20
WAIT_SECONDS = 1500
ANSWER_TOKENS = 200
"""Enough for a short answer to each question; a small model that does not end is cut off soon."""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("preset", ["episodic", "plain_3_5"])
async def test_every_stored_summary_is_grounded_or_a_reasoned_fallback(
    llama: Llama, make_settings: Callable[..., Settings], tmp_path: Path, preset: str
) -> None:
    """`episodic` asks for JSON by a schema, which the server turns into a grammar; `plain_3_5` for plain text."""
    llm = llama.settings(max_output_tokens=ANSWER_TOKENS).model_dump(exclude_defaults=True)
    settings = make_settings(
        kafka={"partitions": 2},
        episodes={"auto_summarize": False, "topic_shift": "off"},  # only its end closes a dialogue's one episode
        llm=llm,
        summarizer={"preset": preset},
        retry={"attempts": 0},  # a fallback stays
    )
    dialogues = sorted(DIALOGUES.read_bytes().splitlines(), key=len)[:COUNT]
    async with deployed(settings, tmp_path) as deployment:
        for role in ALWAYS_RUN:
            deployment.start(role)
        produced = await deployment.produce(dialogues)
        report = await deployment.audit(WAIT_SECONDS)
        assert report.clean, report.lines()
        assert report.messages["in_an_episode"] == produced.messages
        assert report.summaries["stored"] == report.summaries["announced"] == report.episodes["total"] == COUNT
        closed = {episode.episode_id: episode for episode in await deployment.episodes()}
    stored = await stored_summaries(settings)
    show(preset, stored)
    assert stored.keys() == closed.keys()
    for name, summary in stored.items():
        if summary.quality.source == "llm":
            check_grounded(summary, closed[name], settings)
        else:
            check_fallback(summary, closed[name], settings)


async def stored_summaries(settings: Settings) -> dict[str, SummaryCreated]:
    async with AsyncExitStack() as closing:
        stores = await closing.enter_async_context(open_stores(settings))
        found = await stores.episodes.page(None, 2 * COUNT)
    return {name: stored.summary for name, stored in living(found).items()}


def check_grounded(summary: SummaryCreated, episode: EpisodeClosed, settings: Settings) -> None:
    """Check an LLM's summary: the gate, applied to it again, finds nothing."""
    request = SummaryRequest(episode, "", settings.rolling.max_tokens)
    texts = Texts(summary.title, summary.short_summary, summary.long_summary)
    found = assess(source_of(request, instructions(settings)), texts)
    assert found.problems == (), (summary.episode_id, found)
    assert (summary.model, summary.quality.reason) == (MODEL, None)
    assert summary.prompt_version
    assert summary.usage.prompt_tokens > 0
    assert summary.usage.completion_tokens > 0


def check_fallback(summary: SummaryCreated, episode: EpisodeClosed, settings: Settings) -> None:
    """Check a fallback: it has a reason, and equals what is made without an LLM."""
    assert summary.quality.reason is not None
    assert summary.model == ExtractiveProvider.name
    made = summarize(episode, "", settings.rolling.max_tokens)
    texts = (summary.title, summary.short_summary, summary.long_summary)
    assert texts == (made.title, made.short_summary, made.long_summary)


def show(preset: str, stored: dict[str, SummaryCreated]) -> None:
    """Print the table of docs/quality.md."""
    summaries = list(stored.values())
    reasons = Counter(one.quality.reason for one in summaries if one.quality.reason)
    accepted = [one for one in summaries if one.quality.source == "llm"]
    table = Table("preset", "accepted", "grounding", "seconds, median", "prompt tokens", "answer tokens", "fallbacks")
    table.add_row(
        preset,
        f"{len(accepted)} of {len(summaries)}",
        f"{median(one.quality.grounding for one in accepted):.2f}" if accepted else "",
        f"{median(one.usage.seconds for one in summaries):.0f}",
        f"{median(one.usage.prompt_tokens for one in summaries):.0f}",
        f"{median(one.usage.completion_tokens for one in summaries):.0f}",
        ", ".join(f"{reason} {count}" for reason, count in reasons.most_common()),
    )
    console = Console(width=140)
    console.print()
    console.print(table)
    for one in accepted:
        console.print(f"{one.title}: {one.long_summary}", markup=False, highlight=False, soft_wrap=True)
