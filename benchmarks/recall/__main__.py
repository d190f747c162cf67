"""Prints recall with and without dense vectors: python -m benchmarks.recall

Both by the same search that `Memory.recall` makes, in an index in a directory, of episodes that were
summarized without an LLM; the vectors are those of the embedder that needs no server.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from afterword.streams.stores.index import EpisodeIndex, Query, raw_text, summary_text
from afterword.streams.stores.sqlite_index import SqliteIndex
from afterword.streams.summarizer.embedders import LocalEmbedder
from afterword.streams.summarizer.providers import ExtractiveProvider
from afterword.streams.summarizer.revisions import now, summary_created
from afterword.streams.summarizer.summary import SummaryRequest
from benchmarks.recall.questions import USER, Corpus, Question, dialogues, meetings

DEPTHS = (1, 5, 10)
HALVES = ("chosen on", "held out")
"""Every other question. The weights of the fusion were chosen on the first half; its constant K on both."""
ROLLING_TOKENS = 800


class Figures(NamedTuple):
    """Shares of the questions."""

    found: tuple[float, ...]
    """An episode that answers is among the first 1, 5, 10."""
    reciprocal_rank: float
    """Mean; 0 where none is among the first ten."""


async def measure(corpus: Corpus, directory: Path) -> dict[str, Figures]:
    """Measure without and with dense vectors, on one collection that has them, for each half of the questions."""
    embedder = LocalEmbedder()
    index = SqliteIndex(directory, corpus.name, embedder.model)
    try:
        await fill(index, corpus, embedder)
        words = [await ranked(index, question, None) for question in corpus.questions]
        both = [await ranked(index, q, await embedder.embed(q.text)) for q in corpus.questions]
    finally:
        await index.close()
    return {
        f"{half}, {name}": figures(corpus.questions[start::2], rankings[start::2])
        for start, half in enumerate(HALVES)
        for name, rankings in (("words", words), ("words and vectors", both))
    }


async def fill(index: EpisodeIndex, corpus: Corpus, embedder: LocalEmbedder) -> None:
    for episode in corpus.episodes:
        summary = summary_created(
            episode, await ExtractiveProvider().summarize(SummaryRequest(episode, "", ROLLING_TOKENS)), now()
        )
        text = raw_text(message.content for message in episode.messages)
        await index.put(summary, text, await embedder.embed(summary_text(summary)))


async def ranked(index: EpisodeIndex, question: Question, dense: Sequence[float] | None) -> list[str]:
    query = Query(text=question.text, user_id=USER, tenant_id=None, k=max(DEPTHS))
    return [hit.episode_id for hit in await index.search(query, dense)]


def figures(questions: Sequence[Question], rankings: Sequence[Sequence[str]]) -> Figures:
    ranks = [
        next((rank for rank, found in enumerate(ranking, start=1) if found in question.answers), None)
        for question, ranking in zip(questions, rankings, strict=True)
    ]
    found = tuple(sum(rank is not None and rank <= depth for rank in ranks) / len(ranks) for depth in DEPTHS)
    return Figures(found, sum(1 / rank for rank in ranks if rank) / len(ranks))


def main() -> None:
    for corpus in (meetings(), dialogues()):
        print(f"\n{corpus.name}: {len(corpus.questions)} questions, {len(corpus.episodes)} episodes of one user")
        with tempfile.TemporaryDirectory() as directory:
            measured = asyncio.run(measure(corpus, Path(directory)))
        for name, found in measured.items():
            shares = "  ".join(f"recall@{k} {share:.3f}" for k, share in zip(DEPTHS, found.found, strict=True))
            print(f"  {name:<28} {shares}  MRR {found.reciprocal_rank:.3f}")


if __name__ == "__main__":
    main()
