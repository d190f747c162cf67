"""The golden set and its scores, by hand-made cases."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from afterword.golden import Fact, GoldenEpisode, GoldenScore, golden_episodes, is_held, score_writer
from afterword.golden.episodes import KINDS
from afterword.schemas import Quality, Usage
from afterword.streams.errors import AnswerInvalid, ProviderUnavailable
from afterword.streams.summarizer.providers import ExtractiveProvider, Maker
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from afterword.trial import GoldenComparison

FEE = Fact("what", "The fee is $50", (("fee", "costs"), ("50", "fifty")))
ASKED = Fact("open", "Where the form is", (("where", "find"), ("application form",)))
NOT = Fact("decision", "It is not done", (("not", "no"), ("done",)))
SAID = ("The suspension fee is $50.", "Where do I find the application form?")


def an_episode(name: str, *facts: Fact) -> GoldenEpisode:
    """One of the set, with other words and facts."""
    first = golden_episodes()[0]
    messages = tuple(m.model_copy(update={"content": s}) for m, s in zip(first.episode.messages, SAID, strict=False))
    return GoldenEpisode(name, first.episode.model_copy(update={"messages": messages}), facts)


def a_summary(long: str) -> Summary:
    usage = Usage(prompt_tokens=100, completion_tokens=20)
    return Summary("Fee", "A fee is asked for.", long, "", Quality(source="llm"), "m", usage)


class Writer:
    """Says what it is told to, episode after episode; raises what is an error."""

    def __init__(self, *answers: str | Exception) -> None:
        self._answers = list(answers)

    async def write(self, request: SummaryRequest) -> Summary:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return a_summary(answer)


async def scored(episodes: Sequence[GoldenEpisode], *answers: str | Exception) -> GoldenScore:
    return await score_writer(Writer(*answers).write, episodes)


@pytest.mark.parametrize(
    ("fact", "text", "held"),
    [
        (FEE, "The fee is $50.", True),
        (FEE, "It costs fifty dollars.", True),
        (FEE, "There are fees. They are of 50 dollars.", True),
        (FEE, "There is a fee. It is due. The user has 50 friends.", False),
        (FEE, "The fee is $500.", False),
        (FEE, "The user has 50 coffees.", False),
        (ASKED, "The user wants to find the application forms.", True),
        (ASKED, "Where is the form of the application?", False),
        (NOT, "It isn't done.", True),
        (NOT, "It isn’t done.", True),
        (NOT, "It is done.", False),
        (FEE, "", False),
    ],
)
def test_a_fact_is_held_where_all_it_needs_is_said_in_two_sentences(fact: Fact, text: str, held: bool) -> None:
    assert is_held(fact, [text]) is held


def test_what_a_fact_needs_is_said_in_one_text() -> None:
    assert not is_held(FEE, ["The fee.", "It is 50."])


async def test_facts_figures_and_tokens_are_counted_over_all_episodes() -> None:
    episodes = [an_episode("a", FEE, ASKED), an_episode("b", FEE, NOT)]
    found = await scored(episodes, "The fee is $50.", "The fee is 50 dollars or 77 dollars.")
    assert (found.recall, found.recall_by_kind["what"], found.recall_by_kind["open"]) == (0.5, 1.0, 0.0)
    assert (found.figures, found.figure_precision) == (3, pytest.approx(2 / 3))
    assert (found.tokens, found.failures.total()) == (120, 0)
    assert [[fact.text for fact in one.missing] for one in found.episodes] == [[ASKED.text], [NOT.text]]


async def test_an_episode_without_a_summary_holds_no_fact_and_says_why() -> None:
    error = AnswerInvalid(problem="x", usage=Usage(prompt_tokens=30))
    found = await scored([an_episode("a", FEE), an_episode("b", FEE)], error, "The fee is $50.")
    assert (found.recall, dict(found.failures)) == (0.5, {"answer_invalid": 1})
    assert found.tokens == (30 + 120) / 2


async def test_an_llm_that_is_away_has_no_score() -> None:
    with pytest.raises(ProviderUnavailable):
        await scored([an_episode("a", FEE)], ProviderUnavailable(problem="away"))


async def test_a_candidate_is_worse_if_it_loses_facts_or_figures_or_fails_more_often() -> None:
    episodes = [an_episode("a", FEE, ASKED)]
    good = await scored(episodes, "The fee is $50. The user asks where to find the application form.")
    fewer = await scored(episodes, "The fee is $50.")
    wrong = await scored(episodes, "The fee is $50, or $77. The user asks where to find the application form.")
    none = await scored(episodes, AnswerInvalid(problem="x"))
    maker = Maker("m", "p")

    def is_worse(candidate: GoldenScore) -> bool:
        return GoldenComparison((maker, good), (maker, candidate), (maker, fewer)).is_worse

    assert [is_worse(candidate) for candidate in (good, fewer, wrong, none)] == [False, True, True, True]
    assert not GoldenComparison((maker, none), (maker, replace(good)), (maker, fewer)).is_worse


def test_the_set_has_sixty_episodes_with_facts_of_every_kind_which_their_own_words_hold() -> None:
    episodes = golden_episodes()
    assert len({golden.name for golden in episodes}) == len(episodes) == 60
    assert all(len(golden.facts) >= 3 for golden in episodes)
    assert {fact.kind for golden in episodes for fact in golden.facts} == set(KINDS)
    assert [f.text for golden in episodes for f in golden.facts if not is_held(f, [f.text])] == []


async def test_facts_are_held_by_the_summaries_of_their_own_episode_and_hardly_by_others() -> None:
    episodes = golden_episodes()
    texts = {}
    for golden in episodes:
        made = await ExtractiveProvider().summarize(SummaryRequest(golden.episode, "", 800))
        texts[golden.name] = (made.title, made.short_summary, made.long_summary)

    def share(shift: int) -> float:
        names = [golden.name for golden in episodes]
        others = dict(zip(names, names[shift:] + names[:shift], strict=True))
        held = [is_held(fact, texts[others[golden.name]]) for golden in episodes for fact in golden.facts]
        return sum(held) / len(held)

    assert share(0) > 0.6
    assert max(share(shift) for shift in (1, 7, 30)) < 0.03
