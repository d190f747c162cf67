"""The prepared language model, and the table in it."""

from importlib import metadata

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from py3langid.langid import MODEL_DIR, MODEL_FILE

from afterword_text.language_identifier import LONGEST_NGRAM, MODEL, Identifier
from tools.language_model import prepared

LETTERS = st.sampled_from(b"ab\x00\xff")


def test_packaged_model_is_made_from_the_librarys() -> None:
    made = prepared(MODEL_DIR / MODEL_FILE)
    with np.load(MODEL) as model:
        assert {name: model[name].dtype for name in model.files} == {name: array.dtype for name, array in made.items()}
        assert [name for name in model.files if not np.array_equal(model[name], made[name])] == []


def test_librarys_licence_is_beside_its_model() -> None:
    (license_file,) = [file for file in metadata.files("py3langid") or () if file.name == "LICENSE"]
    assert (MODEL.parent / "LICENSE").read_text() == license_file.read_text()


@given(
    st.sets(st.lists(st.sampled_from(b"ab\xff"), min_size=2, max_size=LONGEST_NGRAM).map(bytes), min_size=1),
    st.lists(LETTERS, max_size=40).map(bytes),
)
def test_longest_ngram_at_each_byte_is_found(ngrams: set[bytes], text: bytes) -> None:
    features = {ngram: feature for feature, ngram in enumerate(sorted(ngrams, key=int.from_bytes))}
    numbers = np.array([int.from_bytes(ngram) for ngram in features], np.uint64)
    with np.load(MODEL) as model:
        found = Identifier(**{**model, "ngrams": numbers, "features": np.arange(len(features))}).found(text)
    expected = []
    for end in range(len(text) + 1):
        ending = (text[begin:end] for begin in range(max(end - LONGEST_NGRAM, 0), end))
        expected += [features[ngram] for ngram in ending if ngram in features][:1]
    assert found == expected
