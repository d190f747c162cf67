"""The quality gate: how grounded a summary is in its source, and whether it may be stored. Pure and deterministic."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache, cached_property, lru_cache, partial
from itertools import pairwise
from math import ceil
from unicodedata import numeric

from afterword_text.answer import is_refusal
from afterword_text.fences import NAMED
from afterword_text.gate.claims import (
    CODE,
    ROLES,
    Claim,
    Facts,
    dates_in,
    facts,
    fold,
    months,
    names,
    source_facts,
    weekdays,
    words_of,
)
from afterword_text.gate.quantities import BEFORE_DATE, number_words, spellings
from afterword_text.language import (
    DETECTED_CHARACTERS,
    UNDETERMINED,
    detect,
    normalized,
    plausible,
    stem_words,
    stems,
    words,
)
from afterword_text.sentences import sentences_of, split_sentences
from afterword_text.texts import Texts

LONG_SENTENCES = (3, 8)
FEW_SENTENCES_CHARACTERS = 1500
"""A longer source has enough material for the three sentences of a long summary."""
TINY_SOURCE_CHARACTERS = 400
"""A summary may be longer than its source up to this length: reporting two words takes a sentence."""
COPIED_WORDS = 40
COPIED_SHARE = 0.5
"""A text is a copy if one run of its words that occurs verbatim in the source has at least this share of them.

A quoted sentence stays below both limits.
"""
ECHOED_WORDS = 9
"""This many words of our instructions in a row are not a coincidence."""

GRAM = 4
REPEATED_SHARE = 0.25
"""Largest share of a text's runs of four words that may have occurred before; plain prose stays below 0.1."""

SURE_CHARACTERS = 60
"""Language detection is reliable for texts of at least this length."""
FEWEST_TERMS = 8
SHARED_TERMS = 0.3
"""Smallest share of a summary's distinct content words that must occur in its source."""
BEGINNING = 5
"""Words with this many first letters in common are forms of one word: "renewal" and "renew", "benefits" and
"beneficiary"."""
_REPORTED = "convers discuss ask explain say tell mention assist want need inform clarifi confirm"
_REPORTING = frozenset(_REPORTED.split())
"""Stems of words that occur in summaries of any conversation."""
UNSUPPORTED = 20
"""At most this many unsupported tokens are listed; all of them count."""
TOKEN_CHARACTERS = 60
MAX_CHARACTERS = 400_000
"""At most this many characters of a source are read."""
LONGEST_RUN = 300
"""Longest run without a space, in characters. The time of some patterns grows with the square of a run's length; people
write no such runs except addresses, in which the site comes first."""
SHORTEST_STEM = 4
"""Forms of a name share at least this many letters: "Ital" is too short to distinguish "Italy" from "Italian"."""
JOINED_WORDS = 6
"""A code has at most this many words."""
ENDING = 3
Said = tuple[str, str]
"""Role and text."""

KEY = 6
"""This many words at the end of a question, and at the beginning of an answer, are searched for in the conversation."""
_SPEAKER = re.compile(rf"(?:^|(?<=\s))(User|Assistant|Tool|System){NAMED}")
_END = re.compile(r"(?<=[.!?…。！？])\s+")
_ENDED = re.compile(r"[.!?…。！？｡؟۔।॥።։។။][\"'”’»)\]」』）]*\Z")
_OPEN = re.compile(r"[\w,;:、，–—-]\Z")
_QUESTION = re.compile(r"[?？؟]")
_CYRILLIC = re.compile("[а-яА-Я]")


@dataclass(frozen=True)
class Grounding:
    """The result of checking a summary's tokens."""

    share: float
    """Share of the distinct checkable tokens that the source has; 1.0 if there are none. It is the lower of the shares
    of figures and of names: many correct numbers must not make up for an invented person."""
    unsupported: tuple[str, ...]
    """The unsupported tokens as they were written, figures first, at most `UNSUPPORTED`."""
    wrong_figure: bool
    """True if an unsupported token is a number, a date, an amount, a code or an address."""


