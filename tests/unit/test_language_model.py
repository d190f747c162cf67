"""The prepared language model, and the hash table in it."""

from importlib import metadata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from py3langid.langid import MODEL_DIR, MODEL_FILE

from afterword.streams.language import LONGEST_NGRAM, MODEL, NGramTable
from tools.language_model import SHIFTS, NoTable, first_fit, prepared, shortest_strings, table

LETTERS = st.sampled_from(b"ab\x00\xff")


def test_the_model_in_the_package_is_made_of_the_librarys() -> None:
    made = prepared(MODEL_DIR / MODEL_FILE)
    with np.load(MODEL) as model:
        assert {name: model[name].dtype for name in model.files} == {name: array.dtype for name, array in made.items()}
        assert [name for name in model.files if not np.array_equal(model[name], made[name])] == []


def test_the_librarys_license_is_beside_its_model() -> None:
    (license_file,) = [file for file in metadata.files("py3langid") or () if file.name == "LICENSE"]
    assert (MODEL.parent / "LICENSE").read_text() == license_file.read_text()


@given(
    st.sets(st.lists(st.sampled_from(b"ab\xff"), min_size=2, max_size=LONGEST_NGRAM).map(bytes), min_size=1),
    st.lists(LETTERS, max_size=40).map(bytes),
)
def test_the_longest_ngram_that_ends_at_each_byte_is_found(ngrams: set[bytes], text: bytes) -> None:
    features = {ngram: feature for feature, ngram in enumerate(sorted(ngrams))}
    numbers = np.array([int.from_bytes(ngram) for ngram in features], np.uint64)
    made = table(numbers, np.arange(len(features)))
    found = NGramTable(made["ngrams"], made["features"], made["shifts"], np.uint64(made["multiplier"])).found(text)
    expected = []
    for end in range(len(text) + 1):
        ending = (text[begin:end] for begin in range(max(end - LONGEST_NGRAM, 0), end))
        expected += [features[ngram] for ngram in ending if ngram in features][:1]
    assert found == expected


def test_no_table_is_made_where_two_places_are_the_same_or_all_are_taken() -> None:
    with pytest.raises(NoTable):
        first_fit(np.zeros(2**17, bool), np.array([5, 5], np.uint64))
    with pytest.raises(NoTable):
        first_fit(np.ones(2**17, bool), np.array([5], np.uint64))
    assert first_fit(np.arange(2**17) != 4, np.array([5], np.uint64)) == SHIFTS[1]


def test_strings_longer_than_an_ngram_are_refused() -> None:
    moves = np.minimum(np.arange(LONGEST_NGRAM + 2) + 1, LONGEST_NGRAM + 1)[:, np.newaxis].repeat(256, axis=1)
    with pytest.raises(ValueError, match="6 bytes"):
        shortest_strings(moves, np.arange(len(moves)))
