"""Each condition of a trigger, and their combinations."""

import re
from pathlib import Path
from typing import Any

import pytest

from afterword.streams.segmenter.state import State
from afterword.streams.triggers import CONDITIONS, compile_trigger
from tests.rows import with_rows
from tests.unit.segmenter.chat import Chat, check_steps, closed, limits, say
from tests.unit.segmenter.oracle import MEASURES
from tests.unit.segmenter.strategies import NUMBERS

PAGE = (Path(__file__).parents[3] / "docs" / "segmentation.md").read_text()
TABLE = PAGE[PAGE.index("| condition |") :].partition("\n\n")[0]
LISTS = {
    "docs/segmentation.md": re.findall("`(.+?)`", "".join(re.findall(r"^\| (`.+?) \|", TABLE, re.M))),
    "tests/unit/segmenter/oracle.py": MEASURES,
    "tests/unit/segmenter/strategies.py": NUMBERS,
}


@pytest.mark.parametrize("file", LISTS)
def test_every_condition_is_in_the_file(file):
    assert set(LISTS[file]) == CONDITIONS.keys()


@with_rows
def test_trigger_closes_the_episodes_of_its_example(rule: str, changed: dict[str, Any], steps: list[Any]) -> None:
    check_steps(rule, changed, steps)


def chat(trigger: object, **changed: object) -> Chat:
    return Chat(limits(trigger=trigger, **changed))


def test_evaluating_conditions_changes_nothing():
    fires = compile_trigger(("all", (("messages", 3), ("seconds", 30))))
    state = State(None, next_seq=3, since_ms=0, last_sent_ms=29_999)
    assert [fires(state) for _ in range(3)] == [False, False, False]
    assert fires(state._replace(last_sent_ms=30_000))


class TestWhatStays:
    """A trigger resets what it emitted, and nothing else."""

    def tail(self, trigger: object) -> Chat:
        """Return a chat in which `b` is pending alone after `a` was emitted."""
        talk = chat({"any": [{"tokens": 100}, trigger]}, min_episode_size=2)
        shift = say("b", "x" * 90, is_continuation=False, at=5)
        assert closed(talk.hear(say("1", "x" * 9), say("2"), shift)) == [("1 2", "topic_shift")]
        return talk

    @pytest.mark.parametrize("trigger", [{"messages": 2}, {"turns": 2}, {"text_bytes": 92}, {"tokens": 92}])
    def test_tail_is_counted_exactly(self, trigger):
        talk = self.tail({"all": [trigger, {"important_content": 89}]})
        assert closed(talk.hear(say("c", "xx"))) == [("b c", "trigger")]

    @pytest.mark.parametrize("trigger", [{"messages": 3}, {"turns": 3}, {"text_bytes": 94}, {"tokens": 94}])
    def test_messages_that_left_no_longer_count(self, trigger):
        talk = self.tail(trigger)
        assert talk.hear(say("c", "xx")) == []
