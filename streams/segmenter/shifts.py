"""Topic shifts found in the text: does this message begin another topic than the messages before it?

A logistic regression whose weights are whole numbers, so that every machine decides alike. It sees this message and
what the conversation's row keeps of those before, never a later one. It knows English only: where the text is in
another language, or too short to tell, it finds nothing. Trained by `python -m benchmarks.quality.shift_training`.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from importlib import resources
from itertools import chain, product
from struct import Struct
from typing import NamedTuple
from zlib import crc32

VERSION = 2
"""Version of the features and weights below; 15 at most, because a message's row has four bits for it."""
KNOWN_VERSIONS = frozenset((VERSION,))
"""Versions that decide: an episode keeps the one that opened it. Version 1 was never released."""
MAX_CHARACTERS = 600
"""Characters of a message that are read."""
MAX_CONTENT = 24
"""Content words of a message that are compared, each counted once."""
STEM_BYTES = 5
"""Bytes of a word that are compared."""
REMEMBERED = 64
"""Content words of the open episode that are remembered: the last ones."""
TYPICAL_EPISODE = 4
"""Messages for each episode, on average over the conversation, towards which the threshold moves."""
MOST_SAVED = 12
"""Messages beyond that average, or missing from it, that count."""
ENGLISH_WORD_IN = 5
"""One word of so many, at least, is one that only English has, in this message and those before."""
FOREIGN_CHARACTER_IN = 10
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
REFERS = list(CUES).index("refers")
REFERS_WITHIN = 8
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
_CUE_WORDS = frozenset(_CUES)
_REFERS = frozenset(CUES["refers"].encode().split())
_KNOWN = _ENGLISH | _CUE_WORDS | frozenset(_OTHER_FUNCTION_WORDS.encode().split())
"""Function words and cues: all other words are content."""
_CASE = {byte: byte + 32 for byte in range(65, 91)}
_LETTERS = bytes(_CASE.get(byte, byte if chr(byte).isalnum() and byte < 128 else 32) for byte in range(256))
"""Makes lower-case words of ASCII, with spaces between: what else is a letter depends on the version of Python."""


class Utterance(NamedTuple):
    """Part of a message that the model sees."""

    is_user: bool
    asks: bool
    ends_asking: bool
    cues: int
    """A bit for each class of CUES that it has."""
    words: int
    """Number of different words."""
    english: int
    """Number of those that only English has."""
    characters: int
    foreign: int
    """Number of characters beyond ASCII."""
    content: tuple[int, ...]
    """Digests of its content words, two bytes each, each once."""


def utterance_of(is_user: bool, content: str) -> Utterance:
    text = content[:MAX_CHARACTERS]
    plain = text.encode("ascii", "ignore")
    words = plain.translate(_LETTERS, b"'").split()
    different = frozenset(words)
    cues = 0
    for word in different & _CUE_WORDS:
        cues |= _CUES[word]
    if cues >> REFERS & 1 and _REFERS.isdisjoint(words[:REFERS_WITHIN]):
        cues ^= 1 << REFERS
    digests = sorted({crc32(word[:STEM_BYTES]) & 0xFFFF for word in different - _KNOWN})  # sets have no order
    asks = b"?" in plain
    return Utterance(
        is_user,
        asks,
        asks and plain.rstrip().endswith(b"?"),
        cues,
        len(different),
        len(different & _ENGLISH),
        len(text),
        len(text) - len(plain),
        tuple(digests[:MAX_CONTENT]),
    )


class TopicRow(NamedTuple):
    """The model's row of a conversation: numbers of all of it, and words of the open episode."""

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
    content: tuple[int, ...] = ()
    """Digests of the open episode's content words, the last ones at the end."""


LAST_USER, LAST_ENDED_ASKING, EARLIER_ENDED_ASKING = 1, 2, 4
BEGUN = TopicRow(VERSION, TYPICAL_EPISODE, 0, 150, 0, 0, 0, 0)
"""State before the first message of a conversation, which is the first of an episode too."""
_HEADER = Struct(">BbBHHHHH")
HEADER_BYTES = _HEADER.size
"""Bytes of the numbers; what follows them are words."""
_WORDS = [Struct(f">{number}H") for number in range(REMEMBERED + 1)]
ROW_BYTES = range(HEADER_BYTES, HEADER_BYTES + 2 * REMEMBERED + 1, 2)
"""Lengths that `encode_topic` may give."""


def encode_topic(topic: TopicRow) -> bytes:
    """Write 13 bytes of numbers and two for each word: at most 141."""
    content = topic.content
    return _HEADER.pack(*topic[:-1]) + _WORDS[len(content)].pack(*content)


