"""The use of a reranking server's answers."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.reading.reranking import Reranking, places_in
from afterword.streams.errors import AnswerInvalid, ConfigurationError
from afterword.streams.settings import RerankerSettings
from tests.doubles.reranker import scores


@pytest.mark.parametrize(
    ("content", "places"),
    [
        (scores((1, 0.9), (0, 0.1)), [1, 0]),
        (scores((0, 0.1), (1, 0.9)), [1, 0]),
        (scores((0, -7.5), (1, -2)), [1, 0]),
        (scores((2, 0.5)), [2]),
        (b'{"data": [{"index": 2, "relevance_score": 1}]}', [2]),
        (b'{"results": [{"index": 1, "relevance_score": 0.2, "document": {"text": "x"}}], "id": 3}', [1]),
        (scores((1, 0.5), (0, 0.5)), [1, 0]),
    ],
)
def test_ranking_is_read_in_every_form(content: bytes, places: list[int]) -> None:
    assert places_in(orjson.loads(content), 3) == places


HOSTILE = {
    "an error": b'{"message": "overloaded"}',
    "another shape": b'{"results": {"0": 1}}',
    "no result": b'{"results": []}',
    "NaN": scores((0, '"NaN"'), (1, 0.5)),
    "more than a float": scores((0, '"1e999"'), (1, 0.5)),
    "a negative place": scores((-1, 0.5)),
    "a place too far": scores((3, 0.5)),
    "a place twice": scores((0, 0.5), (0, 0.4)),
    "no place": b'{"results": [{"relevance_score": 1}]}',
    "a fraction": scores((0.5, 1)),
    "too many": scores(*((n, 0.5) for n in range(51))),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_malformed_answer_gives_no_ranking(content: bytes) -> None:
    with pytest.raises(AnswerInvalid):
        places_in(orjson.loads(content), 3)


json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("results", "data", "index", "relevance_score", "x")), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(("results", "data")), json), st.integers(0, 5))
def test_any_answer_gives_distinct_existing_places_or_none(answer: dict[str, Any], count: int) -> None:
    try:
        places = places_in(answer, count)
    except AnswerInvalid:
        return
    assert places
    assert len(set(places)) == len(places)
    assert set(places) <= set(range(count))


def test_problem_of_an_answer_quotes_nothing_of_it() -> None:
    with pytest.raises(AnswerInvalid) as raised:
        places_in({"results": "a secret"}, 3)
    assert "secret" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("address", ["", "rerank.internal", "ftp://host"])
def test_invalid_address_is_named_with_its_setting(address: str) -> None:
    with pytest.raises(ConfigurationError, match="AFTERWORD_RERANKER__BASE_URL"):
        Reranking(RerankerSettings(base_url=address))
