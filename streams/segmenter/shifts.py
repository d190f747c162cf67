"""Topic shifts found in the text: does this message begin another topic than the messages before it?

A logistic regression whose weights are whole numbers, so that every machine decides alike. It sees this message and
what the conversation's row keeps of those before, never a later one. It knows English only: where the text is in
another language, or too short to tell, it finds nothing. Trained by `python -m benchmarks.quality.shift_training`.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import chain, product
from struct import Struct
from typing import NamedTuple
from zlib import crc32

VERSION = 3
"""Version of the features and weights below; 15 at most, because a message's row has four bits for it."""
KNOWN_VERSIONS = frozenset((VERSION,))
"""Versions that decide: an episode keeps the one that opened it. Versions 1 and 2 were never released."""
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
FORMAL = 56
"""Tenths of a character for each different word, in this message and those before, from which a conversation is formal.

Long words, and long messages, are those of services and of assistants that inform; there it counts who speaks and how
much is new. Between people who chat neither tells anything.
"""
MOST_NEW = 7
"""Content words that the episode has not, at most, that count."""
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
_REFERS = frozenset(CUES["refers"].encode().split())
_ENGLISH_BIT = len(CUES)
_CUE_BITS = (1 << _ENGLISH_BIT) - 1
_KNOWN = {
    word: _CUES.get(word, 0) | (word in _ENGLISH) << _ENGLISH_BIT
    for word in (*_ENGLISH, *_CUES, *_OTHER_FUNCTION_WORDS.encode().split())
}
"""Function words and cues, with a bit for each class of CUES, and one for `_ENGLISH`: all other words are content."""
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
    asks = b"?" in plain
    return Utterance(
        is_user,
        asks,
        asks and plain.rstrip().endswith(b"?"),
        cues,
        len(different),
        english,
        len(text),
        len(text) - len(plain),
        tuple(sorted(digests)[:MAX_CONTENT]),  # sets have no order
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


_NUMBERS = TopicRow._fields.index("content")
LAST_USER, LAST_ENDED_ASKING, EARLIER_ENDED_ASKING = 1, 2, 4
BEGUN = TopicRow(VERSION, TYPICAL_EPISODE, 0, 150, 0, 0, 0, 0)
"""State before the first message of a conversation, which is the first of an episode too."""
_ROWS = [Struct(f">BbBHHHHH{number}H") for number in range(REMEMBERED + 1)]
"""Rows by their number of words."""
HEADER_BYTES = _ROWS[0].size
"""Bytes of the numbers; what follows them are words."""
ROW_BYTES = range(HEADER_BYTES, HEADER_BYTES + 2 * REMEMBERED + 1, 2)
"""Lengths that `encode_topic` may give."""


def encode_topic(topic: TopicRow) -> bytes:
    """Write 13 bytes of numbers and two for each word: at most 141."""
    content = topic[-1]
    return _ROWS[len(content)].pack(*topic[:-1], *content)


def decode_topic(row: bytes) -> TopicRow:
    """`row`: of one of ROW_BYTES."""
    numbers = _ROWS[(len(row) - HEADER_BYTES) // 2].unpack(row)
    return TopicRow._make((*numbers[:_NUMBERS], numbers[_NUMBERS:]))


class Heard(NamedTuple):
    """A message as the model sees it, beside the row before it: read once to decide and to write the next row."""

    topic: TopicRow
    now: Utterance
    common: int
    """Number of the message's content words that the open episode has."""

    @property
    def share(self) -> int:
        """Share of the message's content words that the open episode has, in thousandths."""
        said = len(self.now.content)
        return self.common * 1000 // said if said else 0


def hear(topic: TopicRow, now: Utterance) -> Heard:
    content, known = now.content, topic.content
    return Heard(topic, now, len(frozenset(content).intersection(known)) if content and known else 0)


def after(heard: Heard, *, opens: bool) -> TopicRow:
    """The row after a message. `opens`: it is the first one of an episode."""
    version, saved, last, mean_share, words, english, characters, foreign, content = heard.topic
    is_user, _, ends_asking, _, more_words, more_english, more_characters, more_foreign, more = heard.now
    share, saved = 0, saved + 1
    if opens:
        version, saved, content = VERSION, saved - TYPICAL_EPISODE, more
    else:
        share, content = heard.share, (content + more)[-REMEMBERED:]
    return TopicRow(
        version,
        -MOST_SAVED if saved < -MOST_SAVED else MOST_SAVED if saved > MOST_SAVED else saved,
        is_user | ends_asking << 1 | (last & LAST_ENDED_ASKING) << 1,
        mean_share + (share - mean_share >> 2),
        (words * 3 >> 2) + more_words,
        (english * 3 >> 2) + more_english,
        (characters * 3 >> 2) + more_characters,
        (foreign * 3 >> 2) + more_foreign,
        content,
    )


def without_words(topic: TopicRow) -> TopicRow:
    """The row after the last message of an episode."""
    return topic._replace(content=())


def reworded(topic: TopicRow, said: Iterable[Utterance]) -> TopicRow:
    """The row with the words of these messages of the open episode, and no others: one was changed or is gone."""
    content = tuple(chain.from_iterable(each.content for each in said))
    return topic._replace(content=content[-REMEMBERED:])


def begins_topic(heard: Heard, length: int) -> bool:
    """Return whether a topic begins with the message. `length`: messages of the open episode, at least one."""
    version = heard.topic.version
    return version in KNOWN_VERSIONS and is_english(heard) and score(weights(version), heard, length) > 0


def is_english(heard: Heard) -> bool:
    """Decide by the message and, with less weight the longer ago, all before it."""
    topic, now, _ = heard
    words = topic.words + now.words
    if not words or (topic.english + now.english) * ENGLISH_WORD_IN < words:
        return False
    return (topic.foreign + now.foreign) * FOREIGN_CHARACTER_IN <= topic.characters + now.characters


def is_formal(topic: TopicRow, now: Utterance) -> bool:
    """Return whether words, or messages, are long, in this message and those before."""
    return (topic.characters + now.characters) * 10 >= (topic.words + now.words) * FORMAL


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


def features(heard: Heard, length: int) -> list[int]:
    """Return the value of each of TABLES: whether each cue is there, by what was asked and is."""
    share, relative, length_step, saved, pair, formal, questions = _seen(heard, length)
    by_asked = [*FORMALLY[formal], *(heard.now.cues >> number & 1 for number in range(len(CUES)))]
    return [share << 2 | questions, relative, length_step, saved, pair, *(value << 2 | questions for value in by_asked)]


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
    formal: Sequence[int]
    """Sums of the tables of who speaks and of new words, for all of FORMALLY with questions."""
    cues: Sequence[int]
    """Sums of the tables of cues, for all of their combinations with questions."""


def score(weights: Weights, heard: Heard, length: int) -> int:
    """Log-odds, in thousandths, above the threshold."""
    share, relative, length_step, saved, pair, formal, questions = _seen(heard, length)
    bias, pull, by_share, by_relative, by_length, by_saved, by_pair, by_formal, by_cues = weights
    return (
        bias
        + pull * heard.topic.saved
        + by_share[share << 2 | questions]
        + by_relative[relative]
        + by_length[length_step]
        + by_saved[saved]
        + by_pair[pair]
        + by_formal[formal << 2 | questions]
        + by_cues[heard.now.cues << 2 | questions]
    )


def weights_of(bias: int, pull: int, tables: Mapping[str, Sequence[int]]) -> Weights:
    """`tables`: as in TABLES."""
    speaker, new_words = tables["speaker"], tables["new words"]
    formal = [
        speaker[who << 2 | questions] + new_words[new << 2 | questions]
        for (who, new), questions in product(FORMALLY, range(4))
    ]
    cues = [tables[f"{CUE}{name}"] for name in CUES]
    sums = [
        sum(table[(bits >> number & 1) << 2 | questions] for number, table in enumerate(cues))
        for bits, questions in product(range(1 << len(cues)), range(4))
    ]
    alone = (tables[name] for name in ("share, questions", "share, relative", "length", "saved", "pair"))
    return Weights._make((bias, pull, *alone, formal, sums))


@cache
def weights(version: int = VERSION) -> Weights:
    found = json.loads((resources.files(__package__) / f"shifts-{version}.json").read_bytes())
    return weights_of(found["bias"], found["pull"], found["tables"])


def _seen(heard: Heard, length: int) -> tuple[int, int, int, int, int, int, int]:
    topic, now, common = heard
    share, new = heard.share, len(now.content) - common
    is_user, last, asks = now.is_user, topic.last, now.asks
    asked = last >> 1 & 1
    return (
        bisect_right((1, 120, 250, 400, 600), share),
        bisect_right((-150, -50, 50, 150, 300), share - topic.mean_share),
        bisect_right((2, 3, 4, 5, 6, 7, 8, 10, 14), length),
        bisect_right((-4, 0, 3, 6, 9), topic.saved),
        (last & 6) << 1 | asks << 1 | (is_user == last & LAST_USER),
        1 + is_user * (MOST_NEW + 1) + min(new, MOST_NEW) if is_formal(topic, now) else 0,
        asked << 1 | asks,
    )
