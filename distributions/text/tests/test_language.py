import sys
import unicodedata
from importlib import metadata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from py3langid.langid import MODEL_DIR, MODEL_FILE, LanguageIdentifier

from afterword_text import language_identifier
from afterword_text.language import (
    LONGEST_MARKS,
    NAMES,
    UNDETERMINED,
    detect,
    fold,
    hashed,
    normalized,
    plausible,
    query_words,
    search_words,
    stem_words,
    subject_of,
    words,
)
from afterword_text.language_identifier import LONGEST_NGRAM, MODEL, Identifier
from tests.rows import with_rows
from tools.language_model import prepared


@with_rows
def test_language_of_a_text_is_recognized(text: str, language: str) -> None:
    assert detect(text) == language


@pytest.fixture(scope="module")
def library() -> LanguageIdentifier:
    found = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    found.set_languages([code for code in NAMES if code in found.labels])
    return found


SPOKEN = (
    "Hello, how can I help you with your order?",
    "Wann fährt der nächste Zug nach Köln?",
    "Здраво, како сте данас?",
    "Zdravo, kako ste danas?",
    "今天天气很好",
    "मेरी बुकिंग रद्द कर",
    "SHOUTED, AND NOT ONCE",
)


@given(st.lists(st.sampled_from(SPOKEN) | st.text(max_size=20), max_size=6).map(" ".join))
def test_languages_are_ranked_as_by_the_restricted_library(library: LanguageIdentifier, text: str) -> None:
    assert language_identifier.identifier().rank(text) == library.rank(text)


def test_sentence_is_certain_and_single_word_doubtful() -> None:
    assert plausible("Hello, how can I help you with your order?") == ("en",)
    assert {"en", UNDETERMINED} < set(plausible("museums"))
    assert {"de", "hu"} < set(plausible("Züge"))


def test_inflections_share_a_stem_and_stop_words_go() -> None:
    assert stem_words("She was booking the flights", "en") == stem_words("I have booked a flight", "en")


def test_searched_words_are_no_stop_words() -> None:
    assert stem_words("order room problem", "en") == ["order", "room", "problem"]


def test_stemming_follows_the_language() -> None:
    assert stem_words("Die Züge fahren", "de") == ["zug", "fahr"]


def test_unknown_language_keeps_its_words() -> None:
    assert stem_words("Reservations ARE", UNDETERMINED) == ["reservations", "are"]


def test_unspaced_scripts_become_matching_pairs() -> None:
    assert set(words("东京酒店")) >= set(words("酒店"))


def test_compatible_characters_and_cases_are_one_word() -> None:
    assert words("ＨＯＴＥＬ Straße") == words("hotel STRASSE")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("मेरी बुकिंग रद्द कर", ["मेरी", "बुकिंग", "रद्द", "कर"]),
        ("তুমি কেমন আছ", ["তুমি", "কেমন", "আছ"]),
        ("தமிழ் மொழி", ["தமிழ்", "மொழி"]),
        ("שָׁלוֹם", ["שָׁלוֹם"]),
    ],
    ids=["Hindi", "Bengali", "Tamil", "Hebrew"],
)
def test_vowel_signs_are_parts_of_their_words(text: str, found: list[str]) -> None:
    assert words(text) == found


def test_hindi_inflections_share_a_stem() -> None:
    assert stem_words("किताबें", "hi") == stem_words("किताबों", "hi") != stem_words("कमरे", "hi")


def test_part_of_a_thai_text_is_found() -> None:
    assert set(words("สวัสดีครับ")) > set(words("สวัสดี"))


def test_variation_selectors_are_no_part_of_words() -> None:
    assert words("ok\ufe0f 1\ufe0f\u20e3 \ufe0fgo") == ["ok", "1", "go"]


@given(st.text())
def test_any_text_has_a_language_and_words(text: str) -> None:
    assert stem_words(text, detect(text)) == stem_words(text, detect(text))


def test_long_runs_of_combining_characters_are_cut() -> None:
    characters = (chr(code) for code in range(0x300, sys.maxunicode + 1))
    sorted_ones = [one for one in characters if all(map(unicodedata.combining, unicodedata.normalize("NFKD", one)))]
    assert len(sorted_ones) > 900
    assert [one for one in sorted_ones if "\u034f" not in normalized("NFKD", one * (LONGEST_MARKS + 1))] == []


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


def is_found(query: str, text: str) -> bool:
    """Return whether each word of the query is in the text."""
    said = {form for word in search_words(text, detect(text)) for form in word.forms}
    return all(not said.isdisjoint(word.forms) for word in query_words(query))


@with_rows
def test_single_word_is_read_in_every_documented_language(text: str, query: str) -> None:
    assert is_found(query, text)


@with_rows
def test_words_are_found_as_people_write_them(text: str, query: str) -> None:
    assert is_found(query, text)


@with_rows
def test_words_of_other_stems_are_not_found(text: str, query: str) -> None:
    assert not is_found(query, text)


def test_vowel_signs_and_kana_voicing_are_no_accents() -> None:
    for text in ("हिन्दी", "ガラス", "ไทย", "한국어"):
        assert fold(text) == text


@given(st.text(max_size=200) | st.text("0123456789_.,- ", max_size=20))
def test_every_text_is_found_by_its_own_words(text: str) -> None:
    there = {form for word in search_words(text, plausible(text)[0]) for form in word.forms}
    for word in query_words(text):
        assert word.is_common or not there.isdisjoint(word.forms)


@given(st.text(max_size=200))
def test_words_have_forms_and_nonzero_numbers(text: str) -> None:
    for word in (*search_words(text, "en"), *query_words(text)):
        assert word.forms
        assert all(hashed(word.forms))


@given(st.text(st.characters(max_codepoint=127), max_size=100) | st.text("ab01 .,'_/-()$", max_size=30))
def test_ascii_is_read_alike_beside_other_letters(text: str) -> None:
    beside = list(search_words(f"{text} | é", "en"))
    assert list(search_words(text, "en")) + list(search_words("é", "en")) == beside


@with_rows
def test_words_for_talking_are_no_subject(question: str, subject: str) -> None:
    assert " ".join(subject_of(question).split()) == subject
