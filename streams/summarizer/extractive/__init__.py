"""Summaries made from the conversation's own sentences: deterministic, without a network or a model."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby

from afterword.schemas import EpisodeClosed
from afterword.streams.summarizer.extractive.condensing import carry_forward, condense
from afterword.streams.summarizer.extractive.ranking import (
    FILLERS,
    Exchange,
    Sentence,
    Terms,
    exchanges_of,
    turns_of,
    weight,
)
from afterword.streams.summarizer.extractive.titles import TITLE_CHARACTERS, title_of
from afterword.streams.summarizer.summary import Texts
from afterword.streams.text.language import UNDETERMINED, detect_all, stem_words
from afterword.streams.text.sentences import cut_at_word
from afterword.streams.text.visible import strip_control_tokens

__all__ = ["carry_forward", "condense", "summarize"]
SHORT_CHARACTERS = 400
LONG_CHARACTERS = 1000
ROLLING_EXCHANGES = 3
REPETITION = 0.8
"""An exchange repeats another one that has more than this share of its words."""
MOST_REJECTED = 100
"""After this many exchanges that repeat others or do not fit, no more are tried: they say less and less."""
ENGLISH = "en"
NO_TEXT = "No text was exchanged."


def summarize(
    episode: EpisodeClosed, previous_rolling: str, rolling_tokens: int, long_characters: int = LONG_CHARACTERS
) -> Texts:
    """Summarize an episode with its own sentences; no text is empty.

    This is deterministic, and takes less than a second for any episode.
    """
    detected = detect_all(message.content for message in episode.messages)
    language = ENGLISH if detected == UNDETERMINED else detected
    terms = cache(_terms_of(language))  # title and texts compare the same sentences
    turns = turns_of(episode.messages, terms)
    told = Told(exchanges_of(turns, terms), terms)
    rolling = carry_forward(previous_rolling, told.lines(ROLLING_EXCHANGES), rolling_tokens, terms)
    visible = (strip_control_tokens(message.content).strip() for message in episode.messages)
    beginning = next(filter(None, visible), NO_TEXT)
    return Texts(
        title=title_of(turns, language) or cut_at_word(beginning, TITLE_CHARACTERS),
        short_summary=told.text(SHORT_CHARACTERS) or cut_at_word(beginning, SHORT_CHARACTERS),
        long_summary=told.text(long_characters) or cut_at_word(beginning, long_characters),
        rolling_summary=rolling or NO_TEXT,
    )


class Told:
    """The exchanges of an episode, ranked by how much they tell."""

    def __init__(self, exchanges: Sequence[Exchange], terms: Terms) -> None:
        self.exchanges = exchanges
        self.terms = [frozenset(terms(" ".join(s.text for s in exchange))) for exchange in exchanges]
        self.sentences = [frozenset(exchange) for exchange in exchanges]
        weights = [weight(*each) for each in zip(exchanges, self.terms, strict=True)]
        ranked = sorted(range(len(exchanges)), key=lambda at: -weights[at])
        self.ranked = [at for at in ranked if weights[at] or len(self.terms[at]) > 1] or ranked
        """The exchanges, best first. Exchanges such as "Fun!" are left out if there are others."""

    def text(self, characters: int) -> str:
        """Return the best exchanges in their order, in at most this many characters."""

        def fits(chosen: list[int]) -> bool:
            return len(quoted(self._sentences(chosen))) <= characters

        return quoted(self._sentences(self._choose(len(self.ranked), fits)))

    def lines(self, count: int) -> list[str]:
        """Return the best exchanges in the order of the conversation, each with its speakers."""

        def says_something_new(chosen: list[int]) -> bool:
            return all(self.sentences[chosen[-1]].isdisjoint(self.sentences[at]) for at in chosen[:-1])

        return [quoted(self.exchanges[at]) for at in sorted(self._choose(count, says_something_new))]

    def _choose(self, count: int, fits: Callable[[list[int]], bool]) -> list[int]:
        chosen: list[int] = []
        rejected = 0
        for at in self.ranked:
            if len(chosen) == count or rejected == MOST_REJECTED:
                break
            if not any(self._repeats(at, other) for other in chosen) and fits([*chosen, at]):
                chosen.append(at)
            else:
                rejected += 1
        return chosen

    def _repeats(self, at: int, other: int) -> bool:
        """Return whether two exchanges contain the same sentences elsewhere, or one nearly all words of the other."""
        if not self.sentences[at].isdisjoint(self.sentences[other]):
            return False
        return len(self.terms[at] & self.terms[other]) > REPETITION * len(self.terms[at])

    def _sentences(self, chosen: Sequence[int]) -> list[Sentence]:
        return sorted({s for at in chosen for s in self.exchanges[at]}, key=lambda sentence: sentence.place)


def quoted(sentences: Sequence[Sentence]) -> str:
    turns = groupby(sentences, key=lambda sentence: sentence.speaker)
    return " ".join(f"{speaker}: {' '.join(s.text for s in turn)}" for speaker, turn in turns)


@cache
def _terms_of(language: str) -> Terms:
    fillers = frozenset(stem for filler in FILLERS for stem in stem_words(filler, language))
    return lambda text: tuple(stem for stem in stem_words(text, language) if stem not in fillers)
