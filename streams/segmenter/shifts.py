"""Topic shifts found in the text: does this message begin a different topic than the messages before it?

The model is a logistic regression with integer weights, so that every machine decides alike. It sees the message and
the conversation's row, which sums up earlier messages, but no later message. It knows only English: if the text is in
another language, or too short to tell, it finds nothing. Trained by `python -m tools.topic_model`.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from operator import getitem
from struct import Struct
from typing import NamedTuple
from zlib import crc32

MAX_CHARACTERS = 600
"""Only this many characters of a message are read."""
MAX_CONTENT = 24
"""Maximum number of different content words of a message that are compared."""
STEM_BYTES = 5
"""Only this many bytes of a word are compared."""
REMEMBERED = 64
"""The last content words of the open episode that are remembered."""
TYPICAL_EPISODE = 4
"""The average number of messages per episode towards which the threshold moves over a conversation."""
MOST_SAVED = 12
"""Maximum number of messages above or below that average that count."""
ENGLISH_WORD_IN = 5
"""The text is English if at least one word in five, here and in earlier messages, exists only in English."""
FORMAL = 56
"""Tenths of a character per different word, here and in earlier messages, from which a conversation counts as formal.

Long words and long messages are typical of services, and of assistants that inform. There it matters who speaks and how
much is new; in chats between people neither says anything.
"""
MOST_NEW = 7
"""Maximum number of content words new to the episode that count."""
FOREIGN_CHARACTER_IN = 10
"""At most one character in ten may be beyond ASCII; otherwise the text is in no language that the model knows."""

CUES = {
    "thanks": "thanks thank welcome appreciate",
    "turns": "also another else other anyway next btw besides",
    "wants": "want need would please help like tell id wondering",
    "me": "i me my im ive ill mine",
    "denies": "no not dont nope never",
    "refers": "it its that thats this they them he him she her his their those these one there then",
    "question word": "what which who how when where why",
}
"""Words that reveal something about the message, by class."""
REFERS = list(CUES).index("refers")
REFERS_WITHIN = 8
"""A word that refers back counts only if it is among this many first words of the message."""
_ENGLISH_WORDS = """
im ill ive id its dont thats youre you are your my the is it this that these those what which who how when where why
and of with have has do does did can could would should will for from they their there was were been not but or if i to
about any some get need want like know just
"""
"""Words, without apostrophes, that only English has among the languages of chats."""
_OTHER_FUNCTION_WORDS = """
me myself we our ours yours he him his she her hers them theirs whom am be being had having doing ought might must
shall cannot may a an because as until while at by against between into through during before after above below up down
in out on off over under again further then once here all both each few more most other no nor only own same so than
too very also cant yes yeah oh ok okay hi hello hey bye goodbye thanks thank please sure well great cool nice wow really
got yep right exactly true awesome good
"""


_ENGLISH = frozenset(_ENGLISH_WORDS.encode().split())
_CUES: dict[bytes, int] = {}
for _number, _words in enumerate(CUES.values()):
    for _word in _words.encode().split():
        _CUES[_word] = _CUES.get(_word, 0) | 1 << _number
_REFERS = frozenset(CUES["refers"].encode().split())
_ENGLISH_BIT = len(CUES)
_CUE_BITS = (1 << _ENGLISH_BIT) - 1
_KNOWN = {
    word: _CUES.get(word, 0) | (word in _ENGLISH) << _ENGLISH_BIT
    for word in (*_ENGLISH, *_CUES, *_OTHER_FUNCTION_WORDS.encode().split())
}
"""Function words and cues, with a bit for each class in CUES and one for `_ENGLISH`. All other words are content."""
_CASE = {byte: byte + 32 for byte in range(65, 91)}
_LETTERS = bytes(_CASE.get(byte, byte if chr(byte).isalnum() and byte < 128 else 32) for byte in range(256))
"""Maps bytes to lower-case ASCII letters and spaces. Python's versions disagree about other letters."""


