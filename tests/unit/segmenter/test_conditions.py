"""Each condition of a trigger, and their combinations."""

import re
from pathlib import Path

import pytest

from afterword.streams.segmenter.state import State
from afterword.streams.triggers import CONDITIONS, compile_trigger
from tests.unit.segmenter.chat import Chat, closed, flush, limits, say, says
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


def chat(trigger: object, **changed: object) -> Chat:
    return Chat(limits(trigger=trigger, **changed))


class TestEach:
    def test_messages_condition_counts_all_pending_messages(self):
        heard = [say("a"), say("b", role="tool"), say("c", role="system")]
        assert closed(chat({"messages": 3}).hear(*heard)) == [("a b c", "trigger")]

    def test_events_condition_counts_every_record(self):
        heard = [say("a"), say("b", role="assistant"), *says("c", "d", role="tool")]
        assert closed(chat({"events": 4}).hear(*heard)) == [("a b c d", "trigger")]

    def test_skipped_and_repeated_messages_are_not_counted(self):
        talk = chat({"any": [{"messages": 2}, {"events": 2}, {"turns": 2}, {"tokens": 2}, {"text_bytes": 2}]})
        assert talk.hear(say("a"), say("a"), say("b", skip_summarization=True)) == []

    def test_turn_is_a_user_message_and_its_answers(self):
        talk = chat({"turns": 3})
        assert talk.hear(say("a"), *says("b", "c", role="assistant"), say("d"), say("e", role="tool")) == []
        assert closed(talk.hear(say("f"))) == [("a b c d e f", "trigger")]

    def test_messages_before_the_first_user_message_are_a_turn(self):
        (episode,) = chat({"turns": 2}).hear(say("a", role="assistant"), say("b", role="tool"), say("c"))
        assert episode.turn_count == 2

    def test_tokens_condition_counts_all_pending_messages(self):
        assert closed(chat({"tokens": 5}).hear(say("a", "123"), say("b", "12"))) == [("a b", "trigger")]

    def test_text_bytes_are_counted_as_utf8(self):
        talk = chat({"text_bytes": 6})
        assert talk.hear(say("a", "é"), say("b", "123")) == []
        assert closed(talk.hear(say("c", "1"))) == [("a b c", "trigger")]

    def test_important_content_exceeds_a_length_after_stripping(self):
        talk = chat({"important_content": 10})
        assert talk.hear(say("a", "  1234567890\n\t")) == []
        assert closed(talk.hear(say("b", "12345678901"))) == [("a b", "trigger")]

    def test_important_content_is_searched_in_all_pending_messages(self):
        talk = chat([{"important_content": 3}, {"messages": 3}])
        assert closed(talk.hear(say("a", "long"), say("b"), say("c"))) == [("a b c", "trigger")]


class TestSeconds:
    def test_seconds_count_from_the_first_pending_message(self):
        talk = chat({"seconds": 30})
        assert talk.hear(say("a"), say("b", at=29)) == []
        assert closed(talk.hear(say("c", at=30))) == [("a b c", "trigger")]

    def test_seconds_count_from_the_last_summary_if_any(self):
        talk = chat({"seconds": 30})
        assert closed(talk.hear(say("a"), say("b", at=30))) == [("a b", "trigger")]
        assert talk.hear(say("c", at=40), say("d", at=59)) == []
        assert closed(talk.hear(say("e", at=60))) == [("c d e", "trigger")]

    def test_seconds_restart_after_silence(self):
        talk = chat({"seconds": 30}, idle_seconds=100)
        assert closed(talk.hear(say("a"), flush())) == [("a", "flush")]
        assert talk.hear(say("b", at=1000), say("c", at=1029)) == []
        assert closed(talk.hear(say("d", at=1030))) == [("b c d", "trigger")]

    def test_seconds_are_event_time(self):
        talk = chat({"seconds": 30})
        assert talk.hear(say("a", stamped=0), say("b", at=1, stamped=200)) == []
        assert talk.wait(100) == []

    def test_time_going_backwards_fulfils_nothing(self):
        assert chat({"seconds": 30}).hear(say("a", at=100), say("b", at=0), say("c", at=29)) == []


