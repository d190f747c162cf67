from hypothesis import given
from hypothesis import strategies as st

from afterword_text.language import detect, fold, hashed, plausible, query_words, search_words, subject_of
from tests.rows import with_rows


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
def test_other_words_are_not_found(text: str, query: str) -> None:
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
