"""The ranking: which candidate comes first, what it shows, and how much of the query it covers."""

from collections.abc import Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.reading.ranking import BEGINNING, DOUBT, LONG_ANSWER, LONG_SHARE, Ranked, rank
from afterword.streams.stores.index import MIN_COVERAGE, Candidate, Dense, Noise, QueryVector, SearchText
from afterword.streams.stores.packing import pack_vectors, pack_words
from afterword_text.language import query_words
from tests.samples import NOON
from tests.vectors import query_vector

DAY = timedelta(days=1)
SMALL_TALK = ("The weather is fine.", "It is warm.", "Is tea better than coffee?")


def candidate(
    number: int, *texts: str | SearchText, summary: str = "", vectors: Sequence[Dense | None] = ()
) -> Candidate:
    ids = tuple(f"m{at}" for at in range(len(texts)))
    words = pack_words([SearchText(one) if isinstance(one, str) else one for one in texts], summary)
    return Candidate(str(number), "c1", ids, NOON, NOON, words, pack_vectors(vectors))


def ranked(query: str, *candidates: Candidate, vector: QueryVector | None = None) -> list[Ranked]:
    return rank(query_words(query), vector, candidates)


def ordinals(found: Sequence[Ranked]) -> list[int]:
    return [int(one.candidate.episode_id) for one in found]


@pytest.mark.parametrize(
    ("query", "apart", "together"),
    [
        (
            "the kite that fell into the harbour",
            ("A red kite.", "Aha.", "Oh.", "Hm.", "The harbour is large.", "Yes.", "It fell."),
            ("Well.", "Aha.", "Oh.", "The red kite fell into the harbour.", "Yes.", "Fine.", "Good."),
        ),
        ("the main branch", ("The branch of the main office.",), ("The main branch of the office.",)),
    ],
    ids=["of a message", "in a row"],
)
def test_adjacent_words_beat_scattered_words(query: str, apart: Sequence[str], together: Sequence[str]) -> None:
    assert ordinals(ranked(query, candidate(1, *apart), candidate(2, *together))) == [2, 1]


def test_messages_beside_the_best_three_are_shown() -> None:
    said = ("In which boat?", "The blue one.", *SMALL_TALK, *SMALL_TALK, "A boat.", "Aye.", *SMALL_TALK)
    (found,) = ranked("Which boat?", candidate(1, *said, "After a long silence, boats and many other things."))
    best = sorted(found.messages, key=found.messages.__getitem__, reverse=True)[:3]
    assert set(best) == {0, 8, 13}
    assert set(found.messages) == {0, 1, 7, 8, 9, 12, 13}
    assert found.messages[13] > found.messages[1] == 0


def test_long_answers_do_not_hide_short_statements() -> None:
    filling = " ".join(f"Consider option{n} and budget{n}." for n in range(BEGINNING))
    long = candidate(1, "Help me.", f"{filling} And now about nuts, daughter, allergies and restaurants. {filling}")
    short = candidate(2, "My daughter has an allergy to nuts.", "I will keep that in mind.")
    assert ordinals(ranked("daughter allergy nuts", long, short)) == [2, 1]
    assert all(one.coverage == 1 for one in ranked("daughter allergy nuts", short))
    (found,) = ranked("restaurants", long)
    assert found.score > 0, "what is far behind in a message is found all the same"
    assert found.coverage == LONG_SHARE
    assert LONG_SHARE ** (2 * DOUBT) > MIN_COVERAGE, "with vectors, too"
    assert set(found.messages) == {0, 1}


def test_summary_matches_an_episode_but_is_not_a_message() -> None:
    (found,) = ranked("anaphylaxis", candidate(1, "She must not eat nuts.", summary="The daughter risks anaphylaxis."))
    assert found.score > 0
    assert found.coverage == 1
    assert set(found.messages) == {0}


def test_vector_finds_a_message_that_shares_no_word() -> None:
    pet = candidate(1, "Hello.", "We got a puppy.", vectors=[[0.0, 1.0], [1.0, 0.0]])
    other = candidate(2, "Hello.", "The rent is due.", vectors=[[0.0, 1.0], [-1.0, 0.2]])
    first, second = ranked("dog", other, pet, vector=query_vector([0.9, 0.1]))
    assert ordinals([first, second]) == [1, 2]
    assert max(first.messages, key=lambda place: first.messages[place]) == 1
    assert first.coverage > 0.4 > second.coverage
    assert first.scores.cosine == pytest.approx(0.99, abs=0.02)


def test_similar_vector_counts_as_known() -> None:
    told = candidate(1, "We got a puppy.", vectors=[[1.0, 0.0]])

    def coverage(cosine: float) -> float:
        return ranked("Which dog?", told, vector=query_vector([cosine, (1 - cosine**2) ** 0.5]))[0].coverage

    assert coverage(0.15) < MIN_COVERAGE < coverage(0.3)
    assert coverage(1) > 0.9
    (found,) = ranked("A puppy named Volcano?", told, vector=query_vector([0.0, 1.0]))
    (words_alone,) = ranked("A puppy named Volcano?", told)
    assert found.coverage == pytest.approx(words_alone.coverage ** (2 * DOUBT)), "a few of the words say little"