class Utterance(NamedTuple):
    """The parts of a message that the model sees."""

    is_user: bool
    is_question: bool
    ends_asking: bool
    cues: int
    """A bit for each class of CUES in the message."""
    words: int
    """Number of different words."""
    english: int
    """Number of words that only English has."""
    characters: int
    foreign: int
    """Number of characters beyond ASCII."""
    content: Sequence[int]
    """Two-byte digests of its content words, each once."""


def utterance_of(is_user: bool, content: str) -> Utterance:
    text = content[:MAX_CHARACTERS]
    plain = text.encode("ascii", "ignore")
    words = plain.translate(_LETTERS, b"'").split()
    different = frozenset(words)
    bits = english = 0
    digests = set()
    for word in different:
        known = _KNOWN.get(word)
        if known is None:
            digests.add(crc32(word[:STEM_BYTES]) & 0xFFFF)
        else:
            bits |= known
            english += known >> _ENGLISH_BIT
    cues = bits & _CUE_BITS
    if cues >> REFERS & 1 and _REFERS.isdisjoint(words[:REFERS_WITHIN]):
        cues ^= 1 << REFERS
    return Utterance(
        is_user=is_user,
        is_question=b"?" in plain,
        ends_asking=plain.rstrip().endswith(b"?"),
        cues=cues,
        words=len(different),
        english=english,
        characters=len(text),
        foreign=len(text) - len(plain),
        content=sorted(digests)[:MAX_CONTENT],  # sorted, because sets have no order
    )


LAST_USER = 1
LAST_ENDED_ASKING = 2
EARLIER_ENDED_ASKING = 4
_ROWS = [Struct(f">bBHHHHH{number}H") for number in range(REMEMBERED + 1)]
"""Row formats by number of words."""
HEADER_BYTES = _ROWS[0].size
"""Size of the numbers in bytes; the words follow."""
ROW_BYTES = range(HEADER_BYTES, HEADER_BYTES + 2 * REMEMBERED + 1, 2)
"""Lengths that a row may have: 12 bytes of numbers and two per word, at most 140."""
BEGUN = _ROWS[0].pack(TYPICAL_EPISODE, 0, 150, 0, 0, 0, 0)
"""Row before the first message of a conversation, which also opens an episode."""


