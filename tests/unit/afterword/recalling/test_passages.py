import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, timedelta
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
    FirstRanked,
    Passage,
    Precedence,
    best_passages,
    fused_ranks,
    latest_first,
    matching_words,
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
    return best_passages(matching_words(query, said), said)


def test_the_messages_that_match_are_those_of_the_best_window_that_have_words_of_the_query() -> None:
    (diving, cooking) = passages("diving near a wreck", [DIVING, COOKING])
    assert diving is not None
    assert cooking is not None
    assert diving.matching == (2, 3)
    assert cooking.matching == (4,)
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
    assert found.matching == (1,)
    (found,) = passages("京都", [("昨日は大阪", "来週は京都に行きます")])
    assert found is not None
    assert found.matching == (1,)


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
        assert passage.matching[-1] - passage.matching[0] < WINDOW
        assert all(set(messages[place].split()) & set(query.split()) for place in passage.matching)


def test_a_long_message_is_read_to_a_limit_and_in_linear_time() -> None:
    assert passages("boat", [("x " * MESSAGE_CHARACTERS + "boat",)]) == [None]
    hostile = [("boat " * 800, "a" * MESSAGE_CHARACTERS, "\u0301" * MESSAGE_CHARACTERS, "京" * MESSAGE_CHARACTERS)] * 50
    began = time.process_time()
    passages("boat harbour", hostile)
    assert time.process_time() - began < 5


def scored(score: float | None) -> Passage | None:
    return None if score is None else Passage(score, (0,), frozenset({"stem"}), 1.0)


def order(*scores: float | None, days: Sequence[int] = (), asked: int | None = None) -> list[int]:
    """Places by fused ranks, of episodes that ended on these days; by default, all on the same."""
    ends = [NOON + timedelta(days=day) for day in days or [0] * len(scores)]
    ranked = [FirstRanked(scored(score), ends[place], place == asked) for place, score in enumerate(scores)]
    return [place for place, _ in fused_ranks(ranked)]


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
    assert order(9.0, None, None, *[8.0] * 40, None, asked=43)[-1] == 43, "none of the words was said then"


times = st.datetimes(timezones=st.just(UTC))
some_stems = st.frozensets(st.sampled_from("ab"))
some_passages = st.builds(Passage, st.floats(1e-9, 50), st.just((0,)), some_stems, st.floats(1, 2))
FIRST_RANKED = st.builds(FirstRanked, st.none() | some_passages, times, st.booleans(), st.booleans())


HOME = ("live", "flat")


def told(day: int, *stems: str, change: bool = False, asked: bool = False) -> FirstRanked:
    return FirstRanked(
        Passage(9.0 - day, (0,), frozenset(stems), float(len(stems))), NOON + timedelta(days=day), asked, change
    )


def places(*episodes: FirstRanked, past: bool = False) -> list[int]:
    return precedence(*episodes, past=past).changes_first([place for place, _ in fused_ranks(episodes)])


def precedence(*episodes: FirstRanked, past: bool = False) -> Precedence:
    """Knows nothing of what the messages say. `past`: the query names a time that is over."""
    return Precedence(episodes, [EpisodeWords(["Hello."]) for _ in episodes], {}, past)


def test_what_tells_a_change_is_before_what_it_has_changed() -> None:
    first, second, last = told(1, *HOME), told(3, *HOME, change=True), told(5, *HOME, change=True)
    assert places(first, second, last) == [2, 1, 0]
    assert places(first, told(3, *HOME), told(5, *HOME)) == [0, 1, 2], "none says that anything has changed"
    assert places(told(5, *HOME), told(3, *HOME, change=True)) == [0, 1], "it was told earlier"


def test_a_change_of_something_else_stays_where_it_is() -> None:
    assert places(told(1, *HOME, "city"), told(3, *HOME, change=True)) == [0, 1]
    assert places(told(1, *HOME), told(3, "live", "city", change=True)) == [0, 1]
    assert places(told(1, "live"), told(3, "live", change=True)) == [0, 1], "one word in common is little"
    alike = told(2, *HOME), told(4, *HOME, change=True)
    assert places(told(1, *HOME, "city"), *alike) == [0, 1, 2], "another has far more of the query"


def test_a_query_that_names_a_time_that_is_over_does_not_ask_for_the_latest() -> None:
    both = told(1, *HOME, asked=True), told(3, *HOME, change=True, asked=True)
    assert places(*both, past=True) == [0, 1]
    assert places(*both) == [1, 0], "this summer is not over"
    assert places(told(1, *HOME), told(3, *HOME, change=True), past=True) == [1, 0], "nothing was at that time"


def test_who_puts_episodes_in_another_order_leaves_those_of_the_asked_time_their_ranks() -> None:
    at_noon, later = told(1, *HOME, asked=True), told(2, *HOME, asked=True)
    kept = precedence(at_noon, told(3, *HOME), later, told(4, *HOME)).kept
    assert kept([0, 2, 1, 3], [3, 2, 1, 0]) == [2, 0, 3, 1]
    assert kept([2, 1], [1, 2]) == [2, 1], "some were left out meanwhile"
    changed = told(2, *HOME, change=True, asked=True)
    assert precedence(told(1, *HOME, asked=True), changed).kept([0, 1], [0, 1]) == [1, 0]


def test_and_what_tells_a_change_stays_before_what_it_has_changed() -> None:
    first, second = told(1, *HOME), told(3, *HOME, change=True)
    assert precedence(first, second, told(2, "city")).kept([1, 0, 2], [2, 0, 1]) == [2, 1, 0]