@pytest.mark.parametrize(
    ("near", "far", "noise"), [(0.4, 0.0, Noise(0.0, 0.1)), (0.9, 0.8, Noise(0.8, 0.025))], ids=["usual", "as E5's"]
)
def test_ranking_judges_cosines_by_the_models_own_noise(near: float, far: float, noise: Noise) -> None:
    pet, rent = (
        candidate(number, text, vectors=[[cosine, (1 - cosine**2) ** 0.5]])
        for number, text, cosine in ((1, "We got a puppy.", near), (2, "The rent is due.", far))
    )
    known, unknown = ranked("dog", rent, pet, vector=query_vector([1.0, 0.0], noise))
    assert ordinals([known, unknown]) == [1, 2]
    assert known.coverage > 0.9 > MIN_COVERAGE > unknown.coverage


def test_nearest_of_many_near_messages_comes_first() -> None:
    noise = Noise(0.0, 0.1)
    near, nearer = (candidate(n, "We did.", vectors=[[n / 10, (1 - n**2 / 100) ** 0.5]]) for n in (7, 9))
    assert ordinals(ranked("dog", near, nearer, vector=query_vector([1.0, 0.0], noise))) == [9, 7]


def test_long_answer_counts_less_than_an_equally_near_message() -> None:
    near = [[0.9, 0.4]]
    answer = candidate(1, SearchText("We could get a puppy.", is_long_answer=True), vectors=near)
    said = candidate(2, SearchText("We got a puppy."), vectors=near)
    found = ranked("dog", answer, said, vector=query_vector([1.0, 0.0], Noise(0.0, 0.2)))
    assert ordinals(found) == [2, 1]
    assert found[1].score == pytest.approx(LONG_ANSWER * found[0].score)


def test_short_message_counts_less_than_an_equally_near_sentence() -> None:
    said, brief = (candidate(n, text, vectors=[[0.9, 0.4]]) for n, text in enumerate(("A piano from Rome.", "Okay.")))
    assert ordinals(ranked("instrument", brief, said, vector=query_vector([1.0, 0.0]))) == [0, 1]


def test_message_without_a_vector_is_near_no_query() -> None:
    told = candidate(1, "We got a puppy.", "Aha.", vectors=[None, [0.0, 1.0]])
    (found,) = ranked("dog", told, vector=query_vector([-0.1, -1.0], Noise(-0.5, 0.1)))
    assert (found.score, found.coverage) == (0, 0)


def test_coverage_is_one_passages_share_of_the_query() -> None:
    said = candidate(1, "My daughter is allergic to nuts.", *SMALL_TALK, "The hotel is in Rome.")
    others = [candidate(n, *SMALL_TALK) for n in range(2, 6)]

    def coverage(query: str) -> float:
        return max(one.coverage for one in ranked(query, said, *others))

    assert coverage("Who is allergic to nuts?") == 1
    assert coverage("daughter and volcano") == pytest.approx(0.5, abs=0.1)
    assert coverage("allergic in Rome") < 1, "what is said far apart is no answer to both"
    assert coverage("volcano eruption") == 0


def test_asked_time_decides_between_equal_vectors() -> None:
    ran = [candidate(n, f"I ran {n} km.", vectors=[[1.0, n / 50]]) for n in (1, 2)]
    other = candidate(3, "The rent is due.", vectors=[[-1.0, 1.0]])

    def of_time(one: Ranked) -> float:
        return float(one.candidate.episode_id in "23")

    asked = query_words("how far did I jog?")
    found = rank(asked, query_vector([1.0, 0.0]), [*ran, other], of_time)
    assert ordinals(found) == [2, 1, 3]
    assert [one.of_time for one in found] == [1, 0, 0]


def test_nothing_matches_without_words_and_vectors() -> None:
    (found,) = ranked("what is it", candidate(1, *SMALL_TALK))
    assert (found.score, found.coverage) == (0, 0)
    assert ranked("kite") == []


texts = st.lists(st.sampled_from(("A boat.", "", "kite " * 100, "京都のボート", "Blue boat, red kite.")), max_size=6)


@given(st.lists(texts, max_size=5), st.text(max_size=40) | st.sampled_from(("boat kite", "京都", "")), st.booleans())
def test_scores_are_shares_and_messages_belong_to_the_episode(
    episodes: Sequence[Sequence[str]], query: str, dense: bool
) -> None:
    candidates = [
        candidate(n, *each, vectors=[[1.0, 0.5]] * len(each) if dense else ()) for n, each in enumerate(episodes, 1)
    ]
    found = ranked(query, *candidates, vector=query_vector([1.0, 0.0]) if dense else None)
    assert sorted(ordinals(found)) == list(range(1, len(episodes) + 1))
    for one in found:
        assert 0 <= one.score <= 1
        assert 0 <= one.coverage <= 1
        assert all(0 <= place < len(one.candidate.message_ids) for place in one.messages)
