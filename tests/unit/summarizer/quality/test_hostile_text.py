"""What nobody writes, but anybody can send: the time and the memory that a check takes grow with its length only."""

import tracemalloc

import pytest

from afterword.streams.language import stem_words
from afterword.streams.summarizer.quality.assess import QualityRules, Source, Texts, assess
from afterword.streams.summarizer.quality.grounding import Evidence

CHARACTERS = 100_000


@pytest.mark.timeout(60)  # two seconds; minutes to days where the time grows with the square of a run, or its cube
@pytest.mark.parametrize(
    "unit",
    ["a", "A.", "1", "1.", "1 ", "1/", "a-", "-", ".", "a1", "a@", "http://a/", "'a", "漢", "a\u0301", "ﷺ", "Bob "],
)
def test_a_long_run_of_anything_is_checked_in_linear_time(unit: str) -> None:
    text = (unit * CHARACTERS)[:CHARACTERS]
    texts = Texts("An order of 12", "Bob ordered 12 hats.", text[:4000], text[:4000])
    found = assess(Source(text, by_speaker=(text,)), texts, QualityRules())
    assert 0 <= found.grounding <= 1


@pytest.mark.timeout(60)  # 26 s for a quarter of it, when it was stemmed
def test_a_word_that_no_language_has_is_not_stemmed() -> None:
    word = "ab" * 1_000_000
    assert stem_words(word, "de") == [word]


def test_a_long_word_takes_no_more_memory_than_as_many_short_ones() -> None:
    """One of 20,000 letters took 200 MB, for each of the conversations that are summarised at once."""
    Evidence("warm", "en")
    tracemalloc.start()
    try:
        Evidence("a" * 20_000, "en")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20e6
