"""Queries with slips, in the spelling of the user's own words."""

import pytest

from afterword.reading.search import respelt
from tests.rows import with_rows

SAID = (
    "My dentist appointment is on Tuesday at nine.",
    "The hospital called about Monday.",
    "The material for the curtains is linen.",
    "Ich habe zwei Allergien, Birke und Katzen.",
    "J'ai réservé un hôtel près de la cathédrale.",
    "I changed the large bulb.",
)


@with_rows
def test_misspelling_becomes_the_users_own_word(query: str, expected: str) -> None:
    assert respelt(query, SAID) == expected


@pytest.mark.parametrize(
    "query",
    ["", "volcano", "What did the plumber charge for the broken boiler?", "tulips", "is on at nine", "京都のボート"],
)
def test_query_without_near_words_stays(query: str) -> None:
    assert respelt(query, SAID) is None
