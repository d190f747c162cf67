"""The verdict on a summary: how grounded it is, and what is wrong with it. Pure; the same texts, the same verdict."""

from collections.abc import Iterator
from dataclasses import dataclass

from streams.language import detect, words
from streams.summarizer.answer import is_refusal
from streams.summarizer.quality.form import longest_common_run, repeats_itself
from streams.summarizer.quality.grounding import MAX_CHARACTERS, Evidence, ground
from streams.summarizer.quality.topic import SHARED_TERMS, is_other_language, shared_terms
from streams.summarizer.sentences import split_sentences

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
MODEL_TEXT_CHARACTERS = 20_000
"""No summary is longer; what is past that is not read."""

UNGROUNDED = "ungrounded"


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


def assess(said: Said, texts: Texts, min_grounding: float) -> Assessment:
    """Some milliseconds for twenty messages; linear in the source, of which 400,000 characters are read."""
    source = f"{said.context}\n{said.episode}"[:MAX_CHARACTERS]
    language = detect(said.episode)
    grounding = ground(texts.of_episode, Evidence(source, language), language, texts.rolling, said.carried)
    problems = list(_problems(said, texts, source, language))
    if grounding.share < min_grounding:
        told = "names, numbers or dates in it do not occur in the conversation; state only what the conversation says"
        problems.append(Problem(UNGROUNDED, told))
    return Assessment(grounding.share, grounding.unsupported, tuple(problems))


def _problems(said: Said, texts: Texts, source: str, language: str) -> Iterator[Problem]:
    """Those that need no measure of degree; the first of each sort is enough."""
    if not all(any(c.isalnum() for c in text) for text in texts.given):
        yield Problem("empty", "one of its texts was empty")
        return
    if any(is_refusal(text) for text in texts.given):
        yield Problem("refused", "it was a refusal")
    if _echoes(texts, said.instructions, source):
        yield Problem("echo", "it repeated the instructions")
    if any(repeats_itself(words(text), text) for text in (texts.short, texts.long)):
        yield Problem("repetition", "it repeated itself")
    yield from _against_source(said, texts, source, language)


def _against_source(said: Said, texts: Texts, source: str, language: str) -> Iterator[Problem]:
    told = f"{texts.short} {texts.long}"
    if is_other_language(told, (said.episode, *said.by_speaker)):
        yield Problem("wrong_language", "it was not in the language of the conversation")
    elif shared_terms(told, source, language) < SHARED_TERMS:
        yield Problem("off_topic", "it was not about this conversation")
    if _is_copy(texts.long, said.episode):
        yield Problem("copied", "it copied the conversation instead of summarising it")
    if len(texts.long) > max(len(said.episode), TINY_SOURCE_CHARACTERS):
        yield Problem("too_long", "it was longer than the conversation")
    if len(said.episode) > FEW_SENTENCES_CHARACTERS and len(split_sentences(texts.long)) < LONG_SENTENCES[0]:
        yield Problem("too_short", f'"long_summary" had fewer than {LONG_SENTENCES[0]} sentences')


def _echoes(texts: Texts, instructions: str, source: str) -> bool:
    """Where the conversation holds the same words, a summary may."""
    theirs = words(instructions)
    runs = (text for text in texts.given if longest_common_run(words(text), theirs) >= ECHOED_WORDS)
    return any(longest_common_run(words(text), words(source)) < ECHOED_WORDS for text in runs)


def _is_copy(text: str, source: str) -> bool:
    copied = words(text)
    run = longest_common_run(copied, words(source[:MAX_CHARACTERS]))
    return run >= max(COPIED_WORDS, COPIED_SHARE * len(copied))
