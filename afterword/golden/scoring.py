"""Scores of a writer of summaries on the golden set: which facts its summaries hold, and which figures are right."""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import snowballstemmer

from afterword.golden.episodes import KINDS, Fact, FactKind, GoldenEpisode
from afterword.schemas import Usage
from afterword.streams.errors import ProviderError
from afterword.streams.language import words
from afterword.streams.summarizer.checking import source_of, texts_of
from afterword.streams.summarizer.quality.grounding import ground
from afterword.streams.summarizer.retries import TRANSIENT
from afterword.streams.summarizer.sentences import split_sentences
from afterword.streams.summarizer.summarizer import usage_of
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from afterword.streams.together import together

SENTENCES = 2
"""Sentences in a row that one fact may be spread over."""
ROLLING_TOKENS = 800
LONGEST_WORD = 60
_NOT = re.compile(r"n['’]t\b")

SummaryWriter = Callable[[SummaryRequest], Awaitable[Summary]]
"""Writes a summary: a provider's `summarize`, or a summarizer's. Raises: ProviderError."""


@dataclass(frozen=True)
class Scored:
    """One episode's summary."""

    name: str
    held: tuple[Fact, ...]
    missing: tuple[Fact, ...]
    """All of them where there is no summary."""
    figures: int
    """Number of distinct figures and addresses in it."""
    right_figures: int
    """Number of these that the episode has."""
    failure: str | None
    """Reason for which there is no summary."""
    usage: Usage


@dataclass(frozen=True)
class GoldenScore:
    """A writer's score, over all episodes."""

    episodes: tuple[Scored, ...]

    @property
    def recall(self) -> float:
        """Share of the facts that the summaries hold, 0 to 1."""
        return _share(self._held().total(), sum(len(one.held) + len(one.missing) for one in self.episodes))

    @property
    def recall_by_kind(self) -> dict[FactKind, float]:
        held, missing = self._held(), Counter(fact.kind for one in self.episodes for fact in one.missing)
        return {kind: _share(held[kind], held[kind] + missing[kind]) for kind in KINDS}

    @property
    def figure_precision(self) -> float:
        """Share of the summaries' figures that their episodes have; 1 where there are none."""
        return _share(sum(one.right_figures for one in self.episodes), sum(one.figures for one in self.episodes))

    @property
    def figures(self) -> int:
        return sum(one.figures for one in self.episodes)

    @property
    def failures(self) -> Counter[str]:
        """Episodes without a summary, by reason."""
        return Counter(one.failure for one in self.episodes if one.failure)

    @property
    def tokens(self) -> float:
        """Mean tokens of prompts and answers of an episode."""
        used = (one.usage.prompt_tokens + one.usage.completion_tokens for one in self.episodes)
        return sum(used) / len(self.episodes)

    def _held(self) -> Counter[FactKind]:
        return Counter(fact.kind for one in self.episodes for fact in one.held)


async def score_writer(
    write: SummaryWriter,
    episodes: Sequence[GoldenEpisode],
    at_a_time: int = 1,
    progress: Callable[[int], None] = lambda _: None,
) -> GoldenScore:
    """Have every episode summarized, and score the summaries. An episode without one holds no fact.

    Raises: ProviderError if the LLM does not answer at all.
    """
    slots = asyncio.Semaphore(at_a_time)
    done: dict[str, Scored] = {}

    async def one(golden: GoldenEpisode) -> None:
        async with slots:
            done[golden.name] = await _scored(write, golden)
            progress(len(done))

    await together(*(one(golden) for golden in episodes))
    return GoldenScore(tuple(done[golden.name] for golden in episodes))


async def _scored(write: SummaryWriter, golden: GoldenEpisode) -> Scored:
    request = SummaryRequest(golden.episode, "", ROLLING_TOKENS)
    try:
        summary = await write(request)
    except TRANSIENT:
        raise
    except ProviderError as error:
        return Scored(golden.name, (), golden.facts, 0, 0, error.error_type, usage_of(error))
    return await asyncio.to_thread(score_summary, golden, request, summary)


def score_summary(golden: GoldenEpisode, request: SummaryRequest, summary: Summary) -> Scored:
    """Score one summary: its title, its short and its long text."""
    source, texts = source_of(request, ""), texts_of(request, summary).of_episode
    found = ground(texts, source.evidence, source.language)
    held = tuple(fact for fact in golden.facts if is_held(fact, texts))
    missing = tuple(fact for fact in golden.facts if fact not in held)
    return Scored(golden.name, held, missing, found.figures, found.right_figures, None, summary.usage)


def is_held(fact: Fact, texts: Iterable[str]) -> bool:
    """Tell whether all that the fact needs is said within SENTENCES sentences in a row of one text.

    Who did it to whom, and a "not" in another place, are not looked at.
    """
    return any(
        all(any(f" {_stems(way)} " in window for way in ways) for ways in fact.needs)
        for text in texts
        for window in _windows(text)
    )


def _windows(text: str) -> Iterator[str]:
    """Yield the stems of each run of sentences, with a space around each."""
    sentences = [_stems(sentence) for sentence in split_sentences(text)]
    for first in range(max(1, len(sentences) - SENTENCES + 1)):
        yield f" {' '.join(sentences[first : first + SENTENCES])} "


def _stems(text: str) -> str:
    return " ".join(map(_stem, words(_NOT.sub(" not", text))))


@lru_cache(maxsize=8192)
def _stem(word: str) -> str:
    # a stemmer holds state, so each call makes its own, which is thread-safe
    return str(snowballstemmer.stemmer("english").stemWord(word[:LONGEST_WORD]))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
