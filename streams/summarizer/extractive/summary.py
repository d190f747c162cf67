"""Extractive summaries: an episode's texts made of its own sentences, and its title of their phrases."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from afterword.schemas import EpisodeClosed
from afterword.streams.language import UNDETERMINED, detect, stem_words
from afterword.streams.summarizer.extractive.condensing import carry_forward
from afterword.streams.summarizer.extractive.ranking import (
    FILLERS,
    Exchange,
    Sentence,
    Terms,
    diverse,
    exchanges_of,
    similarity,
    turns_of,
    weight,
)
from afterword.streams.summarizer.extractive.titles import TITLE_CHARACTERS, title_of
from afterword.streams.summarizer.sentences import cut_at_word

SHORT_CHARACTERS = 400
SHORT_SENTENCES = 5
LONG_CHARACTERS = 1000
LONG_SENTENCES = 10
ROLLING_EXCHANGES = 3
ENGLISH = "en"
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
    language = _language_of(" ".join(message.content[:1000] for message in episode.messages)[:10_000])
    terms = _terms_of(language)
    turns = turns_of(episode.messages, terms)
    told = Told(exchanges_of(turns, terms), terms)
    rolling = carry_forward(previous_rolling, told.lines(ROLLING_EXCHANGES), rolling_tokens, terms)
    beginning = next((message.content.strip() for message in episode.messages if message.content.strip()), NO_TEXT)
    return ExtractiveTexts(
        title=title_of(turns, terms, language) or cut_at_word(beginning, TITLE_CHARACTERS),
        short_summary=told.text(SHORT_SENTENCES, SHORT_CHARACTERS) or cut_at_word(beginning, SHORT_CHARACTERS),
        long_summary=told.text(LONG_SENTENCES, long_characters) or cut_at_word(beginning, long_characters),
        rolling_summary=rolling or NO_TEXT,
    )


class Told:
    """The exchanges of an episode with their weights."""

    def __init__(self, exchanges: Sequence[Exchange], terms: Terms) -> None:
        once = {" ".join(s.text for s in exchange).casefold(): exchange for exchange in reversed(exchanges)}
        self.exchanges = [*reversed(once.values())]
        found = [terms(" ".join(s.text for s in exchange)) for exchange in self.exchanges]
        self.similar = similarity(found)
        self.weights = [weight(*each) for each in zip(self.exchanges, found, strict=True)]

    def text(self, sentences: int, characters: int) -> str:
        """Tell the best exchanges in their order, in at most so many sentences and characters."""

        def fits(chosen: list[int]) -> bool:
            told = self._sentences(chosen)
            return len(told) <= sentences and len(quoted(told)) <= characters

        return quoted(self._sentences(diverse(self.weights, self.similar, sentences, fits)))

    def lines(self, count: int) -> list[str]:
        """List the best exchanges in the order of the conversation, each with its speakers."""

        def says_something_new(chosen: list[int]) -> bool:
            return not any(set(self.exchanges[chosen[-1]]) & set(self.exchanges[at]) for at in chosen[:-1])

        best = diverse(self.weights, self.similar, count, says_something_new)
        return [quoted(self.exchanges[at]) for at in sorted(best)]

    def _sentences(self, chosen: Sequence[int]) -> list[Sentence]:
        return sorted({s for at in chosen for s in self.exchanges[at]}, key=lambda sentence: sentence.place)


def quoted(sentences: Sequence[Sentence]) -> str:
    turns = [(role, list(turn)) for role, turn in groupby(sentences, key=lambda sentence: sentence.role)]
    return " ".join(f"{role.capitalize()}: {' '.join(s.text for s in turn)}" for role, turn in turns)


def _language_of(sample: str) -> str:
    language = detect(sample)
    return ENGLISH if language == UNDETERMINED else language


def _terms_of(language: str) -> Terms:
    fillers = frozenset(stem for filler in FILLERS for stem in stem_words(filler, language))
    return lambda text: [stem for stem in stem_words(text, language) if stem not in fillers]
