"""What an index keeps of an episode's texts for the ranking of a search: their words as numbers, and their vectors.

Words are unsigned 32-bit integers, with END after each text: the messages' in their order, then the summary's. Vectors
are those of the messages, in 8 bits a coordinate: a cosine differs by less than 0.01.
"""

from collections.abc import Iterable, Sequence
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from afterword.streams.language import detect
from afterword.streams.stores.search_words import hashed, words_of

END = 0
WORD = np.dtype("<u4")
COORDINATE = np.dtype("i1")
LARGEST = 127
MOST_WORDS = 2000
"""Words of a text that are kept."""

Vector = Sequence[float] | NDArray[np.float32]


def pack_words(messages: Sequence[str], summary: str) -> bytes:
    """Pack the words of an episode. Linear in the texts."""
    language = detect("\n".join(messages))
    packed = [*(_numbers(text, language) for text in messages), _numbers(summary, detect(summary))]
    return np.fromiter(chain.from_iterable((*each, END) for each in packed), WORD).tobytes()


def _numbers(text: str, language: str) -> Iterable[int]:
    return hashed(islice((form for word in words_of(text, language) for form in word.forms), MOST_WORDS))


def packed_words(packed: bytes) -> NDArray[np.uint32]:
    return np.frombuffer(packed, WORD)


def pack_vectors(vectors: Sequence[Vector | None]) -> bytes:
    """Pack the vectors of the messages; one that has none is left at zero. Empty if none has one."""
    size = max((len(vector) for vector in vectors if vector is not None), default=0)
    packed = np.zeros((len(vectors), size), COORDINATE)
    for at, vector in enumerate(vectors):
        if vector is not None:
            numbers = np.asarray(vector, np.float64)
            packed[at] = np.rint(numbers * (LARGEST / (np.abs(numbers).max() or 1.0)))
    return packed.tobytes()


def packed_vectors(packed: bytes, size: int) -> NDArray[np.float32]:
    """Unpack vectors of this size, each of length 1, or 0 if the message has none."""
    vectors = np.frombuffer(packed, COORDINATE).reshape(-1, size).astype(np.float32)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    np.divide(vectors, lengths, out=vectors, where=lengths > 0)
    return vectors
