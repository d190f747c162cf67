"""Scores of topic segmentation on cases worked out by hand."""

import pytest

from benchmarks.quality import segmentation as topics


def cut(marks: str) -> list[bool]:
    """`|` before each turn that begins a topic: "..|.." has four turns."""
    return [mark == "1" for mark in marks.replace("|.", "1").replace(".", "0")]


def test_what_is_right_has_no_error() -> None:
    same = cut("....|....")
    found = topics.scores([same], [same])
    assert (found.pk, found.window_diff, found.f1, found.score, found.turns_each) == (0, 0, 1, 1, 4)


def test_a_window_is_half_the_mean_segment() -> None:
    assert topics.window(cut("......|......")) == 3
    assert topics.window(cut("..|..|..")) == 2
    assert topics.window(cut("..")) == 1


def test_a_boundary_that_is_missing_is_in_two_windows_of_six() -> None:
    reference, found = cut("....|...."), cut("........")
    assert topics.pk(reference, found) == pytest.approx(2 / 6)
    assert topics.window_diff(reference, found) == pytest.approx(2 / 6)
    assert topics.f1([reference], [found]) == 0


def test_two_boundaries_for_one_are_an_error_of_window_diff_alone() -> None:
    reference, found = cut("....|...."), cut("...|.|....")
    assert topics.pk(reference, found) == pytest.approx(1 / 6)
    assert topics.window_diff(reference, found) == pytest.approx(2 / 6)
    assert topics.f1([reference], [found]) == pytest.approx(2 / 3)


def test_the_score_is_the_mean_of_f1_and_of_what_is_right_in_windows() -> None:
    assert topics.Scores(0.2, 0.4, 0.5, 3).score == pytest.approx((0.5 + 0.7) / 2)


def test_the_first_turn_is_no_boundary() -> None:
    assert topics.f1([[True, False]], [[False, False]]) == 1


def test_f1_is_of_all_dialogues_together() -> None:
    references = [cut("..|..|.."), cut("....")]
    assert topics.f1(references, [cut("..|...."), cut("..|..")]) == pytest.approx(2 / 4)


def test_text_tiling_cuts_where_the_words_change() -> None:
    said = ["cats purr", "cats sleep", "cats purr and sleep", "taxes rise", "taxes fall", "taxes rise and fall"]
    dialogue = tuple(topics.Turn("user", text, begins=False) for text in said)
    assert topics.text_tiling(dialogue) == cut("...|...")


def test_the_data_are_whole_dialogues_of_three_splits() -> None:
    found = {corpus: len(dialogues) for corpus, dialogues in topics.read().items()}
    assert found == {"superseg_validation": 1322, "tiage_train": 300, "tiage_validation": 100}