@given(st.lists(FIRST_RANKED, max_size=9), st.randoms(use_true_random=False))
def test_an_order_that_is_put_right_has_the_same_episodes(episodes: list[FirstRanked], chance: Random) -> None:
    before = chance.sample(range(len(episodes)), chance.randint(0, len(episodes)))
    after = chance.sample(before, len(before))
    assert sorted(precedence(*episodes).kept(before, after)) == sorted(before)
    assert precedence(*episodes).kept(before, before) == precedence(*episodes).changes_first(before)


def test_words_of_change_count_in_the_messages_that_match() -> None:
    episode = EpisodeWords(["I live in Porto now.", "Fine.", "No longer in Ghent."])
    assert episode.tells_change((0, 1))
    assert not episode.tells_change((1,))
    assert episode.tells_change((2,))
    assert EpisodeWords(["Not in Ghent any more."]).tells_change((0,))
    assert EpisodeWords(["Nicht mehr in Gent."]).tells_change((0,))
    assert EpisodeWords(["Ce n'est plus à Gand."]).tells_change((0,))
    assert not EpisodeWords(["Any flat in Ghent?", "Tell me more."]).tells_change((0, 1)), "of one message"
    assert not EpisodeWords(["Mehr Wohnungen in Gent."]).tells_change((0,))


def first_of(query: str, *messages: str) -> int:
    """Place of the first of episodes, one a day, of which the first one is the best by words."""
    episodes = [EpisodeWords(["Hello.", text, "I see."]) for text in messages]
    matching = matching_words(query, episodes)
    passages = best_passages(matching, episodes)
    ranked = [FirstRanked(passage, NOON + timedelta(days=day)) for day, passage in enumerate(passages)]
    found = latest_first(range(len(ranked)), ranked, episodes, matching)
    assert sorted(found) == list(range(len(ranked)))
    return found[0]


AMSEL, BOYLE = "My dentist is Dr. Amsel.", "I have another dentist, Dr. Boyle instead of Dr. Amsel."


def test_what_replaces_the_value_of_the_best_is_first_and_may_be_replaced_in_its_turn() -> None:
    assert first_of("Who is my dentist?", AMSEL, "The weather is fine.", BOYLE) == 2
    assert first_of("Who is my dentist?", AMSEL, BOYLE, "My dentist is Dr. Castan now, Dr. Boyle retired.") == 2
    assert first_of("Who is my dentist?", BOYLE, AMSEL) == 0, "it was told earlier"
    assert first_of("Who is my dentist?", AMSEL, "I left Dr. Amsel, and my dentist is Dr. Boyle.") == 1
    assert first_of("Who is my dentist?", AMSEL, "Dr. Amsel is not my dentist any more, Dr. Boyle is.") == 1


def test_a_change_of_something_else_does_not_replace_the_best() -> None:
    assert first_of("Who is my dentist?", AMSEL, "I have another dentist, Dr. Boyle, with Dr. Amsel.") == 0, "no change"
    assert first_of("Who is my dentist?", AMSEL, BOYLE, "Dr. Amsel sings.") == 0, "others have that word, too"
    assert first_of("Who is my dentist?", AMSEL, "We walk instead, Dr. Amsel and I.") == 0, "no word of the query"
    hotel = "Which hotel did I book for the anniversary?"
    best = "I booked the hotel Old Mill for our anniversary."
    assert first_of(hotel, best, "The book club meets at the old library now.") == 0, "few words of the query"


def test_where_two_messages_have_as_much_of_the_query_none_is_replaced() -> None:
    episodes = [EpisodeWords([AMSEL, "My dentist is late."]), EpisodeWords([BOYLE])]
    matching = matching_words("Who is my dentist?", episodes)
    ranked = [FirstRanked(p, NOON + timedelta(days=d)) for d, p in enumerate(best_passages(matching, episodes))]
    assert latest_first([0, 1], ranked, episodes, matching) == [0, 1]
    assert latest_first([], [], [], {}) == []


def test_what_is_not_among_the_hits_replaces_none() -> None:
    episodes = [EpisodeWords([text]) for text in (AMSEL, BOYLE)]
    matching = matching_words("Who is my dentist?", episodes)
    ranked = [FirstRanked(p, NOON + timedelta(days=d)) for d, p in enumerate(best_passages(matching, episodes))]
    assert latest_first([0, 1], ranked, episodes, matching) == [1, 0]
    assert latest_first([0], ranked, episodes, matching) == [0]


@given(st.lists(FIRST_RANKED, max_size=60))
def test_fused_ranks_are_all_places_best_first(episodes: list[FirstRanked]) -> None:
    found = fused_ranks(episodes)
    assert sorted(place for place, _ in found) == list(range(len(episodes)))
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)


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

    windows: list[list[tuple[tuple[int, ...], Counter[str], int]]] = []
    for texts in episodes:
        said = [counted(text) for text in texts]
        starts = range(max(1, len(said) - WINDOW + 1)) if said else range(0)
        spans = [range(start, min(start + WINDOW, len(said))) for start in starts]
        windows.append(
            [
                (
                    tuple(place for place in span if said[place][0]),
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

    def passage(window: tuple[tuple[int, ...], Counter[str], int]) -> Passage:
        matching, counts, length = window
        norm = K1 * (1 - B + B * length / average)
        scores = [weights[term] * n * (K1 + 1) / (n + norm) for term, n in sorted(counts.items())]
        # each sum is rounded; those of `sum` are not in Python 3.12
        total, weight = reduce(add, scores, 0.0), reduce(add, (weights[term] for term in sorted(counts)), 0.0)
        return Passage(total, matching, frozenset(counts), weight)

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
