"""Topic shifts found in the text: does this message begin another topic than the messages before it?

A logistic regression whose weights are whole numbers, so that every machine decides alike. It sees this message and
what the conversation's row keeps of those before, never a later one. It knows English only: where the text is in
another language, or too short to tell, it finds nothing. Trained by `python -m benchmarks.quality.shift_training`.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import resources
from itertools import chain, product
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

VERSION: Final = 3
"""Version of the features and weights below; 15 at most, because a message's row has four bits for it."""
KNOWN_VERSIONS = frozenset((VERSION,))
"""Versions that decide: an episode keeps the one that opened it. Versions 1 and 2 were never released."""
MAX_CHARACTERS: Final = 600
"""Characters of a message that are read."""
MAX_CONTENT: Final = 24
"""Content words of a message that are compared, each counted once."""
STEM_BYTES: Final = 5
"""Bytes of a word that are compared."""
REMEMBERED: Final = 64
"""Content words of the open episode that are remembered: the last ones."""
TYPICAL_EPISODE: Final = 4
"""Messages for each episode, on average over the conversation, towards which the threshold moves."""
MOST_SAVED: Final = 12
"""Messages beyond that average, or missing from it, that count."""
ENGLISH_WORD_IN: Final = 5
"""One word of so many, at least, is one that only English has, in this message and those before."""
FORMAL: Final = 56
"""Tenths of a character for each different word, in this message and those before, from which a conversation is formal.

Long words, and long messages, are those of services and of assistants that inform; there it counts who speaks and how
much is new. Between people who chat neither tells anything.
"""
MOST_NEW: Final = 7
"""Content words that the episode has not, at most, that count."""
LONGEST: Final = 14
"""Messages of the open episode beyond which its length makes no difference."""
FOREIGN_CHARACTER_IN: Final = 10
"""One character of so many beyond ASCII, at most: otherwise the text is in no language that is known here."""

CUES = {
    "thanks": "thanks thank welcome appreciate",
    "turns": "also another else other anyway next btw besides",
    "wants": "want need would please help like tell id wondering",
    "me": "i me my im ive ill mine",
    "denies": "no not dont nope never",
    "refers": "it its that thats this they them he him she her his their those these one there then",
    "question word": "what which who how when where why",
}
"""Words that tell something about the message, by their class."""
REFERS: Final = list(CUES).index("refers")
REFERS_WITHIN: Final = 8
"""Words from the beginning among which one that refers to what was said before counts."""
_ENGLISH_WORDS = """
im ill ive id its dont thats youre you are your my the is it this that these those what which who how when where why
and of with have has do does did can could would should will for from they their there was were been not but or if i to
about any some get need want like know just
"""
"""Words that, among the languages of chats, only English has; without apostrophes."""
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
_REFERS: Final = frozenset(CUES["refers"].encode().split())
_ENGLISH_BIT: Final = len(CUES)
_CUE_BITS: Final = (1 << _ENGLISH_BIT) - 1
_KNOWN: Final = {
    word: _CUES.get(word, 0) | (word in _ENGLISH) << _ENGLISH_BIT
    for word in (*_ENGLISH, *_CUES, *_OTHER_FUNCTION_WORDS.encode().split())
}
"""Function words and cues, with a bit for each class of CUES, and one for `_ENGLISH`: all other words are content."""
_CASE = {byte: byte + 32 for byte in range(65, 91)}
_LETTERS: Final = bytes(_CASE.get(byte, byte if chr(byte).isalnum() and byte < 128 else 32) for byte in range(256))
"""Makes lower-case words of ASCII, with spaces between: what else is a letter depends on the version of Python."""


class Utterance:
    """Part of a message that the model sees. No tuple: compiled, its fields are those of a C structure."""

    __slots__ = ("asks", "characters", "content", "cues", "ends_asking", "english", "foreign", "is_user", "words")
    cues: int
    """A bit for each class of CUES that it has."""
    words: int
    """Number of different words."""
    english: int
    """Number of those that only English has."""
    foreign: int
    """Number of characters beyond ASCII."""
    content: list[int]
    """Digests of its content words, two bytes each, each once."""

    def __init__(
        self,
        is_user: bool,
        asks: bool,
        ends_asking: bool,
        cues: int,
        words: int,
        english: int,
        characters: int,
        foreign: int,
        content: list[int],
    ) -> None:
        self.is_user, self.asks, self.ends_asking, self.cues = is_user, asks, ends_asking, cues
        self.words, self.english, self.characters, self.foreign = words, english, characters, foreign
        self.content = content


