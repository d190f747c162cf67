"""Figures of a run: rates, costs, and the ratios of programs that took turns."""

from collections.abc import Sequence
from itertools import islice
from typing import Literal

import orjson
import pytest

from afterword.dialogues import expand
from afterword.streams.segmenter.processor import Segmenter
from afterword.streams.settings import Episodes
from afterword.streams.tokens import count_tokens
from benchmarks import partitions
from benchmarks.contest import Program, Results, group_id, table
from benchmarks.load import MESSAGE_BYTES, amounts, dialogues
from benchmarks.measure import Round, Work, between
from benchmarks.programs.rules import Record
from benchmarks.recall.corpora import dialogue_rows
from benchmarks.segmenter import NOON_MS, flagged

WORK = Work("", "group", "topic", 100)
OURS, THEIRS = Program("ours", []), Program("theirs", [], 1.5)


def test_a_round_is_what_lies_between_two_commits() -> None:
    done = between((100, 10.0, 3.0), (1100, 12.0, 3.5), WORK)
    assert (done.rate, done.cpu_microseconds) == (500.0, 500.0)


def test_one_commit_is_no_round() -> None:
    with pytest.raises(RuntimeError, match="one commit"):
        between((100, 10.0, 3.0), (100, 10.0, 3.0), WORK)


def test_a_ratio_is_the_median_of_the_rounds_ratios_not_the_ratio_of_the_medians() -> None:
    results = Results(
        {
            "ours": [Round(100, 1.0, 1.0), Round(100, 10.0, 1.0), Round(100, 20.0, 1.0)],
            "theirs": [Round(100, 2.0, 3.0), Round(100, 30.0, 2.0), Round(100, 20.0, 2.0)],
        }
    )
    assert results.faster("ours", "theirs") == pytest.approx(2.0)
    assert results.leaner("ours", "theirs") == pytest.approx(2.0)


def test_a_table_says_whether_each_aim_is_met() -> None:
    rounds = {"ours": [Round(100, 1.0, 1.0)], "theirs": [Round(100, 1.4, 3.0)]}
    found = table("engine", "title", Results(rounds), [OURS, THEIRS])
    assert [(line.program, line.aim, line.met) for line in found.lines] == [
        ("ours", "", None),
        ("theirs", "≥ 1.5", False),
    ]
    assert found.ratios == {"engine/theirs": pytest.approx(1.4), "engine/theirs, CPU": pytest.approx(3.0)}


def test_shapes_are_compared_by_what_a_message_costs_not_by_how_fast_they_are() -> None:
    rounds = {shape.name: [Round(100, 1.0, 1.0)] for shape in partitions.SHAPES}
    rounds["4 partitions, 2 workers"] = [Round(100, 0.5, 1.25)]
    found = partitions.finding(Results(rounds), 1)
    assert found.ratios["partitions/4 partitions, 2 workers"] == pytest.approx(0.8)
    assert [line.met for line in found.lines] == [None, False, True, True, True]


def test_a_groups_id_can_be_the_name_of_a_topic() -> None:
    assert group_id("4 partitions, 2 workers", "messages-4", 0) == "4-partitions-2-workers-messages-4-0"


def test_the_counters_messages_have_their_size_and_their_keys() -> None:
    found = list(islice(amounts(50, keys=3), 50))
    assert {len(value) for _, value in found} == {MESSAGE_BYTES}
    assert {key for key, _ in found} == {b"key-0", b"key-1", b"key-2"}
    assert all(orjson.loads(value)["key"].encode() == key for key, value in found)


def test_conversations_say_what_people_said_each_one_dialogue_after_the_other() -> None:
    records = [orjson.loads(value) for _, value in dialogues(3000, 3)]
    rows = list(islice(dialogue_rows(), 4))
    for at in range(3):
        said = [message for message in records if message["conversation_id"] == f"conversation-{at}"]
        first, then = (expand(row["id"], row["dialogue"]) for row in rows[at : at + 2])
        assert [message["content"] for message in said[: len(first)]] == [turn.content for turn in first]
        assert said[len(first)]["content"] == then[0].content
        assert not said[len(first)]["is_continuation"]


def test_flags_at_the_places_that_the_text_tells_make_the_same_episodes() -> None:
    told = list(dialogues(600, 20, flags=False))
    by_text, by_flags = boundaries(told, "auto"), boundaries(flagged(told), "flags")
    assert by_text == by_flags
    assert by_text != boundaries(told, "flags")


def boundaries(told: Sequence[tuple[bytes, bytes]], mode: Literal["auto", "flags"]) -> list[list[str]]:
    """Ids of the messages of each episode that closes."""
    segmenter = Segmenter(Episodes(topic_shift=mode), "episodes", "dead-letters", {}, {}, count_tokens)
    records = [Record("messages", 0, at, NOON_MS, key, value) for at, (key, value) in enumerate(told)]
    events = [orjson.loads(sent.value or b"") for sent in segmenter.process(records, NOON_MS).outgoing]
    return [[message["id"] for message in event["messages"]] for event in events]
