"""Pairs of question and answer in a summary that names the speakers: whether they were one in the conversation."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from afterword.streams.text.language import words
from afterword.streams.text.prose import sentences_of

Said = tuple[str, str]
"""Role and text."""

KEY = 6
"""Words at the end of a question and at the beginning of an answer by which they are found."""
_SPEAKER = re.compile(r"(?:^|(?<=\s))(User|Assistant|Tool|System): ")
_END = re.compile(r"(?<=[.!?…。！？])\s+")
_QUESTION = re.compile(r"[?？؟]")


def share_of_pairs(texts: Iterable[str], messages: Sequence[Said]) -> float:
    """Return the share of the texts' pairs that were one; 1.0 if they have none. `messages`: of the conversation.

    A pair was one if the asker asked nothing else before the answer came.
    """
    pairs = [pair for text in texts for pair in _pairs(text)]
    if not pairs:
        return 1.0
    spoken = [(role, _spelled(" ".join(sentences_of(content)))) for role, content in messages]
    asks = [bool(_QUESTION.search(content)) for _, content in messages]
    return sum(_was_one(asked, told, spoken, asks) for asked, told in pairs) / len(pairs)


def _pairs(text: str) -> Iterator[tuple[Said, Said]]:
    parts = _SPEAKER.split(text)
    turns = [(role.lower(), _END.split(said.strip())) for role, said in zip(parts[1::2], parts[2::2], strict=True)]
    for (asker, asked), (other, told) in pairwise(turns):
        if _QUESTION.search(asked[-1]):
            yield (asker, _spelled(asked[-1], last=KEY)), (other, _spelled(told[0], first=KEY))


def _was_one(asked: Said, told: Said, spoken: Sequence[Said], asks: Sequence[bool]) -> bool:
    for at in (at for at, (role, text) in enumerate(spoken) if role == asked[0] and asked[1] in text):
        for later in range(at + 1, len(spoken)):
            role, text = spoken[later]
            if role == told[0] and told[1] in text:
                return True
            if role == asked[0] and asks[later]:
                break
    return False


def _spelled(text: str, first: int | None = None, last: int = 0) -> str:
    """Return the words of a text, or its first or last ones, as they are compared."""
    return f" {' '.join(words(text)[-last:][:first])} "