@lru_cache(256)
def decode_topic(row: bytes) -> TopicRow:
    """`row`: of one of ROW_BYTES. Cached, because a message reads it twice: to decide, and to write the next one."""
    words = _WORDS[(len(row) - HEADER_BYTES) // 2].unpack_from(row, HEADER_BYTES)
    return TopicRow._make((*_HEADER.unpack_from(row), words))


def after(topic: TopicRow, now: Utterance, *, opens: bool) -> TopicRow:
    """The row after a message. `opens`: it is the first one of an episode."""
    share = 0 if opens else _share(topic, now)
    saved = topic.saved + 1 - (TYPICAL_EPISODE if opens else 0)
    last = now.is_user | now.ends_asking << 1 | (topic.last & LAST_ENDED_ASKING) << 1
    return TopicRow(
        VERSION if opens else topic.version,
        max(-MOST_SAVED, min(saved, MOST_SAVED)),
        last,
        topic.mean_share + (share - topic.mean_share >> 2),
        (topic.words * 3 >> 2) + now.words,
        (topic.english * 3 >> 2) + now.english,
        (topic.characters * 3 >> 2) + now.characters,
        (topic.foreign * 3 >> 2) + now.foreign,
        now.content if opens else (topic.content + now.content)[-REMEMBERED:],
    )


def reworded(row: bytes, said: Iterable[Utterance]) -> bytes:
    """The row with the words of these messages of the open episode, and no others: one was changed or is gone."""
    content = tuple(chain.from_iterable(each.content for each in said))
    return encode_topic(decode_topic(row)._replace(content=content[-REMEMBERED:]))


def begins_topic(topic: TopicRow, now: Utterance, length: int) -> bool:
    """Return whether a topic begins with `now`. `length`: messages of the open episode, at least one."""
    if topic.version not in KNOWN_VERSIONS:
        return False
    return is_english(topic, now) and score(weights(topic.version), topic, now, length) > 0


def is_english(topic: TopicRow, now: Utterance) -> bool:
    """Decide by the message and, with less weight the longer ago, all before it."""
    words = topic.words + now.words
    if not words or (topic.english + now.english) * ENGLISH_WORD_IN < words:
        return False
    return (topic.foreign + now.foreign) * FOREIGN_CHARACTER_IN <= topic.characters + now.characters


CUE = "cue: "
TABLES: Mapping[str, int] = {
    "share, questions": 24,
    "share, relative": 6,
    "length": 10,
    "saved": 6,
    "pair": 16,
    **{f"{CUE}{name}": 8 for name in CUES},
}
"""The features, and how many values each has."""


def features(topic: TopicRow, now: Utterance, length: int) -> list[int]:
    """Return the value of each of TABLES: whether each cue is there, by what was asked and is."""
    share, relative, length_step, saved, pair, questions = _seen(topic, now, length)
    cues = [(now.cues >> number & 1) << 2 | questions for number in range(len(CUES))]
    return [share << 2 | questions, relative, length_step, saved, pair, *cues]


class Weights(NamedTuple):
    """Weights in thousandths, which sum exactly, as the tables in which they are looked up."""

    bias: int
    """Threshold included."""
    pull: int
    """Weight of each message saved."""
    share: Sequence[int]
    relative: Sequence[int]
    length: Sequence[int]
    saved: Sequence[int]
    pair: Sequence[int]
    cues: Sequence[int]
    """Sums of the tables of cues, for all of their combinations with questions."""


def score(weights: Weights, topic: TopicRow, now: Utterance, length: int) -> int:
    """Log-odds, in thousandths, above the threshold."""
    share, relative, length_step, saved, pair, questions = _seen(topic, now, length)
    return (
        weights.bias
        + weights.pull * topic.saved
        + weights.share[share << 2 | questions]
        + weights.relative[relative]
        + weights.length[length_step]
        + weights.saved[saved]
        + weights.pair[pair]
        + weights.cues[now.cues << 2 | questions]
    )


def weights_of(bias: int, pull: int, tables: Mapping[str, Sequence[int]]) -> Weights:
    """`tables`: as in TABLES."""
    cues = [tables[f"{CUE}{name}"] for name in CUES]
    sums = [
        sum(table[(bits >> number & 1) << 2 | questions] for number, table in enumerate(cues))
        for bits, questions in product(range(1 << len(cues)), range(4))
    ]
    return Weights._make((bias, pull, *(tables[name] for name in TABLES if not name.startswith(CUE)), sums))


@cache
def weights(version: int = VERSION) -> Weights:
    found = json.loads((resources.files(__package__) / f"shifts-{version}.json").read_bytes())
    return weights_of(found["bias"], found["pull"], found["tables"])


def _seen(topic: TopicRow, now: Utterance, length: int) -> tuple[int, int, int, int, int, int]:
    share = _share(topic, now)
    last, asks = topic.last, now.asks
    asked = last >> 1 & 1
    return (
        bisect_right((1, 120, 250, 400, 600), share),
        bisect_right((-150, -50, 50, 150, 300), share - topic.mean_share),
        bisect_right((2, 3, 4, 5, 6, 7, 8, 10, 14), length),
        bisect_right((-4, 0, 3, 6, 9), topic.saved),
        (last & 6) << 1 | asks << 1 | (now.is_user == last & LAST_USER),
        asked << 1 | asks,
    )


def _share(topic: TopicRow, now: Utterance) -> int:
    """Share of the message's content words that the episode has, in thousandths."""
    content = now.content
    return len(frozenset(content).intersection(topic.content)) * 1000 // len(content) if content else 0
