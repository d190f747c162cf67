"""Extractive summaries: an episode's texts made of its most central sentences, and its title of their phrases."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from afterword.schemas import EpisodeClosed
from afterword.streams.language import UNDETERMINED, detect, stem_words
from afterword.streams.summarizer.extractive.condensing import carry_forward
from afterword.streams.summarizer.extractive.ranking import (
    FILLERS,
    Candidate,
    Matrix,
    Terms,
    candidates,
    centrality,
    diverse,
    is_politeness,
    similarity,
    weight,
)
from afterword.streams.summarizer.extractive.titles import TITLE_CHARACTERS, title_phrase
from afterword.streams.summarizer.sentences import cut_at_sentence, cut_at_word

SHORT_CHARACTERS = 400
LONG_CHARACTERS = 1000
LONG_SENTENCES = (3, 8)
ROLLING_SENTENCES = 3
TITLE_SENTENCES = 4
ASKED = 1.5
"""Factor for the user's sentences in a title: the user names the topic, others explain it."""
ENGLISH = "en"
NO_TEXT_TITLE = "No text"
NO_TEXT = "No text was exchanged."


@dataclass(frozen=True)
class ExtractiveTexts:
    """The four texts of an extractive summary; none is empty."""

    title: str
    short_summary: str
    long_summary: str
    rolling_summary: str


def summarize(
    episode: EpisodeClosed, previous_rolling: str, rolling_tokens: int, long_characters: int = LONG_CHARACTERS
) -> ExtractiveTexts:
    """Summarize an episode by its own sentences: deterministic, in less than a second whatever it contains."""
    found = candidates(episode.messages)
    language = _language_of(" ".join(candidate.text for candidate in found))
    terms = _terms_of(language)
    ranked = Ranked(_informative(found, terms), terms, long_characters, english=language == ENGLISH)
    rolling = carry_forward(previous_rolling, ranked.lines(ROLLING_SENTENCES), rolling_tokens, terms)
    return ExtractiveTexts(
        title=ranked.title() or NO_TEXT_TITLE,
        short_summary=ranked.short() or NO_TEXT,
        long_summary=ranked.long() or NO_TEXT,
        rolling_summary=rolling or NO_TEXT,
    )


class Ranked:
    """Holds an episode's sentences with their weights; `best`: indices, best first."""

    def __init__(
        self, sentences: Sequence[Candidate], terms: Terms, long_characters: int, *, english: bool = True
    ) -> None:
        self.english = english
        self.sentences = sentences
        self.long_characters = long_characters
        self.terms = terms
        found = [terms(candidate.text) for candidate in sentences]
        self.used = Counter(term for each in found for term in set(each))
        self.similar: Matrix = similarity(found)
        ranks = centrality(self.similar)
        self.weights = [weight(*each) for each in zip(sentences, found, ranks, strict=True)]
        fewest, most = LONG_SENTENCES
        self.best = self._choose(min(most, max(fewest, len(sentences) // 2)), long_characters)

    def title(self) -> str:
        chosen = self.best[:TITLE_SENTENCES]
        weighted = [(self.sentences[i].text, self.weights[i] * self._asked(i)) for i in chosen]
        found = title_phrase(weighted, self.used, self.terms, self.english)
        return found or (cut_at_word(self.sentences[chosen[0]].text, TITLE_CHARACTERS) if chosen else "")

    def short(self) -> str:
        """Join the best sentence and the best one of another role, or the two best of a single role."""
        first, others = self.best[:1], self.best[1:]
        replies = [i for i in others if self.sentences[i].role != self.sentences[first[0]].role]
        return cut_at_sentence(self._quoted(first + (replies or others)[:1]), SHORT_CHARACTERS)

    def long(self) -> str:
        return cut_at_sentence(self._quoted(self.best), self.long_characters)

    def lines(self, count: int) -> list[str]:
        """List the best sentences in the order of the conversation, each with its speaker."""
        return [self._quoted([i]) for i in sorted(self.best[:count])]

    def _asked(self, index: int) -> float:
        return ASKED if self.sentences[index].role == "user" else 1.0

    def _choose(self, count: int, limit: int) -> list[int]:
        def fits(chosen: list[int]) -> bool:
            return len(self._quoted(chosen)) <= limit

        return diverse(self.weights, self.similar, count, fits)

    def _quoted(self, chosen: Sequence[int]) -> str:
        quoted = [self.sentences[i] for i in sorted(chosen)]
        turns = [(role, list(turn)) for role, turn in groupby(quoted, key=lambda candidate: candidate.role)]
        return " ".join(f"{role.capitalize()}: {' '.join(_ended(c.text) for c in turn)}" for role, turn in turns)


def _informative(found: Sequence[Candidate], terms: Terms) -> Sequence[Candidate]:
    """Drop repetitions; drop politeness and sentences without words too, unless nothing else is left."""
    once: dict[str, Candidate] = {}
    for candidate in found:
        once.setdefault(candidate.text.casefold(), candidate)
    counted = [(candidate, len(terms(candidate.text))) for candidate in once.values()]
    return [candidate for candidate, n in counted if n and not is_politeness(candidate.text, n)] or [*once.values()]


def _language_of(sample: str) -> str:
    language = detect(sample)
    return ENGLISH if language == UNDETERMINED else language


def _terms_of(language: str) -> Terms:
    fillers = frozenset(stem for filler in FILLERS for stem in stem_words(filler, language))
    return lambda text: [stem for stem in stem_words(text, language) if stem not in fillers]


def _ended(sentence: str) -> str:
    return sentence + "." if sentence[-1:].isalnum() and sentence.isascii() else sentence
