"""The histories that recall is measured on: the same each time, and each question has its answer."""

from collections import Counter
from datetime import timedelta

from benchmarks.recall.__main__ import Figures, found
from benchmarks.recall.corpora import Question
from benchmarks.recall.histories import CHANGES, HISTORIES, SESSIONS, Change, histories_by_rules

MADE = list(histories_by_rules())


def texts(number: int) -> dict[str, str]:
    return {e.episode_id: " ".join(m.content for m in e.messages) for e in MADE[number].episodes}


def test_they_are_the_same_with_every_call() -> None:
    assert list(histories_by_rules()) == MADE
    assert list(histories_by_rules(1)) != MADE
    assert [len(history.episodes) for history in MADE] == [SESSIONS] * HISTORIES


def test_every_category_is_asked_and_every_answer_is_an_episode_of_its_user() -> None:
    counts = Counter(asked.category for history in MADE for asked in history.questions)
    assert counts.keys() == {"fact", "several", "time", "plan", "update"}
    assert min(counts.values()) >= HISTORIES
    for history in MADE:
        own = {episode.episode_id for episode in history.episodes}
        assert all(asked.answers and asked.answers <= own for asked in history.questions)


def test_of_what_changed_only_the_latest_answers() -> None:
    for number, history in enumerate(MADE):
        said = texts(number)
        order = [episode.episode_id for episode in history.episodes]
        for change in CHANGES:
            [answer] = next(asked.answers for asked in history.questions if asked.text == change.question)
            telling = [one for one in order if _tells(said[one], change)]
            assert len(telling) > 1
            assert telling[-1] == answer


def _tells(text: str, change: Change) -> bool:
    beginning, end = change.first.split("{v}")
    first = beginning in text and end in text
    return first or any(change.later.format(old=old, v=new) in text for old in change.values for new in change.values)


def test_what_is_asked_of_a_month_was_told_in_it_and_a_plan_before_it() -> None:
    for history in MADE:
        starts = {episode.episode_id: episode.started_at for episode in history.episodes}
        for asked in history.questions:
            [*answers] = (starts[answer] for answer in asked.answers)
            if asked.category == "time" and asked.text.endswith("last week?"):
                assert timedelta() < history.asked_at - answers[0] < timedelta(days=14)
            elif asked.category == "time":
                assert f"{answers[0]:in %B %Y}" in asked.text
            elif asked.category == "plan":
                assert f"{answers[0]:in %B %Y}" not in asked.text


def test_figures_of_a_ranking() -> None:
    one = Question("", frozenset({"a"}))
    assert found(one, ["a", "b"]) == Figures(1, 1, 1)
    assert found(one, ["b", "a"]) == Figures(0, 1, 0.5)
    assert found(one, [*"bcdef", "a"]) == Figures(0, 0, 1 / 6)
    assert found(one, []) == Figures(0, 0, 0)
    assert found(Question("", frozenset("ab"), "several"), [*"acdefb"]) == Figures(1, 0.5, 1)
