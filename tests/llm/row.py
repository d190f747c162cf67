"""Prints what the LLM of the settings makes of the golden set, as a row of docs/quality.md: `make test-llm`.

Each of the sixty episodes is summarized once, as the summarizer does it: with the gate, a second question after a
refusal, and the fallback without the LLM.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Mapping
from functools import reduce
from operator import add
from statistics import mean

from opentelemetry.trace import NoOpTracer

from afterword.streams.errors import AfterwordError
from afterword.streams.settings import Settings, load_settings
from afterword.streams.summarizer.summarizer import make_summarizer
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from afterword.streams.telemetry.metrics import Metrics
from benchmarks.data import golden
from benchmarks.measuring import show
from benchmarks.quality import ROLLING_TOKENS, is_held

Row = Mapping[str, str]


async def row_of(settings: Settings, episodes: int | None = None) -> tuple[Row, Counter[str]]:
    """Return the row of these settings' LLM for so many episodes (all by default), and how often it fell back for which
    reason.
    """
    summarizer = make_summarizer(settings, None, Metrics("row", ""), NoOpTracer())
    slots = asyncio.Semaphore(settings.llm.max_concurrency)

    async def summary_of(request: SummaryRequest) -> Summary:
        async with slots:
            return await summarizer.summarize(request)

    sample = list(golden())[:episodes]
    try:
        made = await asyncio.gather(*(summary_of(SummaryRequest(one, "", ROLLING_TOKENS)) for one, _ in sample))
    finally:
        await summarizer.close()
    accepted = [summary.quality.source == "llm" for summary in made]
    held = [
        is_llms and is_held(fact, summary.of_episode)
        for is_llms, summary, (_, facts) in zip(accepted, made, sample, strict=True)
        for fact in facts
    ]
    usage = reduce(add, (summary.usage for summary in made))
    price = settings.llm.cost(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
    row = {
        "model": settings.llm.model or settings.llm.provider,
        "accepted": f"{sum(accepted)} of {len(made)}",
        "facts": f"{mean(held):.3f}",
        "tokens": f"{usage.prompt_tokens / len(made):,.0f} + {usage.completion_tokens / len(made):,.0f}",
        "seconds": f"{usage.seconds / len(made):.1f}",
        "price": "–" if price is None else settings.llm.cost_shown(1000 * price / len(made)),
    }
    return row, Counter(str(one.quality.reason) for one in made if one.quality.source != "llm")


def main() -> None:
    try:
        settings = load_settings()
        if settings.llm.provider == "extractive":
            sys.exit("no LLM is configured: set AFTERWORD_LLM__PROVIDER, see docs/how-to/llm.md")
        row, refused = asyncio.run(row_of(settings))
    except AfterwordError as error:
        sys.exit(str(error))
    reasons = ", ".join(f"{count} {reason}" for reason, count in refused.most_common())
    show("Summaries of the golden set", [row], f"fell back: {reasons or 'never'}")


if __name__ == "__main__":
    main()
