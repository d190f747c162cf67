"""Topic shifts found in the text: does this message begin another topic than the messages before it?

A logistic regression whose weights are whole numbers, so that every machine decides alike. It sees the messages of the
open episode and this one, never a later one. It knows English only: where the text is in another language, or too short
to tell, it finds nothing. Trained by `python -m benchmarks.quality.shift_training`.
"""

import json
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib import resources
from itertools import chain
from typing import NamedTuple

import orjson

VERSION = 1
"""Version of the features and weights below; 15 at most, because a message's row has four bits for it."""
LOOKED_BACK = 4
"""Messages of the open episode that are read."""
MAX_CHARACTERS = 600
"""Characters of a message that are read."""
ENGLISH_SHARE = 0.2
"""Least share of words that only English has, in this message and those before."""
REMEMBERED = 1024
"""Messages whose utterances are kept in memory, as long as each has at most LARGEST_REMEMBERED bytes of JSON."""
LARGEST_REMEMBERED = 4096
FOREIGN_SHARE = 0.1
"""Share of characters beyond ASCII from which a text is in no language that is known here."""

_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")
"""ASCII alone: what else is a letter depends on the Unicode version of Python."""
_ENGLISH_WORDS = """
i'm i'll i've i'd it's don't that's you're you are your my the is it this that these those what which who how when
where why and of with have has do does did can could would should will for from they their there was were been not
but or if i to about any some get need want like know just
"""
"""Words that, among the languages of chats, only English has."""
_ENGLISH = frozenset(_ENGLISH_WORDS.split())
_OTHER_FUNCTION_WORDS = """
me myself we our ours yours he him his she her hers its them theirs whom am be being had having doing ought might
must shall cannot may a an because as until while at by against between into through during before after above below
up down in out on off over under again further then once here all both each few more most other no nor only own same
so than too very also can't yes yeah oh ok okay hi hello hey thanks thank please sure well great cool nice wow
really got
"""
_FUNCTION = _ENGLISH | frozenset(_OTHER_FUNCTION_WORDS.split())
_PRONOUN_WORDS = """
it that this they them he she him her its their those these one there then
"""
_PRONOUNS = frozenset(_PRONOUN_WORDS.split())
_CUE = re.compile(
    r"\b(?:by the way|another|else|other question|also|what about|how about|anyway|thank|thanks|hello|hi|hey|bye"
    r"|do you have|do you like|what do you|i would like|i want to|i'd like|tell me|can you)\b"
)
_SUFFIXES = ("ing", "ies", "ed", "es", "s")
_PRONOUN_WITHIN = 8
"""Words from the beginning in which a pronoun refers to what was said before."""


class Utterance(NamedTuple):
    """Part of a message that the model sees."""

    is_user: bool
    first: str
    """First word."""
    first_two: str
    length: int
    """Bucket of the number of words."""
    content: frozenset[str]
    """Words that are no function words, without their endings."""
    asks: bool
    ends_asking: bool
    has_pronoun: bool
    cues: frozenset[str]
    words: int
    characters: int
    foreign: int
    """Number of characters beyond ASCII."""
    english: int
    """Number of words that only English has."""

    @property
    def who(self) -> str:
        return "u" if self.is_user else "a"


def utterance(json: bytes) -> Utterance:
    """Read an `EpisodeMessage`'s JSON. Cached, because each message is looked at with those that follow it."""
    return _remembered(json) if len(json) <= LARGEST_REMEMBERED else _utterance(json)


def _utterance(json: bytes) -> Utterance:
    message = orjson.loads(json)
    return utterance_of(message["role"], message["content"])


_remembered = lru_cache(REMEMBERED)(_utterance)