HeardWords = tuple[int, int, int, list[int]]
"""Number of different words, number of those that only English has, bits of the cues, digests of the content words."""


def words_in(plain: bytes) -> HeardWords:
    """`plain`: ASCII, at most MAX_CHARACTERS."""
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
    return len(different), english, cues, sorted(digests)[:MAX_CONTENT]  # sets have no order


def _quickest() -> Callable[[bytes], HeardWords]:
    """Return `words_in`, or what was compiled of _words.c."""
    try:
        from afterword.streams.segmenter import _words
    except ImportError:
        return words_in
    _words.prepare(_KNOWN, _ENGLISH_BIT, REFERS, REFERS_WITHIN, STEM_BYTES, MAX_CONTENT)
    return _words.words_in


_words_in: Final = _quickest()


def utterance_of(is_user: bool, content: str) -> Utterance:
    text = content[:MAX_CHARACTERS]
    plain = text.encode("ascii", "ignore")
    words, english, cues, digests = _words_in(plain)
    asks = b"?" in plain
    ends_asking = asks and plain.rstrip().endswith(b"?")
    return Utterance(is_user, asks, ends_asking, cues, words, english, len(text), len(text) - len(plain), digests)


LAST_USER: Final = 1
LAST_ENDED_ASKING: Final = 2
EARLIER_ENDED_ASKING: Final = 4
_ROWS: Final = [Struct(f">BbBHHHHH{number}H") for number in range(REMEMBERED + 1)]
"""Rows by their number of words."""
HEADER_BYTES: Final = _ROWS[0].size
"""Bytes of the numbers; what follows them are words."""
ROW_BYTES = range(HEADER_BYTES, HEADER_BYTES + 2 * REMEMBERED + 1, 2)
"""Lengths that a row may have: 13 bytes of numbers and two for each word, at most 141."""
BEGUN = _ROWS[0].pack(VERSION, TYPICAL_EPISODE, 0, 150, 0, 0, 0, 0)
"""Row before the first message of a conversation, which is the first of an episode too."""