@dataclass(slots=True, init=False)
class TopicListener:
    """The model's knowledge of a conversation: numbers about all of it, and the words of the open episode.

    `row` is a row that a listener wrote; its length is in ROW_BYTES.
    """

    saved: int
    """By how many messages the ended episodes together exceed TYPICAL_EPISODE each (negative if they are shorter); at
    most MOST_SAVED."""
    last: int
    """Bits of the last message, LAST_USER and LAST_ENDED_ASKING, and EARLIER_ENDED_ASKING of the one before it."""
    mean_share: int
    """Running mean of the share of a message's content words that were already in the episode, in thousandths."""
    words: int
    """Decayed count, like the next three."""
    english: int
    characters: int
    foreign: int
    content: list[int]
    """Digests of the open episode's content words, most recent last."""

    def __init__(self, row: bytes = BEGUN) -> None:
        numbers = _ROWS[(len(row) - HEADER_BYTES) // 2].unpack(row)
        self.saved, self.last, self.mean_share, self.words, self.english, *_ = numbers
        self.characters, self.foreign, *self.content = numbers[5:]

    @property
    def row(self) -> bytes:
        numbers = self.saved, self.last, self.mean_share, self.words, self.english, self.characters, self.foreign
        return _ROWS[len(self.content)].pack(*numbers, *self.content)

    def known_words(self, now: Utterance) -> int:
        """Count the message's content words that are already in the open episode."""
        return len({*self.content}.intersection(now.content))

    def is_english(self, now: Utterance) -> bool:
        """Decide by the message and by all earlier ones, which weigh less the older they are."""
        words = self.words + now.words
        if not words or (self.english + now.english) * ENGLISH_WORD_IN < words:
            return False
        return (self.foreign + now.foreign) * FOREIGN_CHARACTER_IN <= self.characters + now.characters

    def is_formal(self, now: Utterance) -> bool:
        """Return whether words are long on average, here and in earlier messages."""
        return (self.characters + now.characters) * 10 >= (self.words + now.words) * FORMAL

    def begins_topic(self, now: Utterance, length: int) -> bool:
        """Return whether a topic begins with the message. `length` counts the open episode's messages, at least 1."""
        return self.is_english(now) and self.score(weights(), now, length) > 0

    def score(self, weights: "Weights", now: Utterance, length: int) -> int:
        """Return the log-odds above the threshold, in thousandths."""
        found = map(getitem, weights.tables, self.features(now, length))
        return weights.bias + weights.pull * self.saved + sum(found)

    def features(self, now: Utterance, length: int) -> list[int]:
        """Return a value for each of TABLES.

        Most values also encode whether a question was asked before, or is asked now.
        """
        said, known, last = len(now.content), self.known_words(now), self.last
        questions = (last & LAST_ENDED_ASKING) | now.is_question
        share = known * 1000 // said if said else 0
        formal = (1 + now.is_user, 1 + min(said - known, MOST_NEW)) if self.is_formal(now) else (0, 0)
        by_asked = [*formal, *(now.cues >> number & 1 for number in range(len(CUES)))]
        return [
            bisect_right((1, 120, 250, 400, 600), share) << 2 | questions,
            bisect_right((-150, -50, 50, 150, 300), share - self.mean_share),
            bisect_right((2, 3, 4, 5, 6, 7, 8, 10, 14), length),
            bisect_right((-4, 0, 3, 6, 9), self.saved),
            (last & 6) << 1 | now.is_question << 1 | (now.is_user == last & LAST_USER),
            *(value << 2 | questions for value in by_asked),
        ]

    def take(self, now: Utterance, *, opens: bool) -> None:
        """Count the message. `opens` means that it is the first one of an episode."""
        saved, share = self.saved + 1, 0
        if opens:
            saved, self.content = saved - TYPICAL_EPISODE, [*now.content]
        elif now.content:
            share = self.known_words(now) * 1000 // len(now.content)
            self.content = [*self.content, *now.content][-REMEMBERED:]
        self.saved = max(-MOST_SAVED, min(saved, MOST_SAVED))
        self.last = now.is_user | now.ends_asking << 1 | (self.last & LAST_ENDED_ASKING) << 1
        self.mean_share += share - self.mean_share >> 2
        self.words = (self.words * 3 >> 2) + now.words
        self.english = (self.english * 3 >> 2) + now.english
        self.characters = (self.characters * 3 >> 2) + now.characters
        self.foreign = (self.foreign * 3 >> 2) + now.foreign


def without_words(row: bytes) -> bytes:
    """Return the row after the last message of an episode."""
    return row[:HEADER_BYTES]


def reworded(row: bytes, said: Iterable[Utterance]) -> bytes:
    """Return the row with the words of the open episode's messages, one of which was changed or deleted."""
    listener = TopicListener(row)
    listener.content = [word for each in said for word in each.content][-REMEMBERED:]
    return listener.row


TABLES: Mapping[str, int] = {
    "share, questions": 24,
    "share, relative": 6,
    "length": 10,
    "saved": 6,
    "pair": 16,
    "speaker": 12,
    "new words": 4 * (MOST_NEW + 2),
    **{f"cue: {name}": 8 for name in CUES},
}
"""The features, and how many values each has."""


class Weights(NamedTuple):
    """Weights in thousandths, as integers, whose sum is the same on every machine."""

    bias: int
    """Includes the threshold."""
    pull: int
    """Weight per message of `saved`."""
    tables: Sequence[Sequence[int]]
    """The tables, in the order of TABLES."""


def weights_of(bias: int, pull: int, tables: Mapping[str, Sequence[int]]) -> Weights:
    """Make weights from tables, which are keyed by the names in TABLES."""
    return Weights(bias, pull, [tables[name] for name in TABLES])


@cache
def weights() -> Weights:
    return weights_of(**json.loads((resources.files(__package__) / "shifts.json").read_bytes()))