def utterance_of(role: str, content: str) -> Utterance:
    text = content[:MAX_CHARACTERS].lower().replace("’", "'")
    words = _WORD.findall(text)
    return Utterance(
        is_user=role == "user",
        first=words[0] if words else "",
        first_two=" ".join(words[:2]) if len(words) > 1 else "",
        length=_bucket(len(words), (2, 4, 7, 11, 16, 25, 40)),
        content=frozenset(_stem(word) for word in words if len(word) > 2 and word not in _FUNCTION),
        asks="?" in text,
        ends_asking=text.rstrip().endswith("?"),
        has_pronoun=not _PRONOUNS.isdisjoint(words[:_PRONOUN_WITHIN]),
        cues=frozenset(_CUE.findall(text)),
        words=len(words),
        characters=len(text),
        foreign=0 if text.isascii() else len(text) - len(text.encode("ascii", "ignore")),
        english=sum(word in _ENGLISH for word in words),
    )


def begins_topic(before: Sequence[Utterance], now: Utterance, length: int) -> bool:
    """Return whether a topic begins with `now`.

    `before`: the last LOOKED_BACK messages of the open episode at most, at least one; `length`: how many it has.
    """
    if not is_english((*before, now)):
        return False
    weights = _weights()
    return sum(weights.get(name, 0) for name in features(before, now, length)) > 0


def is_english(found: Sequence[Utterance]) -> bool:
    words = sum(each.words for each in found)
    if not words or sum(each.english for each in found) < ENGLISH_SHARE * words:
        return False
    return sum(each.foreign for each in found) <= FOREIGN_SHARE * sum(each.characters for each in found)


def features(before: Sequence[Utterance], now: Utterance, length: int) -> list[str]:
    """Names of the features that hold."""
    last = before[-1]
    who = now.who + last.who
    known = frozenset(chain.from_iterable(each.content for each in before))
    shared, new = len(now.content & known), len(now.content - known)
    share = shared / max(1, len(now.content))
    found = [
        "bias",
        f"who={who}",
        f"who,asks={who}{last.ends_asking:d}{now.asks:d}",
        f"n={_bucket(length, (2, 3, 4, 5, 6, 8, 10))}",
        f"n,who={_bucket(length, (2, 3, 4, 6, 8))}{who}",
        f"asks={last.ends_asking:d}{last.asks:d}{now.asks:d}{now.ends_asking:d}",
        f"l={now.length}",
        f"k={last.length}",
        f"l,who={now.length}{who}",
        f"l,asks={now.length}{last.ends_asking:d}{now.asks:d}",
        f"k,asks={last.length}{last.ends_asking:d}{now.asks:d}",
        f"last={_bucket(len(now.content & last.content), (1, 2, 3, 5))}",
        f"shared={_bucket(shared, (1, 2, 3, 5))}",
        f"share={_bucket(share, (0.01, 0.15, 0.3, 0.5, 0.75))}",
        f"share,who={_bucket(share, (0.01, 0.3, 0.6))}{who}",
        f"new={_bucket(new, (1, 2, 3, 5, 8))}",
        f"new,asks={_bucket(new, (1, 2, 3, 5, 8))}{now.asks:d}{who}",
        f"it,who={now.has_pronoun:d}{who}",
        f"first={now.first}",
        f"two={now.first_two}",
        f"was={last.first}",
        f"were={last.first_two}",
        *(f"cue={cue},{now.who}" for cue in now.cues),
    ]
    if len(before) > 1:
        earlier = before[-2]
        found.append(f"asks2={earlier.ends_asking:d}{last.ends_asking:d}{now.asks:d}{who}{earlier.who}")
    return found


@cache
def _weights() -> dict[str, int]:
    """Weights in thousandths, which sum exactly; the bias has the threshold in it."""
    found: dict[str, int] = json.loads((resources.files(__package__) / f"shifts-{VERSION}.json").read_bytes())
    return found


def _bucket(number: float, edges: Sequence[float]) -> int:
    return sum(number >= edge for edge in edges)


def _stem(word: str) -> str:
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) >= len(suffix) + 3:
            return word[: -len(suffix)]
    return word
