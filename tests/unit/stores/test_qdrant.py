"""Qdrant: the address of its server, and the sparse vectors of words."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from qdrant_client.async_qdrant_remote import AsyncQdrantRemote
from qdrant_client.models import SparseVector

from afterword.streams.errors import ConfigurationError
from afterword.streams.settings import Qdrant
from afterword.streams.stores.index import SearchText
from afterword.streams.stores.packing import pack_words
from afterword.streams.stores.qdrant import AVERAGE_LENGTH, document_vector, query_vector, rest_address
from tests.rows import with_rows

URLS = (
    None,
    "http://qdrant",
    "http://qdrant:7000",
    "https://qdrant.example:443/below/it",
    "https://user:secret@qdrant.example",
    "localhost:6333",
    "http://[::1]:6333",
    "http://[::1]",
    "HTTP://Qdrant:06334/",
)


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("key", [None, "canary"])
@pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")
def test_qdrant_address_is_where_its_client_looks(url: str | None, key: str | None) -> None:
    settings = Qdrant(url=url, api_key=SecretStr(key) if key else None)
    client = AsyncQdrantRemote(url=url or "http://127.0.0.1:6333", api_key=key, check_compatibility=False)
    assert rest_address(settings).rstrip("/") == client.rest_uri.rstrip("/")


def test_qdrant_address_may_omit_defaults() -> None:
    assert rest_address(Qdrant(url="qdrant:6333")) == rest_address(Qdrant(url="qdrant")) == "http://qdrant:6333"


@pytest.mark.parametrize("url", ["http://", "http://qdrant:no", "http://[::1", "ftp://qdrant"])
def test_invalid_qdrant_address_is_a_wrong_setting(url: str) -> None:
    with pytest.raises(ConfigurationError, match="AFTERWORD_QDRANT__URL: is not an http address"):
        rest_address(Qdrant(url=url))


DOCUMENTS = (
    "I want to book a flight to Rome on Monday, and a hotel near the station.",
    "The hotel has no rooms left. Which other hotel is near the museum?",
    "The museums are closed on Mondays.",
)


def vector_of(text: str) -> SparseVector:
    return document_vector(pack_words([SearchText(text)], ""))


def score(query: SparseVector, document: SparseVector, idf: dict[int, float]) -> float:
    weights = dict(zip(document.indices, document.values, strict=True))
    return sum(value * idf.get(i, 0) * weights.get(i, 0) for i, value in zip(query.indices, query.values, strict=True))


def test_weight_is_that_of_bm25() -> None:
    vector = vector_of("The taxi is a taxi to the museum.")
    expected = sorted(f * 2.2 / (f + 1.2 * (0.25 + 0.75 * 3 / AVERAGE_LENGTH)) for f in (1, 2))
    assert sorted(vector.values) == pytest.approx(expected)


def test_query_finds_the_document_it_means() -> None:
    vectors = [vector_of(document) for document in DOCUMENTS]
    found = Counter(index for vector in vectors for index in vector.indices)
    idf = {index: math.log(1 + len(vectors) / count) for index, count in found.items()}
    for text, best in (("booking flights", 0), ("free hotel rooms", 1), ("museum closed", 2), ("museums", 2)):
        scores = [score(query_vector(text), vector, idf) for vector in vectors]
        assert scores.index(max(scores)) == best, text


@with_rows
def test_single_word_without_a_clear_language_is_found(word: str, sentence: str) -> None:
    assert set(query_vector(word).indices) & set(vector_of(sentence).indices)


def test_word_weighs_less_in_a_longer_text() -> None:
    short, long = vector_of("Is it a taxi?"), vector_of("Is it a taxi? " + "Is it a museum? " * 200)
    weights = dict(zip(long.indices, long.values, strict=True))
    assert weights[short.indices[0]] < short.values[0]


@given(st.text())
def test_sparse_vectors_are_ascending_distinct_positive_and_stable(text: str) -> None:
    vector = vector_of(text)
    assert vector == vector_of(text)
    assert list(vector.indices) == sorted(set(vector.indices))
    assert all(0 < index < 2**32 for index in vector.indices)
    assert all(value > 0 for value in vector.values)


def test_text_of_stop_words_has_no_terms() -> None:
    assert vector_of("it is what it is") == SparseVector(indices=[], values=[])