class TestTogether:
    def test_any_needs_one_condition(self):
        talk = chat({"any": [{"messages": 3}, {"tokens": 5}]})
        assert closed(talk.hear(say("a", "12345"))) == [("a", "trigger")]
        assert closed(talk.hear(*says("b", "c", "d"))) == [("b c d", "trigger")]

    @pytest.mark.parametrize("written", ["list", "all"])
    def test_list_and_all_need_every_condition(self, written):
        conditions = [{"turns": 2}, {"tokens": 5}]
        talk = chat(conditions if written == "list" else {"all": conditions})
        assert talk.hear(say("a", "12345")) == []
        assert closed(talk.hear(say("b"))) == [("a b", "trigger")]

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_all_condition_does_not_depend_on_order(self, order):
        conditions = [{"messages": 3}, {"seconds": 30}]
        talk = chat([conditions[n] for n in order])
        assert talk.hear(*says("a", "b", "c", "d")) == []
        assert closed(talk.hear(say("e", at=30))) == [("a b c d e", "trigger")]
        assert talk.hear(say("f", at=70)) == []
        assert closed(talk.hear(*says("g", "h", at=71))) == [("f g h", "trigger")]

    def test_any_and_all_nest(self):
        talk = chat({"any": [{"messages": 100}, {"all": [{"turns": 2}, {"any": [{"tokens": 50}, {"seconds": 9}]}]}]})
        assert talk.hear(say("a"), say("b"), say("c", at=8)) == []
        assert closed(talk.hear(say("d", at=9))) == [("a b c d", "trigger")]

    def test_preset_for_tokens_and_exchanges_has_known_thresholds(self):
        talk = chat([{"tokens": 200}, {"turns": 5}])
        heard = [say(f"{n}{role}", "x" * 30, role=role) for n in range(4) for role in ("user", "assistant")]
        assert talk.hear(*heard) == []
        assert len(talk.hear(say("last"))) == 1

    def test_preset_for_messages_or_tokens_has_known_thresholds(self):
        talk = chat({"any": [{"messages": 21}, {"tokens": 4001}]})
        assert talk.hear(*says(*(f"m{n}" for n in range(20)))) == []
        assert len(talk.hear(say("m20"))) == 1
        assert len(talk.hear(say("long", "x" * 4001))) == 1

    def test_evaluating_conditions_changes_nothing(self):
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

    def test_important_content_that_left_no_longer_counts(self):
        talk = chat([{"important_content": 5}, {"messages": 3}], min_episode_size=2)
        shift = say("b", is_continuation=False)
        assert closed(talk.hear(say("1", "a long one"), say("2"), shift)) == [("1 2", "topic_shift")]
        assert talk.hear(say("c"), say("d")) == []

    def test_seconds_count_from_the_closing_message(self):
        talk = chat({"any": [{"messages": 3}, {"seconds": 30}]}, min_episode_size=2)
        assert closed(talk.hear(*says("1", "2"), say("b", is_continuation=False, at=5))) == [("1 2", "topic_shift")]
        assert talk.hear(say("c", at=34)) == []
        assert talk.hear(say("c", at=34)) == []
        assert closed(talk.hear(say("d", at=35))) == [("b c d", "trigger")]


class TestAutoSummarize:
    def test_without_a_trigger_only_flush_and_silence_close(self):
        talk = chat(1, auto_summarize=False, idle_seconds=100, max_episode_size=3)
        assert talk.hear(*says("a", "b", "c", "d")) == []
        assert closed(talk.hear(flush())) == [("a b c", "max_size"), ("d", "flush")]
        talk.hear(say("e"))
        assert closed(talk.wait(100)) == [("e", "idle")]

    def test_silence_between_messages_closes_without_a_trigger(self):
        talk = chat(1, auto_summarize=False, idle_seconds=100)
        assert closed(talk.hear(say("a"), say("b", at=101))) == [("a", "idle")]


def test_12_kilobytes_of_text_close_an_agents_episode():
    talk = chat({"text_bytes": 12_288}, scope="agent")
    assert talk.hear(say("a", "x" * 12_287, agent_id="x", role="assistant"), say("b", "x", agent_id="y")) == []
    assert closed(talk.hear(say("c", agent_id="x"))) == [("a c", "trigger")]
