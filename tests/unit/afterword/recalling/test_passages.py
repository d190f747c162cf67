import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from functools import reduce
from operator import add
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.recalling.passages import (
    K1,
    LIKELY_LANGUAGES,
    MESSAGE_CHARACTERS,
    SAMPLE_CHARACTERS,
    WINDOW,
    B,
    EpisodeWords,
    Passage,
    QueryWords,
    best_passages,
    fused,
    passage_order,
)
from afterword.streams.language import UNDETERMINED, detect, plausible, stems, words
from tests.samples import NOON

DIVING = (
    "I am tired today.",
    "Shall we rest?",
    "Where did we dive?",
    "Near the wreck.",
    "It rained a lot.",
    "Bye now.",
)
COOKING = ("What is for dinner?", "Soup with beans.", "And then?", "A cake.", "We dive into it.", "Good night to you.")


def passages(query: str, episodes: Sequence[Sequence[str]]) -> list[Passage | None]:
    said = [EpisodeWords(texts) for texts in episodes]
    return best_passages(QueryWords(query, said), said)


def test_the_messages_that_match_are_those_of_the_best_window_that_have_words_of_the_query() -> None:
    (diving, cooking) = passages("diving near a wreck", [DIVING, COOKING])
    assert diving is not None
    assert cooking is not None
    assert list(diving.matching) == [2, 3]
    assert list(cooking.matching) == [4]
    assert diving.score > cooking.score > 0


def test_words_close_together_are_worth_more_than_the_same_ones_far_apart() -> None:
    together = ("one", "two", "the red boat", "in the harbour", "five", "six", "seven")
    apart = ("the red boat", "two", "three", "four", "five", "six", "in the harbour")
    (near, far) = passages("red boat in the harbour", [together, apart])
    assert near is not None
    assert far is not None
    assert near.score > far.score


def test_a_word_that_every_candidate_has_counts_little() -> None:
    episodes = [("we talked about the boat",) * 3, ("the boat has a leak",), ("the boat is blue",)]
    (every, leak, _) = passages("boat leak", episodes)
    assert leak is not None
    assert every is not None
    assert leak.score > every.score


def test_inflected_words_match_in_the_language_of_the_episodes() -> None:
    (found,) = passages("Verträge", [("Guten Tag.", "Der Vertrag ist gestern in Berlin unterschrieben worden.")])
    assert found is not None
    assert list(found.matching) == [1]
    (found,) = passages("京都", [("昨日は大阪", "来週は京都に行きます")])
    assert found is not None
    assert list(found.matching) == [1]


@pytest.mark.parametrize("episodes", [[], [()], [(), ("nothing of it",)], [("", " ")]])
def test_without_a_word_of_the_query_there_is_no_passage(episodes: list[tuple[str, ...]]) -> None:
    assert passages("quince", episodes) == [None] * len(episodes)
    assert passages("", episodes) == [None] * len(episodes)


WORDS = ("boat", "blue", "red", "harbour", "of", "the", "in", "Ömer", "京都", ",", "...")
texts = st.lists(st.lists(st.sampled_from(WORDS), max_size=6), max_size=9)


@given(st.lists(texts, max_size=6), st.sampled_from(["red boat", "the", "京都 boat", "Ömer in the blue harbour"]))
def test_a_passage_is_a_window_and_its_messages_have_words(episodes: list[list[list[str]]], query: str) -> None:
    said = [[" ".join(words) for words in messages] for messages in episodes]
    found = passages(query, said)
    assert len(found) == len(said)
    for passage, messages in zip(found, said, strict=True):
        if passage is None:
            continue
        assert passage.score > 0
        assert list(passage.matching) == sorted(set(passage.matching))
        assert max(passage.matching) - min(passage.matching) < WINDOW
        assert all(set(messages[place].split()) & set(query.split()) for place in passage.matching)


def test_a_long_message_is_read_to_a_limit_and_in_linear_time() -> None:
    assert passages("boat", [("x " * MESSAGE_CHARACTERS + "boat",)]) == [None]
    hostile = [("boat " * 80_000, "a" * 400_000, "\u0301" * 400_000, "京" * 400_000)] * 50
    began = time.process_time()
    passages("boat harbour", hostile)
    assert time.process_time() - began < 5


def order(*scores: float | None, days: Sequence[int] = (), asked: int | None = None) -> list[int]:
    """Places by fused ranks, of episodes that ended on these days; by default, all on the same."""
    ends = [NOON + timedelta(days=day) for day in days or [0] * len(scores)]
    by_passage = passage_order([None if score is None else Passage(score, {0: 1.0}) for score in scores], ends)
    return [place for place, _ in fused([range(len(scores)), by_passage], () if asked is None else {asked})]


def test_fused_ranks_keep_the_order_where_no_passage_says_otherwise() -> None:
    assert order(None, None, None) == [0, 1, 2]
    assert order(3.0, 2.0, 1.0) == [0, 1, 2]
    assert order(3.0, 3.0, 3.0) == [0, 1, 2]
    assert order() == []


def test_a_better_passage_brings_an_episode_forward() -> None:
    assert order(1.0, None, 2.0, 9.0) == [0, 3, 2, 1]
    assert order(1.0, 2.0, 9.0, 8.0) == [2, 0, 1, 3]