class Evidence:
    """Everything that a source supports. Each part is read when it is first asked for, in time linear in the source."""

    def __init__(self, source: str, language: str, sent_at: Iterable[datetime] = ()) -> None:
        """`sent_at` are the times of the source's messages, if they are known."""
        self._source = plain(source)
        self._language = language
        self._sent_at = tuple(sent_at)
        spoken = words(self._source)
        self._spoken = f" {' '.join(spoken)} "
        self._said = frozenset(spoken)
        # some marks that continue a word are not part of a name
        as_names = () if self._source.isascii() else words_of(self._source)
        self._words = frozenset((*map(fold, self._said), *as_names))

    @cached_property
    def stems(self) -> frozenset[str]:
        return frozenset(stems(self._said, self._language))

    @cached_property
    def _folded_stems(self) -> frozenset[str]:
        return frozenset(map(fold, self.stems))

    @cached_property
    def _facts(self) -> Facts:
        source = source_facts(self._source, self._said, self._language, self._sent_at)
        return replace(source, spells=partial(_spells, self._spoken, self._language))

    def has_run(self, tokens: Sequence[str]) -> bool:
        """Return whether the source has these words in a row."""
        return f" {' '.join(tokens)} " in self._spoken

    def supports(self, claim: Claim) -> bool:
        has_code = any(kind == CODE and self._has_code(str(code)) for kind, code in claim.keys)
        return has_code or self._facts.support(claim)

    def leaves_open(self, claim: Claim) -> bool:
        """Return whether the claim may be the writer's own count, because the source does not count such things.

        Nobody can count more things than the source has words for.
        """
        if not claim.counted or claim.counted in self._facts.counted or self.supports(claim):
            return False
        return max(claim.whole_numbers, default=0) <= len(self.stems)

    def names(self, word: str) -> bool:
        return word in self._words or self._has_form_of(word) or self._abbreviates(word)

    def _has_code(self, code: str) -> bool:
        """Return whether the source has a code, in one word or in a few: "AB-1234" and "AB 1234" are the same."""
        spelled = re.compile(rf"(?<![a-z0-9]){' ?'.join(map(re.escape, code))}(?![a-z0-9])")
        return any(match[0].count(" ") < JOINED_WORDS for match in spelled.finditer(self._spoken))

    def _has_form_of(self, word: str) -> bool:
        if {fold(stem) for stem in stem_words(word, self._language)} & self._folded_stems:
            return True
        if any(word[:size] in self._words for size in range(max(SHORTEST_STEM, len(word) - ENDING), len(word))):
            return True
        return len(word) > SHORTEST_STEM and any(longer.startswith(word) for longer in self._words)

    def _abbreviates(self, word: str) -> bool:
        month, weekday = months(self._language).get(word), weekdays(self._language).get(word)
        if month:
            return month in self._facts.months or self._facts.has_day((None, month, None))
        if weekday is not None:
            return self._facts.has_weekday(weekday) or any(word[:size] in self._words for size in (3, 4))
        return False


def _spells(text: str, language: str, number: int) -> bool:
    """Return whether a text, given as words between spaces, has a number in words that `readable` does not read."""
    # short texts in Russian and Ukrainian are easily confused
    languages = ("ru", "uk") if _CYRILLIC.search(text) else (language,)
    # most numbers do not occur in the text, and a search without a pattern shows that faster
    compact = text.replace(" ", "")
    spelled = {each.replace(" ", "") for code in languages for each in spellings(number, code)}
    spelled = {each for each in spelled if each in compact}
    if not spelled:
        return False
    written = "|".join(" ?".join(map(re.escape, each)) for each in spelled)
    parts = frozenset().union(*map(number_words, languages))
    for match in re.finditer(f" (?:{written})(?= )", text):
        start, end = match.span()
        before, after = text[text.rfind(" ", 0, start) + 1 : start], text[end + 1 : text.find(" ", end + 1)]
        if parts.isdisjoint((before, after)):
            return True
    return False


