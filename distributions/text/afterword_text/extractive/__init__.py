"""Summaries made from the conversation's own sentences, and rolling summaries condensed to a number of tokens.

Deterministic, without a network or a model.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from itertools import groupby

from afterword_text.corrections import LANGUAGES as CORRECTED
from afterword_text.corrections import corrects
from afterword_text.extractive.ranking import (
    FILLERS,
    Exchange,
    Terms,
    exchanges_of,
    gives_value,
    has_choice,
    has_correction,
    informativeness,
    is_question,
    turns_of,
    weight,
)
from afterword_text.extractive.titles import title_of
from afterword_text.fences import NAMED, SPEAKERS
from afterword_text.language import UNDETERMINED, detect, detect_all, stem_words, words
from afterword_text.messages import Episode
from afterword_text.sentences import cut_at_word, split_sentences, word_end
from afterword_text.texts import MAX_SUMMARY_LENGTH, SHORT_CHARACTERS, TITLE_CHARACTERS, Texts
from afterword_text.tokens import count_tokens
from afterword_text.visible import ELLIPSIS, strip_control_tokens

REPETITION = 0.8
"""An exchange repeats another one that has more than this share of its words."""
MOST_REJECTED = 100
"""After this many exchanges that repeat others or do not fit, no more are tried: they say less and less."""
ENGLISH = "en"
NO_TEXT = "No text was exchanged."

MAX_CHARACTERS = 100_000
"""At most this many characters are read. No model writes more; only a broken server sends more."""
LENGTH = 0.002
"""Cost of a character: the shorter of two equally informative sentences is kept."""
MOST_ROUNDS = 4
NEAR = 10
"""A correction concerns one of this many exchanges before it; in a long meeting, some correction has any word."""
USUAL_WORDS = range(4, 25)
_SPEAKER = re.compile(f"^(?:{SPEAKERS}){NAMED}")


def summarize(
    episode: Episode, previous_rolling: str, rolling_tokens: int, long_characters: int = MAX_SUMMARY_LENGTH
) -> Texts:
    """Summarize an episode with its own sentences; no text is empty.

    This is deterministic, and takes less than a second for any episode.
    """
    detected = detect_all(message.content for message in episode.messages)
    language = ENGLISH if detected == UNDETERMINED else detected
    terms = cache(_terms_of(language))  # title and texts compare the same sentences
    correcting = partial(corrects, languages=_languages(language))
    turns = turns_of(episode.messages, terms, cache(correcting))
    ranked = RankedExchanges(exchanges_of(turns, terms), terms)
    short = ranked.text(SHORT_CHARACTERS)
    told_so_far = previous_rolling if short in previous_rolling.splitlines() else f"{previous_rolling}\n{short}"
    rolling = condense(told_so_far, rolling_tokens)
    said = (sentence for turn in turns for sentence in turn.said)
    visible = (strip_control_tokens(message.content).strip() for message in episode.messages)
    beginning = next(filter(None, (*said, *visible)), NO_TEXT)
    return Texts(
        title=title_of(turns, language) or cut_at_word(beginning, TITLE_CHARACTERS),
        short_summary=short or cut_at_word(beginning, SHORT_CHARACTERS),
        long_summary=ranked.text(long_characters) or cut_at_word(beginning, long_characters),
        rolling_summary=rolling or cut_to_tokens(cut_at_word(beginning, long_characters), rolling_tokens),
    )


class RankedExchanges:
    """The exchanges of an episode, ranked by how informative they are."""

    def __init__(self, exchanges: Sequence[Exchange], terms: Terms) -> None:
        self.exchanges = exchanges
        self.terms = [frozenset(terms(" ".join(s.text for s in exchange))) for exchange in exchanges]
        weights = [weight(*each) for each in zip(exchanges, self.terms, strict=True)]
        ranked = sorted(range(len(exchanges)), key=lambda at: -weights[at])
        self.ranked = [at for at in ranked if weights[at] or len(self.terms[at]) > 1] or ranked
        """The exchanges, best first. Exchanges such as "Fun!" are left out if there are others."""

    def text(self, characters: int) -> str:
        """Return the best exchanges in their order, in at most this many characters.

        What is corrected by an exchange that has no room is left out, too, and others take its place.
        """
        wrong: set[int] = set()
        for _ in range(MOST_ROUNDS):
            chosen = self._chosen(characters, wrong)
            left_out = [at for at in self.ranked if at not in chosen and has_correction(self.exchanges[at])]
            corrected = {at for at in chosen if any(self._is_corrected(at, later) for later in left_out)}
            if not corrected:
                break
            wrong |= corrected
        return self._quoted([at for at in chosen if at not in corrected])

    def _chosen(self, characters: int, wrong: Collection[int]) -> list[int]:
        chosen: list[int] = []
        rejected = 0
        for at in self.ranked:
            if rejected == MOST_REJECTED:
                break
            if at in wrong:
                continue
            more = [*chosen, at]
            if not any(self._repeats(at, other) for other in chosen) and len(self._quoted(more)) <= characters:
                chosen = more
            else:
                rejected += 1
        return chosen

    def _is_corrected(self, at: int, later: int) -> bool:
        """Return whether an exchange may be what a later one corrects."""
        return 0 < later - at <= NEAR and not self.terms[at].isdisjoint(self.terms[later])

    def _repeats(self, at: int, other: int) -> bool:
        """Return whether nearly all words of an exchange are in another one.

        A user's choice uses the words of the offer, but does not count as a repetition of it.
        """
        if has_choice(self.exchanges[at]) and not has_choice(self.exchanges[other]):
            return False
        return len(self.terms[at] & self.terms[other]) > REPETITION * len(self.terms[at])

    def _quoted(self, chosen: Sequence[int]) -> str:
        sentences = sorted({s for at in chosen for s in self.exchanges[at]}, key=lambda sentence: sentence.place)
        # a correction has a turn of its own, so that it can stay when the sentences before it go
        turns = groupby(sentences, key=lambda sentence: (sentence.speaker, sentence.is_correction))
        return " ".join(f"{speaker}: {' '.join(s.text for s in turn)}" for (speaker, _), turn in turns)


@cache
def _terms_of(language: str) -> Terms:
    fillers = frozenset(stem for filler in FILLERS for stem in stem_words(filler, language))
    return lambda text: tuple(stem for stem in stem_words(text, language) if stem not in fillers)


def condense(text: str, max_tokens: int) -> str:
    """Leave out the least informative sentences until the text has at most `max_tokens` tokens.

    If not even one sentence fits, the text is cut.
    """
    text = tidy(text[:MAX_CHARACTERS])
    return whole_sentences(text, max_tokens) or cut_to_tokens(text, max_tokens)


def whole_sentences(text: str, max_tokens: int, cost: Callable[[str], int] = count_tokens) -> str:
    """Return the most informative sentences that fit, in their order. A question is kept or dropped with its answer.

    Each line keeps its best sentence as long as possible. Then whole lines are dropped, the first and the last one only
    after all others. `cost` counts the tokens of a text as it will be shown.
    """
    if len(text) <= MAX_CHARACTERS and cost(text) <= max_tokens:
        return text
    text = tidy(text[:MAX_CHARACTERS])
    lines = [_parts(line) for line in text.splitlines()]
    values = {(at, i): _value(told, i) for at, line in enumerate(lines) for i, told in enumerate(line)}
    languages = _languages(detect(text))
    corrections = _corrections({key: lines[key[0]][key[1]] for key in values}, languages)
    best = {at: max(range(len(line)), key=lambda i: values[at, i]) for at, line in enumerate(lines)}
    kept: list[tuple[int, int]] = []
    left = max_tokens + 1
    ends = {0, len(lines) - 1}
    ordinary = sorted(values, key=lambda key: (key[1] != best[key[0]], key[0] not in ends, -values[key], -key[0]))
    for key in sorted(ordinary, key=lambda key: key not in corrections):
        taken = cost(lines[key[0]][key[1]]) + 1  # 1 for the space or line break after it
        if taken <= left:
            kept.append(key)
            left -= taken
    for later in corrections.difference(kept):  # what it corrects is wrong without it
        stems = _stems(lines[later[0]][later[1]], languages)
        kept = [key for key in kept if key > later or stems.isdisjoint(_stems(lines[key[0]][key[1]], languages))]
    # the parts may have fewer tokens than the whole
    while cost(text_kept := _joined(lines, set(kept))) > max_tokens:
        kept.pop()
    return text_kept


def _languages(language: str) -> tuple[str, ...]:
    """Return the languages in which corrections are looked for."""
    return tuple(code for code in CORRECTED if code in (ENGLISH, language))


def _corrections(told: Mapping[tuple[int, int], str], languages: tuple[str, ...]) -> set[tuple[int, int]]:
    """Return the places of what the user, or a summary without speakers, takes back of what was told before."""
    places: set[tuple[int, int]] = set()
    stated: set[str] = set()
    for place, text in told.items():
        said = _SPEAKER.sub("", text)
        is_others = said != text and not text.startswith("User")
        stems = _stems(text, languages)
        if not is_others and corrects(said, languages) and (gives_value(said) or not stems.isdisjoint(stated)):
            places.add(place)
        stated |= stems
    return places


def _stems(told: str, languages: Sequence[str]) -> frozenset[str]:
    return frozenset(stem_words(_SPEAKER.sub("", told), languages[-1]))


def _joined(lines: Sequence[Sequence[str]], kept: Collection[tuple[int, int]]) -> str:
    told = [[told for i, told in enumerate(line) if (at, i) in kept] for at, line in enumerate(lines)]
    return "\n".join(" ".join(line) for line in told if line)


def tidy(text: str) -> str:
    """Remove control tokens, repeated spaces and empty lines."""
    lines = (" ".join(line.split()) for line in strip_control_tokens(text).splitlines())
    return "\n".join(line for line in lines if line)


def cut_to_tokens(text: str, max_tokens: int) -> str:
    """Cut a text to at most `max_tokens` tokens, at the end of a word and with an ellipsis."""
    if count_tokens(text) <= max_tokens:
        return text
    too_long = bisect_right(range(len(text)), max_tokens, key=lambda end: count_tokens(text[:end].rstrip() + ELLIPSIS))
    fits = max(too_long - 1, 0)
    return text[: word_end(text, fits)].rstrip(" ,;:…，、\n") + ELLIPSIS


def _parts(line: str) -> list[str]:
    """Split a line into its smallest parts: sentences, questions with their answers, or what one named speaker says."""
    joined: list[str] = []
    sentences = split_sentences(line)
    has_speakers = any(map(_SPEAKER.match, sentences))
    for sentence in sentences:
        if joined and (is_question(joined[-1]) or (has_speakers and not _SPEAKER.match(sentence))):
            joined[-1] += f" {sentence}"
        else:
            joined.append(sentence)
    return joined


def _value(sentence: str, place: int) -> float:
    usual = 0.2 * (len(words(sentence)) in USUAL_WORDS) + 0.05 * (place == 0)
    return informativeness(_SPEAKER.sub("", sentence)) + usual - 0.3 * is_question(sentence) - LENGTH * len(sentence)