def test_of_passages_about_as_good_the_newer_one_is_first() -> None:
    assert order(1.0, 5.0, 5.02, days=(0, 9, 1)) == [1, 0, 2]
    assert order(1.0, 5.0, 9.0, days=(0, 9, 1)) == [0, 2, 1]


def test_an_episode_of_the_asked_time_comes_forward() -> None:
    assert order(9.0, 8.0, 7.0, 1.0, asked=3) == [3, 0, 1, 2]
    assert order(9.0, None, None, *[8.0] * 40, 1.0, asked=43)[:2] == [0, 43]


@given(st.integers(0, 40), st.randoms(use_true_random=False))
def test_fused_ranks_are_all_places_best_first(number: int, chance: Random) -> None:
    some = chance.sample(range(number), chance.randint(0, number))
    found = fused([range(number), some], set(chance.sample(some, len(some) // 2)))
    assert sorted(place for place, _ in found) == list(range(number))
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)


def test_where_a_long_answer_repeats_the_words_the_short_message_that_says_it_is_found() -> None:
    """An assistant's answer of many words has those of any question, and must not hide what the user said."""
    answer = " ".join(f"Tip {n}: a doctor, a school or a daughter may matter." for n in range(5))
    filler = "Here is what I would suggest for this, step by step, and in detail. " * 5
    told = ("My daughter is allergic to nuts.", f"Noted. {filler}")
    others = [("What shall we cook?", f"{filler} Nuts: many are allergic. {answer}") for _ in range(9)]
    found = passages("is my daughter allergic to nuts?", [*others, told])
    assert found[-1] is not None
    assert found[-1].matching.keys() == {0}
    assert all(found[-1].score > other.score for other in found[:-1] if other)


def by_definition(query: str, episodes: Sequence[Sequence[str]]) -> list[Passage | None]:
    """The best passages, each step written down as it is defined, without sparing any time."""
    samples = [" ".join(text[:SAMPLE_CHARACTERS] for text in texts[:2]) for texts in episodes[:10]]
    most = [language for language, _ in Counter(map(detect, samples)).most_common(1)]
    likely = [language for language in plausible(query) if language != UNDETERMINED][:LIKELY_LANGUAGES]
    wanted = {language: set(stems(words(query), language)) for language in (*most, *likely)}

    def terms(word: str) -> list[str]:
        return [stem for language, of in wanted.items() for stem in stems([word], language) if stem in of][:1]

    def counted(text: str) -> tuple[list[str], int]:
        found = words(text[:MESSAGE_CHARACTERS])
        return [term for word in found for term in terms(word)], len(found)

    windows: list[list[tuple[dict[int, set[str]], Counter[str], int]]] = []
    for texts in episodes:
        said = [counted(text) for text in texts]
        starts = range(max(1, len(said) - WINDOW + 1)) if said else range(0)
        spans = [range(start, min(start + WINDOW, len(said))) for start in starts]
        windows.append(
            [
                (
                    {place: set(said[place][0]) for place in span if said[place][0]},
                    Counter(term for place in span for term in said[place][0]),
                    sum(said[place][1] for place in span),
                )
                for span in spans
            ]
        )
    every = [window for each in windows for window in each]
    having = Counter(term for _, counts, _ in every for term in counts)
    weights = {term: math.log(1 + (len(every) - n + 0.5) / (n + 0.5)) for term, n in having.items()}
    average = sum(length for _, _, length in every) / len(every) if every else 0.0

    def passage(window: tuple[dict[int, set[str]], Counter[str], int]) -> Passage:
        matching, counts, length = window
        norm = K1 * (1 - B + B * length / average)
        scores = [weights[term] * n * (K1 + 1) / (n + norm) for term, n in sorted(counts.items())]
        has = {place: [weights[term] for term in sorted(weights) if term in terms] for place, terms in matching.items()}
        # each sum is rounded; those of `sum` are not in Python 3.12
        return Passage(reduce(add, scores, 0.0), {place: reduce(add, each, 0.0) for place, each in has.items()})

    return [max([passage(one) for one in each if one[0]], key=lambda p: p.score, default=None) for each in windows]


TERMS = ("dive", "diving", "dives", "wreck", "the", "Die", "Häuser", "haus", "潜水", "x", "", "12")
said = st.lists(st.sampled_from(TERMS), max_size=6).map(" ".join)


@given(said, st.lists(st.lists(said, max_size=7), max_size=5))
def test_passages_are_those_of_the_definition(query: str, episodes: list[list[str]]) -> None:
    assert passages(query, episodes) == by_definition(query, episodes)


def test_passages_of_real_dialogues_are_those_of_the_definition() -> None:
    lines = (Path(__file__).parents[3] / "data" / "dialogues.jsonl").read_text().splitlines()
    turns = [json.loads(line)["dialogue"].replace("[BOUNDARY]", "").split("[NEWLINE]") for line in lines]
    random, every = Random(15), [text for texts in turns for text in texts]
    for query in random.sample(every, 40):
        assert passages(query, turns[:50]) == by_definition(query, turns[:50])
