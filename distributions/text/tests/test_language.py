import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from afterword_text import language_identifier
from afterword_text.language import (
    LONGEST_MARKS,
    NAMES,
    UNDETERMINED,
    detect,
    normalized,
    plausible,
    stem_words,
    words,
)
from tests.rows import with_rows


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