def ground(texts: Iterable[str], evidence: Evidence, language: str, rolling: str = "", carried: str = "") -> Grounding:
    """Check all texts together, each token once. `language` is the source's.

    A token of a rolling summary counts only if the carried text does not contain it. Otherwise, the many tokens that
    were checked before would hide one that is invented now.
    """
    figures: dict[str, bool] = {}
    named: dict[str, bool] = {}
    known = Evidence(carried, language) if rolling and carried else None
    for text, ignored in [*((text, None) for text in texts), (rolling, known)]:
        text = plain(text)
        for claim in facts(text, language):
            if not (ignored and ignored.supports(claim)) and not evidence.leaves_open(claim):
                figures[claim.text] = evidence.supports(claim) and figures.get(claim.text, True)
        undated = dates_in(language).sub(" ", text) if re.search(r"\d", text) else text
        for name, word in names(undated, language):
            if not (ignored and ignored.names(word)):
                named[name] = evidence.names(word)
    unsupported = [token for token, supported in {**figures, **named}.items() if not supported]
    listed = tuple(token[:TOKEN_CHARACTERS] for token in unsupported[:UNSUPPORTED])
    return Grounding(min(_share(figures), _share(named)), listed, wrong_figure=not all(figures.values()))


def _share(tokens: Mapping[str, bool]) -> float:
    return sum(tokens.values()) / len(tokens) if tokens else 1.0


def plain(text: str) -> str:
    """Normalize full-width digits, ligatures and hard spaces (NFKC); limit the lengths of the text and its runs."""
    text = text[:MAX_CHARACTERS].translate(_ARABIC)
    if _MAY_BE_MIXED.search(text):
        text = _MIXED.sub(_decimals, text)
    normal = normalized("NFKC", _BARE_POINT.sub("0.", text))[:MAX_CHARACTERS]  # one character may become eighteen
    return _LONG_RUN.sub(r"\g<0> ", normal)


def _decimals(written: re.Match[str]) -> str:
    """Write "2½", "2 1/2" and "½" as decimals, and leave out exponents and the numbers of footnotes.

    NFKC would turn "2½" into "21⁄2", and "10²" into "102".
    """
    fraction, over, under = written.group("fraction", "over", "under")
    is_date = _DATE_BEGINS.search(written.string, max(0, written.start() - LONGEST_BEFORE), written.start())
    if over and (is_date or int(over) >= int(under)):
        return written[0]
    share = f"{numeric(fraction) if fraction else int(over) / int(under):g}" if fraction or over else ""
    before = written.string[: written.start()][-1:]
    return share[1:] if before.isdigit() else share


_MAY_BE_MIXED = re.compile(r"[²³¹⁰⁴-⁹¼½¾⅐-⅞]|\d/\d")
_MIXED = re.compile(
    r"(?<=\d)[²³¹⁰⁴-⁹]+|(?:(?<=\d)\s?)?(?<![^\W\d_])(?P<fraction>[¼½¾⅐-⅞])"
    r"|(?:(?<=\d)\s|(?<![\w/.,])(?=\d/\d\s[^\W\d]))(?P<over>[1-9])/(?P<under>[2-9])(?![\w/])"
)
_DATE_BEGINS = re.compile(rf"(?i)\b(?:{BEFORE_DATE})\s\Z")
LONGEST_BEFORE = 8
"""Characters of a word before a date, with its spaces."""
_ARABIC = str.maketrans("٫٬٪", ".,%")
_BARE_POINT = re.compile(r"(?<![\w.,])\.(?=\d)")
_LONG_RUN = re.compile(rf"\S{{{LONGEST_RUN}}}(?=\S)")


@dataclass(frozen=True)
class SourceTexts:
    """The texts that a summary is checked against. They are analyzed once for all summaries of the same source."""

    episode: str
    """Contents of the episode's messages, each on its own line."""
    context: str = ""
    """Everything else that the writer was shown: the previous rolling summary and the overlap."""
    carried: str = ""
    """The part of the context that a rolling summary repeats."""
    by_speaker: tuple[str, ...] = ()
    """The episode's contents by role, because each role may use its own language."""
    instructions: str = ""
    """The prompt, which a summary must not repeat."""
    sent_at: tuple[datetime, ...] = ()
    """Times of all the messages that the writer was shown."""

    @cached_property
    def beginning(self) -> str:
        """As much of the episode as is needed to detect its language."""
        return plain(self.episode[:DETECTED_CHARACTERS])

    @cached_property
    def language(self) -> str:
        return detect(self.beginning)

    @cached_property
    def evidence(self) -> Evidence:
        return Evidence(f"{self.context}\n{self.episode}", self.language, self.sent_at)


