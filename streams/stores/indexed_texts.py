"""What an index keeps of an episode's texts for the ranking of a search: their words as numbers, and their vectors.

Words are unsigned 32-bit integers, with END after each text: the messages' in their order, then the summary's. Vectors
are those of the messages, in 8 bits a coordinate: a cosine differs by about 0.002.
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
            packed[at] = np.rint(_unit(vector) * LARGEST)
    return packed.tobytes()


def cosines(packed: bytes, vector: Vector) -> NDArray[np.float32]:
    """Compare packed vectors with another one; 0 for a message that has none."""
    vectors = np.frombuffer(packed, COORDINATE).reshape(-1, len(vector)).astype(np.float32)
    compared: NDArray[np.float32] = vectors @ _unit(vector) / np.float32(LARGEST)
    return compared


def _unit(vector: Vector) -> NDArray[np.float32]:
    numbers = np.asarray(vector, np.float64)
    unit: NDArray[np.float32] = (numbers / (np.linalg.norm(numbers) or 1.0)).astype(np.float32)
    return unit
