"""The verdict on a summary: how grounded it is, and what is wrong with it. Pure; the same texts, the same verdict."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from afterword.streams.language import detect, words
from afterword.streams.summarizer.answer import is_refusal
from afterword.streams.summarizer.quality.form import has_common_run, repeats_itself, runs
from afterword.streams.summarizer.quality.grounding import Evidence, ground, plain
from afterword.streams.summarizer.quality.topic import SHARED_TERMS, is_other_language, shared_terms
from afterword.streams.summarizer.sentences import split_sentences

SHORT_SENTENCES = 2
LONG_SENTENCES = (3, 8)
FEW_SENTENCES_CHARACTERS = 1500
"""Of a source: there is enough in a longer one for a long summary's three sentences."""
TINY_SOURCE_CHARACTERS = 400
"""A source shorter than this may have a summary that is longer: two words take a sentence to tell."""
COPIED_WORDS = 40
COPIED_SHARE = 0.5
"""Of a text's words, a single run that stands in the source just so; a quoted sentence is shorter than both."""
ECHOED_WORDS = 9
"""So many words of our instructions in a row are no coincidence."""


@dataclass(frozen=True)
class Said:
    """What a summary is checked against."""

    episode: str
    """Contents of its messages, each on its own line."""
    context: str = ""
    """What else the writer was shown: the rolling summary so far, and the overlap."""
    carried: str = ""
    """The part of the context that a rolling summary repeats."""
    by_speaker: tuple[str, ...] = ()
    """The episode's contents apart by role: each may have a language of its own."""
    instructions: str = ""


@dataclass(frozen=True)
class Texts:
    title: str
    short: str
    long: str
    rolling: str = ""
    """Empty where none was asked for."""

    @property
    def of_episode(self) -> tuple[str, str, str]:
        return (self.title, self.short, self.long)

    @property
    def given(self) -> tuple[str, ...]:
        return (*self.of_episode, self.rolling) if self.rolling else self.of_episode


@dataclass(frozen=True)
class Rules:
    """What may be chosen."""

    min_grounding: float = 0.8
    strict_figures: bool = True
    """One figure that the source lacks is enough to refuse a summary."""


@dataclass(frozen=True)
class Problem:
    """A reason to refuse a summary."""

    reason: str
    """Stable snake_case name: the reason of a fallback, and the label of a counter."""
    told: str
    """To the LLM, after "your previous answer could not be used:"; it never repeats what anybody said."""


@dataclass(frozen=True)
class Assessment:
    grounding: float
    """0 … 1: of the summary's checkable tokens, the share that the source has; 1.0 when there are none."""
    unsupported: tuple[str, ...]
    """The other tokens, bounded in number and length."""
    problems: tuple[Problem, ...]
    """Worst first; empty for a summary that may be stored."""


def assess(said: Said, texts: Texts, rules: Rules) -> Assessment:
    """Some milliseconds for twenty messages; linear in the source, of which 400,000 characters are read."""
    source = _Source(said)
    grounding = ground(texts.of_episode, source.evidence, source.language, texts.rolling, said.carried)
    problems = list(_problems(texts, source))
    if grounding.wrong_figure and rules.strict_figures:
        told = "a number, date, amount, code or address in it does not occur in the conversation"
        problems.append(Problem("unsupported_figure", told))
    if grounding.share < rules.min_grounding:
        told = "names, numbers or dates in it do not occur in the conversation; state only what the conversation says"
        problems.append(Problem("ungrounded", told))
    return Assessment(grounding.share, grounding.unsupported, tuple(problems))


class _Source:
    """Read once, used by all checks."""

    def __init__(self, said: Said) -> None:
        self.said = said
        self.episode = plain(said.episode)
        self.language = detect(self.episode)
        whole = plain(f"{said.context}\n{self.episode}")
        self.evidence = Evidence(whole, self.language)


def _problems(texts: Texts, source: _Source) -> Iterator[Problem]:
    """Those of which one is too many."""
    if not all(any(c.isalnum() for c in text) for text in texts.given):
        yield Problem("empty", "one of its texts was empty")
        return
    if any(is_refusal(text) for text in texts.given):
        yield Problem("refused", "it was a refusal")
    if _echoes(texts, source):
        yield Problem("echo", "it repeated the instructions")
    if any(repeats_itself(words(text), text) for text in (texts.short, texts.long)):
        yield Problem("repetition", "it repeated itself")
    yield from _beside(texts, source)


def _beside(texts: Texts, source: _Source) -> Iterator[Problem]:
    told, length = f"{texts.short} {texts.long}", len(source.said.episode)
    spoken = (source.episode, *source.said.by_speaker)
    if is_other_language((texts.short, texts.long), spoken):
        yield Problem("wrong_language", "it was not in the language of the conversation")
    elif shared_terms(told, source.evidence.stems, source.language) < SHARED_TERMS:
        yield Problem("off_topic", "it was not about this conversation")
    if _is_copy(texts.long, source):
        yield Problem("copied", "it copied the conversation instead of summarising it")
    if len(texts.long) > max(length, TINY_SOURCE_CHARACTERS):
        yield Problem("too_long", "it was longer than the conversation")
    if length > FEW_SENTENCES_CHARACTERS and len(split_sentences(texts.long)) < LONG_SENTENCES[0]:
        yield Problem("too_short", f"its longest text had fewer than {LONG_SENTENCES[0]} sentences")


def _echoes(texts: Texts, source: _Source) -> bool:
    """Where the conversation holds the same words, a summary may."""
    instructions = runs_of_instructions(source.said.instructions)
    told = [words(text) for text in texts.given]
    return any(
        not runs(text, ECHOED_WORDS).isdisjoint(instructions)
        and not has_common_run(text, source.evidence.words, ECHOED_WORDS)
        for text in told
    )


@lru_cache(maxsize=8)
def runs_of_instructions(instructions: str) -> frozenset[int]:
    """They are the same for every episode."""
    return frozenset(runs(words(instructions), ECHOED_WORDS))


def _is_copy(text: str, source: _Source) -> bool:
    copied = words(text)
    return has_common_run(copied, source.evidence.words, max(COPIED_WORDS, math.ceil(COPIED_SHARE * len(copied))))