@dataclass(frozen=True)
class Problem:
    """A reason to refuse a summary."""

    reason: str
    """Stable name in snake_case, for the reason of a fallback and the label of a counter."""
    feedback: str
    """Text for the LLM after "your previous answer could not be used:"; it never repeats what anybody said."""


@dataclass(frozen=True)
class Assessment:
    """The verdict on one summary."""

    grounding: float
    """Between 0 and 1: the share of the summary's checkable tokens that the source has; 1.0 if there are none."""
    unsupported: tuple[str, ...]
    """The unsupported tokens, limited in number and length."""
    problems: tuple[Problem, ...]
    """Worst first; empty for a summary that may be stored."""


def assess(source: SourceTexts, texts: Texts, min_grounding: float = 0.8) -> Assessment:
    """Check a summary against its source.

    This takes some milliseconds for twenty messages, and is linear in the source, whose first 400,000 characters are
    read.
    """
    grounding = ground(texts.of_episode, source.evidence, source.language, texts.rolling_summary, source.carried)
    problems = list(_problems(texts, source))
    if grounding.wrong_figure:
        feedback = "a number, date, amount, code or address in it does not occur in the conversation"
        problems.append(Problem("unsupported_figure", feedback))
    if grounding.share < min_grounding:
        feedback = (
            "names, numbers or dates in it do not occur in the conversation; state only what the conversation says"
        )
        problems.append(Problem("ungrounded", feedback))
    return Assessment(grounding.share, grounding.unsupported, tuple(problems))


def _problems(texts: Texts, source: SourceTexts) -> Iterator[Problem]:
    """Yield problems for which a summary is refused whatever the settings."""
    if not all(any(c.isalnum() for c in text) for text in texts.given):
        yield Problem("empty", "one of its texts was empty")
        return
    if any(is_refusal(text) for text in texts.given):
        yield Problem("refused", "it was a refusal")
    if _echoes(texts, source):
        yield Problem("echo", "it repeated the instructions")
    if any(repeats_itself(text) for text in (texts.short_summary, texts.long_summary)):
        yield Problem("repetition", "it repeated itself")
    if ends_in_a_sentence(texts.long_summary):
        yield Problem("unfinished", "its longest text ended in the middle of a sentence")
    yield from _mismatches(texts, source)


def _mismatches(texts: Texts, source: SourceTexts) -> Iterator[Problem]:
    """Yield problems of language, topic and length, compared with the source."""
    summary, length = f"{texts.short_summary} {texts.long_summary}", len(source.episode)
    spoken = (source.beginning, *source.by_speaker)
    if is_other_language((texts.short_summary, texts.long_summary), spoken):
        yield Problem("wrong_language", "it was not in the language of the conversation")
    elif shared_terms(summary, source.evidence.stems, source.language) < SHARED_TERMS:
        yield Problem("off_topic", "it was not about this conversation")
    tokens = words(texts.long_summary)
    copied = max(COPIED_WORDS, ceil(COPIED_SHARE * len(tokens)))
    if any(map(source.evidence.has_run, runs(tokens, copied))):
        yield Problem("copied", "it copied the conversation instead of summarizing it")
    if len(texts.long_summary) > max(length, TINY_SOURCE_CHARACTERS):
        yield Problem("too_long", "it was longer than the conversation")
    if length > FEW_SENTENCES_CHARACTERS and len(split_sentences(texts.long_summary)) < LONG_SENTENCES[0]:
        yield Problem("too_short", f"its longest text had fewer than {LONG_SENTENCES[0]} sentences")