class TopicListener:
    """The knowledge that the model has of a conversation: numbers of all of it, and words of the open episode.

    `row`: of one of ROW_BYTES, as another listener wrote it.
    """

    __slots__ = (
        "_known",
        "characters",
        "content",
        "english",
        "foreign",
        "last",
        "mean_share",
        "saved",
        "version",
        "words",
    )
    version: int
    """Version of the model that decides about the open episode."""
    saved: int
    """Messages so far beyond TYPICAL_EPISODE for each episode that ended, or missing; at most MOST_SAVED."""
    last: int
    """Bits of the last message: LAST_USER, LAST_ENDED_ASKING, and EARLIER_ENDED_ASKING of the one before."""
    mean_share: int
    """Running mean of the share of a message's content words that the episode had, in thousandths."""
    words: int
    """Decayed count, as are the next three."""
    english: int
    characters: int
    foreign: int
    content: list[int]
    """Digests of the open episode's content words, the last ones at the end."""

    def __init__(self, row: bytes = BEGUN) -> None:
        numbers = _ROWS[(len(row) - HEADER_BYTES) // 2].unpack(row)
        self.version, saved, self.last, mean_share, self.words, self.english, *_ = numbers
        self.characters, self.foreign, *self.content = numbers[6:]
        self._known = set(self.content)
        # a damaged row may have any number
        self.saved, self.mean_share = max(-MOST_SAVED, min(saved, MOST_SAVED)), min(mean_share, 1000)

    @property
    def row(self) -> bytes:
        content = self.content
        return _ROWS[len(content)].pack(
            self.version,
            self.saved,
            self.last,
            self.mean_share,
            self.words,
            self.english,
            self.characters,
            self.foreign,
            *content,
        )

    def learn(self, now: Utterance) -> int:
        """Learn the message's content words, before it is taken; returns how many of them the open episode had."""
        known, content = self._known, now.content
        before = len(known)
        known.update(content)
        return len(content) + before - len(known)

    def is_english(self, now: Utterance) -> bool:
        """Decide by the message and, with less weight the longer ago, all before it."""
        words = self.words + now.words
        if not words or (self.english + now.english) * ENGLISH_WORD_IN < words:
            return False
        return (self.foreign + now.foreign) * FOREIGN_CHARACTER_IN <= self.characters + now.characters

    def is_formal(self, now: Utterance) -> bool:
        """Return whether words, or messages, are long, in this message and those before."""
        return (self.characters + now.characters) * 10 >= (self.words + now.words) * FORMAL

    def begins_topic(self, now: Utterance, common: int, length: int) -> bool:
        """Return whether a topic begins with the message.

        `common`: as it was learnt; `length`: messages of the open episode, at least one.
        """
        if self.version not in KNOWN_VERSIONS or not self.is_english(now):
            return False
        return self.score(weights(self.version), now, common, length) > 0

    def score(self, weights: "Weights", now: Utterance, common: int, length: int) -> int:
        """Log-odds, in thousandths, above the threshold: the sum for `features`, without calls for each of them."""
        bias, by_share, by_relative, by_length, by_saved, by_pair, by_formal, by_cues = weights
        asks = now.asks
        last, said = self.last, len(now.content)
        questions = (last & LAST_ENDED_ASKING) | asks
        share = common * 1000 // said if said else 0
        formal = 0
        if (self.characters + now.characters) * 10 >= (self.words + now.words) * FORMAL:
            new = said - common
            formal = 1 + now.is_user * (MOST_NEW + 1) + (new if new < MOST_NEW else MOST_NEW)
        return (
            bias
            + by_share[_SHARE_STEPS[share] << 2 | questions]
            + by_relative[_RELATIVE_STEPS[share - self.mean_share]]
            + by_length[length if length < LONGEST else LONGEST]
            + by_saved[self.saved]
            + by_pair[(last & 6) << 1 | asks << 1 | (now.is_user == last & LAST_USER)]
            + by_formal[formal << 2 | questions]
            + by_cues[now.cues << 2 | questions]
        )

    def features(self, now: Utterance, common: int, length: int) -> list[int]:
        """Return the value of each of TABLES: whether each cue is there, by what was asked and is."""
        said, last = len(now.content), self.last
        questions = (last & LAST_ENDED_ASKING) | now.asks
        share = common * 1000 // said if said else 0
        formal = (1 + now.is_user, 1 + min(said - common, MOST_NEW)) if self.is_formal(now) else (0, 0)
        by_asked = [*formal, *(now.cues >> number & 1 for number in range(len(CUES)))]
        return [
            share_step(share) << 2 | questions,
            relative_step(share - self.mean_share),
            length_step(length),
            saved_step(self.saved),
            (last & 6) << 1 | now.asks << 1 | (now.is_user == last & LAST_USER),
            *(value << 2 | questions for value in by_asked),
        ]

    def take(self, now: Utterance, common: int, *, opens: bool) -> None:
        """Know the message from now on. `common`: as it was learnt; `opens`: it is the first one of an episode."""
        content = now.content
        saved, share = self.saved + 1, 0
        if opens:
            self.version, saved, self.content, self._known = VERSION, saved - TYPICAL_EPISODE, [*content], {*content}
        elif content:
            share = common * 1000 // len(content)
            self.content += content
            if len(self.content) > REMEMBERED:
                self.content = self.content[-REMEMBERED:]
                self._known = set(self.content)
        self.saved = -MOST_SAVED if saved < -MOST_SAVED else MOST_SAVED if saved > MOST_SAVED else saved
        self.last = now.is_user | now.ends_asking << 1 | (self.last & LAST_ENDED_ASKING) << 1
        self.mean_share += share - self.mean_share >> 2
        self.words = (self.words * 3 >> 2) + now.words
        self.english = (self.english * 3 >> 2) + now.english
        self.characters = (self.characters * 3 >> 2) + now.characters
        self.foreign = (self.foreign * 3 >> 2) + now.foreign


def without_words(row: bytes) -> bytes:
    """The row after the last message of an episode."""
    return row[:HEADER_BYTES]


def reworded(row: bytes, said: Iterable[Utterance]) -> bytes:
    """The row with the words of these messages of the open episode, and no others: one was changed or is gone."""
    listener = TopicListener(row)
    listener.content = list(chain.from_iterable(each.content for each in said))[-REMEMBERED:]
    return listener.row


CUE = "cue: "
TABLES: Mapping[str, int] = {
    "share, questions": 24,
    "share, relative": 6,
    "length": 10,
    "saved": 6,
    "pair": 16,
    "speaker": 12,
    "new words": 4 * (MOST_NEW + 2),
    **{f"{CUE}{name}": 8 for name in CUES},
}
"""The features, and how many values each has."""


FORMALLY = [(0, 0), *product((1, 2), range(1, MOST_NEW + 2))]
"""Speaker and number of new words, each from 1, where the conversation is formal; 0 and 0 where it is not."""


def share_step(share: int) -> int:
    """`share`: in thousandths."""
    return bisect_right((1, 120, 250, 400, 600), share)


def relative_step(share: int) -> int:
    """`share`: a message's beside the running mean, in thousandths."""
    return bisect_right((-150, -50, 50, 150, 300), share)


_SHARE_STEPS: Final = bytes(map(share_step, range(1001)))
"""Step of each share: bytes, as larger tables push others out of the processor's caches."""
_RELATIVE_STEPS: Final = bytes(map(relative_step, (*range(1001), *range(-1000, 0))))
"""Step of each share beside the mean; the last ones are of the negative numbers, as Python counts."""


def length_step(length: int) -> int:
    return bisect_right((2, 3, 4, 5, 6, 7, 8, 10, LONGEST), length)


def saved_step(saved: int) -> int:
    return bisect_right((-4, 0, 3, 6, 9), saved)


class Weights(NamedTuple):
    """Weights in thousandths, which sum exactly, as the tables in which they are looked up.

    Of those by a number that may be negative, the last entries are of the negative numbers, as Python counts.
    """

    bias: int
    """Threshold included."""
    share: list[int]
    """Weight of each step of the share, and questions."""
    relative: list[int]
    """Weight of each step of the share beside the running mean."""
    length: list[int]
    """Weight of each length, to LONGEST."""
    saved: list[int]
    """Weight of messages saved, from -MOST_SAVED to MOST_SAVED; with the pull of each."""
    pair: list[int]
    formal: list[int]
    """Sums of the tables of who speaks and of new words, for all of FORMALLY with questions."""
    cues: list[int]
    """Sums of the tables of cues, for all of their combinations with questions."""


def weights_of(bias: int, pull: int, tables: Mapping[str, list[int]]) -> Weights:
    """`pull`: weight of each message saved; `tables`: as in TABLES."""
    speaker, new_words = tables["speaker"], tables["new words"]
    formal = [
        speaker[who << 2 | questions] + new_words[new << 2 | questions]
        for (who, new), questions in product(FORMALLY, range(4))
    ]
    by_cue = [tables[f"{CUE}{name}"] for name in CUES]
    cues = [
        sum(table[(bits >> number & 1) << 2 | questions] for number, table in enumerate(by_cue))
        for bits, questions in product(range(1 << len(by_cue)), range(4))
    ]
    length = [tables["length"][length_step(each)] for each in range(LONGEST + 1)]
    saved = [
        tables["saved"][saved_step(each)] + pull * each for each in (*range(MOST_SAVED + 1), *range(-MOST_SAVED, 0))
    ]
    return Weights(
        bias, tables["share, questions"], tables["share, relative"], length, saved, tables["pair"], formal, cues
    )


@cache
def weights(version: int = VERSION) -> Weights:
    found = json.loads((resources.files(__package__) / f"shifts-{version}.json").read_bytes())
    return weights_of(found["bias"], found["pull"], found["tables"])
