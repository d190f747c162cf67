"""Prints what recall finds: python -m benchmarks.recall

By `Memory.recall` itself, with an index in a directory and the other stores in memory, of episodes that were
summarized without an LLM; the vectors are those of the embedder that needs no server. A reranker that the environment
configures (AFTERWORD_RERANKER__BASE_URL) has rows of its own.
"""

import argparse
import asyncio
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from afterword.memory import Memory
from afterword.recalling.reranking import open_reranking
from afterword.recalling.search import Search
from afterword.schemas import EpisodeClosed, MessageCreated
from afterword.streams.settings import load_settings
from afterword.streams.stores.episodes import stored_episode
from afterword.streams.stores.index import Query, Recalled, raw_text, summary_text
from afterword.streams.stores.messages import ArchivedMessage
from afterword.streams.stores.sqlite_index import SqliteIndex
from afterword.streams.summarizer.embedders import LocalEmbedder
from afterword.streams.summarizer.providers import ExtractiveProvider
from afterword.streams.summarizer.revisions import now, summary_created
from afterword.streams.summarizer.summary import SummaryRequest
from afterword.streams.telemetry import Metrics
from benchmarks.recall.corpora import Corpus, Question, dialogues, histories, meetings, sessions
from benchmarks.recall.histories import SEED
from tests.doubles.stores import MemoryEpisodes, MemoryMessages

DEPTH = 10
ROLLING_TOKENS = 800
SEVERAL = "several"
"""Category whose questions each have several answers, all of which are wanted."""
FIRST_AIM, FIVE_AIM, SEVERAL_AIM = 0.64, 0.855, 0.64
"""Aims of R@1 and R@5, and of R@5 for several answers. They were set on other data, which is not here."""


class Way(NamedTuple):
    """A way to search."""

    name: str
    vectors: bool = False


WAYS = (Way("words"), Way("words and vectors", vectors=True))


class Figures(NamedTuple):
    """Means over questions."""

    first: float
    """Share of those with an answer in the first place."""
    five: float
    """Share of those with an answer among the first five; with several answers, the share of these."""
    reciprocal_rank: float
    """Of the first answer; 0 where none is among the first ten."""


async def measured(corpus: Corpus, directory: Path) -> Mapping[Way, Mapping[str, Figures]]:
    """Figures by way and category."""
    embedder, index = LocalEmbedder(), SqliteIndex(directory, corpus.name, LocalEmbedder.model)
    episodes, messages = MemoryEpisodes(), MemoryMessages()
    try:
        for closed in corpus.episodes:
            request = SummaryRequest(closed, "", ROLLING_TOKENS)
            summary = summary_created(closed, await ExtractiveProvider().summarize(request), now())
            await episodes.add(stored_episode(closed, summary))
            await messages.put_many(list(archived(closed)))
            text = raw_text(message.content for message in closed.messages)
            await index.put(summary, text, await embedder.embed(summary_text(summary)))
        found: dict[Way, Mapping[str, Figures]] = {}
        for way in WAYS:
            search = partial(with_vectors, index, embedder) if way.vectors else index.search
            found[way] = await figures_of(corpus, partial(Memory, episodes, messages, search))
        return {**found, **await with_reranker(corpus, episodes, messages, index.search)}
    finally:
        await index.close()


def archived(closed: EpisodeClosed) -> Iterator[ArchivedMessage]:
    for offset, message in enumerate(closed.messages):
        fields = message.model_dump(include=set(MessageCreated.model_fields))
        yield ArchivedMessage(MessageCreated(**fields, conversation_id=closed.conversation_id), 0, offset)


async def with_vectors(index: SqliteIndex, embedder: LocalEmbedder, query: Query) -> list[Recalled]:
    return await index.search(query, await embedder.embed(query.text))


async def with_reranker(
    corpus: Corpus, episodes: MemoryEpisodes, messages: MemoryMessages, search: Search
) -> Mapping[Way, Mapping[str, Figures]]:
    """Figures with the reranker that the environment configures, if any."""
    settings, metrics = load_settings(), Metrics("benchmark", "")
    reranking = open_reranking(settings, metrics)
    if reranking is None:
        return {}
    figures = await figures_of(corpus, partial(Memory, episodes, messages, search, reranking=reranking))
    await reranking.close()
    ordered = metrics.registry.get_sample_value("afterword_rerankings_total", {"outcome": "ok"}) or 0
    return {Way(f"{settings.reranker.model}, which ordered {ordered:.0f}"): figures}


async def figures_of(corpus: Corpus, make_memory: Callable[..., Memory]) -> Mapping[str, Figures]:
    return figures(corpus.questions, [await ranking(make_memory, question) for question in corpus.questions])


async def ranking(make_memory: Callable[..., Memory], question: Question) -> list[str]:
    memory = make_memory(now=lambda: question.asked_at)
    hits = await memory.recall(question.text, user_id=question.user_id, tenant_id=None, k=DEPTH)
    return [hit.episode_id for hit in hits]


def figures(questions: Sequence[Question], rankings: Sequence[Sequence[str]]) -> Mapping[str, Figures]:
    """Figures by category."""
    both = sorted(zip(questions, rankings, strict=True), key=lambda one: one[0].category)
    groups = groupby(both, key=lambda one: one[0].category)
    return {category: mean_of([found(*one) for one in group]) for category, group in groups}


def found(question: Question, ranking: Sequence[str]) -> Figures:
    places = [place for place, episode_id in enumerate(ranking, start=1) if episode_id in question.answers]
    among_five = sum(place <= 5 for place in places)
    five = among_five / len(question.answers) if question.category == SEVERAL else float(among_five > 0)
    return Figures(float(places[:1] == [1]), five, 1 / places[0] if places else 0.0)


def mean_of(many: Sequence[Figures]) -> Figures:
    return Figures(*(sum(values) / len(many) for values in zip(*many, strict=True)))


def is_met(category: str, figures: Figures) -> bool:
    if category == SEVERAL:
        return figures.five >= SEVERAL_AIM
    return figures.first >= FIRST_AIM and figures.five >= FIVE_AIM


def table(corpus: Corpus, measured: Mapping[Way, Mapping[str, Figures]]) -> Table:
    users = len({question.user_id for question in corpus.questions})
    title = f"{corpus.name}: {len(corpus.questions)} questions, {len(corpus.episodes):,} episodes of {users} users"
    shown = Table("", "", "R@1", "R@5", "MRR", "aim met", title=title, title_justify="left")
    for way, by_category in measured.items():
        for category, figures in by_category.items():
            met = ("yes" if is_met(category, figures) else "no") if corpus.has_aims else ""
            shown.add_row(way.name, category, *(f"{value:.3f}" for value in figures), met)
    return shown


def show(corpora: Iterable[Corpus], console: Console) -> None:
    for corpus in corpora:
        with tempfile.TemporaryDirectory() as directory:
            console.print(table(corpus, asyncio.run(measured(corpus, Path(directory)))))
    aims = f"R@1 ≥ {FIRST_AIM}, R@5 ≥ {FIVE_AIM}; of questions for several things R@5 ≥ {SEVERAL_AIM}"
    console.print(f"  Aims, set on other data: {aims}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recall", description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED, help="of the histories; those of the docs have 15")
    given = parser.parse_args()
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells each of 1,600 questions to a reranker
    show((histories(given.seed), sessions(), meetings(), dialogues()), Console(width=120))


if __name__ == "__main__":
    main()