def _echoes(texts: Texts, source: SourceTexts) -> bool:
    """Return whether a text repeats instructions in words that the conversation does not contain."""
    instructions = _runs_of_instructions(source.instructions)
    for text in texts.given:
        echoed = [run for run in runs(words(text), ECHOED_WORDS) if run in instructions]
        if echoed and not any(map(source.evidence.has_run, echoed)):
            return True
    return False


@lru_cache(maxsize=4)  # all summaries have the same instructions
def _runs_of_instructions(instructions: str) -> frozenset[tuple[str, ...]]:
    return frozenset(runs(words(instructions), ECHOED_WORDS))


def runs(tokens: Sequence[str], size: int) -> Iterator[tuple[str, ...]]:
    """Yield all runs of `size` words."""
    return (tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1))


def repeats_itself(text: str) -> bool:
    """Return whether a text repeats the same words again and again, as models sometimes do."""
    grams = list(runs(words(text), GRAM))
    return len(grams) - len(set(grams)) > REPEATED_SHARE * len(grams)


def ends_in_a_sentence(text: str) -> bool:
    """Return whether a text breaks off: its last sentence has no end, although the one before has."""
    *before, last = split_sentences(text) or [""]
    return bool(before) and bool(_ENDED.search(before[-1])) and bool(_OPEN.search(last))


def is_other_language(texts: Iterable[str], sources: Iterable[str]) -> bool:
    """Return whether a text is certainly in a language that none of the sources may be in.

    Texts that are too short for a reliable answer are ignored.
    """
    detected = {text: detect(text) for text in texts if len(text) >= SURE_CHARACTERS}
    foreign = [text for text, language in detected.items() if language != UNDETERMINED]
    for source in sources:
        if len(source) < SURE_CHARACTERS or not foreign:
            return False
        possible = plausible(source)
        if UNDETERMINED in possible:
            return False
        foreign = [t for t in foreign if detected[t] not in possible and detect(source) not in plausible(t)]
    return bool(foreign)


def shared_terms(text: str, source: Iterable[str], language: str) -> float:
    """Return the share of the text's content words whose stems, or their beginnings, are among the source's stems.

    It is 1.0 if the text has too few content words to judge.
    """
    terms = {term for term in stem_words(text, language) if term not in ROLES and term not in _REPORTING}
    if len(terms) < FEWEST_TERMS:
        return 1.0
    known = set(source)
    beginnings = {term[:BEGINNING] for term in known}
    return sum(term in known or term[:BEGINNING] in beginnings for term in terms) / len(terms)


def share_of_pairs(texts: Iterable[str], messages: Sequence[Said]) -> float:
    """Return the share of the texts' pairs of question and answer that the conversation has; 1.0 if they have none.

    A pair counts as present if the asker asked nothing else before the answer came. `messages` are the conversation's.
    """
    pairs = [pair for text in texts for pair in _pairs(text)]
    if not pairs:
        return 1.0

    @cache
    def spoken(at: int) -> str:
        return _spelled(" ".join(sentences_of(messages[at][1])))

    def was_one(asked: Said, told: Said) -> bool:
        for at in (at for at, (role, _) in enumerate(messages) if role == asked[0] and asked[1] in spoken(at)):
            for later in range(at + 1, len(messages)):
                role, content = messages[later]
                if role == told[0] and told[1] in spoken(later):
                    return True
                if role == asked[0] and _QUESTION.search(content):
                    break
        return False

    return sum(was_one(*pair) for pair in pairs) / len(pairs)


def _pairs(text: str) -> Iterator[tuple[Said, Said]]:
    parts = _SPEAKER.split(text)
    turns = [(role.lower(), _END.split(said.strip())) for role, said in zip(parts[1::2], parts[2::2], strict=True)]
    for (asker, asked), (other, told) in pairwise(turns):
        if _QUESTION.search(asked[-1]):
            yield (asker, _spelled(asked[-1], last=KEY)), (other, _spelled(told[0], first=KEY))


def _spelled(text: str, first: int | None = None, last: int = 0) -> str:
    """Return the words of a text, or its first or last ones, normalized for comparison."""
    return f" {' '.join(words(text)[-last:][:first])} "
