"""How the index stores the data for the ranking: words as numbers, and vectors of 8 bits per coordinate."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from afterword.schemas import SummaryCreated
from afterword.streams.stores.index import Dense, SearchText
from afterword_text.language import detect_all, hashed, search_words

END, ANSWER_END = 0, 1
"""What ends the words of each text, which are unsigned 32-bit integers: first the messages' in order, then the
summary's. A long answer has an end of its own."""
LAST_END = ANSWER_END
WORD = np.dtype("<u4")
COORDINATE = np.dtype("i1")
"""The messages' vectors have 8 bits per coordinate, which changes a cosine by about 0.002."""
LARGEST = 127
MOST_WORDS = 2000
"""Maximum number of words of a text that are kept."""

Vector = Sequence[float] | NDArray[np.float32]


def packed_texts(
    summary: SummaryCreated, texts: Mapping[str, SearchText], vectors: Mapping[str, Dense] | None
) -> tuple[bytes, bytes]:
    """Pack the words and vectors of an episode's messages, in the order of `texts`. Linear in the texts."""
    summarized = f"{summary.title}\n{summary.short_summary}\n{summary.long_summary}"
    return pack_words(list(texts.values()), summarized), pack_vectors([(vectors or {}).get(name) for name in texts])


def pack_words(messages: Sequence[SearchText], summary: str) -> bytes:
    """Pack the words of an episode, whose summary is in the language of its messages. Linear in the texts."""
    language = detect_all([one.text for one in messages])
    ends = [(text, ANSWER_END if is_long_answer else END) for text, is_long_answer in messages]
    packed = ((*_numbers(text, language), end) for text, end in (*ends, (summary, END)))
    return np.fromiter(chain.from_iterable(packed), WORD).tobytes()


def _numbers(text: str, language: str) -> Iterable[int]:
    return hashed(islice((form for word in search_words(text, language) for form in word.forms), MOST_WORDS))


def packed_words(packed: bytes) -> NDArray[np.uint32]:
    return np.frombuffer(packed, WORD)


def pack_vectors(vectors: Sequence[Vector | None]) -> bytes:
    """Pack the messages' vectors; a missing one becomes zeros. Empty if all are missing."""
    given = {at: vector for at, vector in enumerate(vectors) if vector is not None}
    if not given:
        return b""
    numbers = np.asarray(list(given.values()), np.float64)
    packed = np.zeros((len(vectors), numbers.shape[1]), COORDINATE)
    packed[list(given)] = np.rint(unit(numbers) * LARGEST)
    return packed.tobytes()


def cosines(packed: bytes, vector: Vector) -> NDArray[np.float32]:
    """Compare packed vectors with another vector; the cosine is the lowest, -1, for a message without a vector."""
    vectors = np.frombuffer(packed, COORDINATE).reshape(-1, len(vector))
    # einsum, because `@` copies the coordinates as floats and wakes threads that then wait busily for more work
    compared = np.einsum("ij,j->i", vectors, unit(np.asarray(vector))) / np.float32(LARGEST)
    return np.where(vectors.any(axis=1), compared, np.float32(-1))


def unit(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """Scale a vector, or each row of a matrix, to length 1. Zero vectors stay zero."""
    numbers = vectors.astype(np.float64)
    lengths = np.linalg.norm(numbers, axis=-1, keepdims=True)
    normalized: NDArray[np.float32] = (numbers / np.where(lengths, lengths, 1.0)).astype(np.float32)
    return normalized
