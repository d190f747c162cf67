"""The rules that close episodes: conditions, overrides, repeats, silence and clocks."""

import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from afterword.streams.segmenter.processor import MAX_OVERRIDES_BYTES, OVERRIDABLE, Rulebook, Segmenter
from afterword.streams.segmenter.state import State, event_time
from afterword.streams.settings import Episodes
from afterword.streams.triggers import CONDITIONS, compile_trigger
from tests.rows import with_rows
from tests.unit.segmenter.chat import (
    DEAD_LETTERS,
    NOON,
    SECOND,
    Chat,
    Sent,
    amendments,
    check_steps,
    closed,
    edit,
    flush,
    heard,
    limits,
    say,
    says,
)
from tests.unit.segmenter.oracle import MEASURES
from tests.unit.segmenter.strategies import NUMBERS


@with_rows
def test_rule_closes_the_episodes_of_its_example(rule: str, changed: dict[str, Any], steps: list[Any]) -> None:
    check_steps(rule, changed, steps)


@with_rows
def test_overlap_is_the_end_of_the_previous_episode(
    rule: str, changed: dict[str, Any], talk: list[Any], overlaps: list[str]
) -> None:
    found = heard(Chat(limits(**changed)), talk)
    assert [" ".join(message.id for message in episode.overlap) for episode in found] == overlaps, rule
    assert [episode.ordinal for episode in found] == [*range(1, len(found) + 1)]


class TestWhatIsTaken:
    def test_skipped_message_is_ignored(self):
        chat = Chat(limits(trigger=2))
        outcome = chat.process([say("a", skip_summarization=True), say("a"), say("b")])
        assert (outcome.skipped, outcome.messages, outcome.duplicates) == (1, 2, 0)
        assert outcome.episodes == {"trigger": 1}

    def test_repeated_id_is_dropped_and_counted(self):
        chat = Chat()
        outcome = chat.process([*says("a", "b", "a"), flush()])
        assert outcome.duplicates == 1
        assert outcome.episodes == {"flush": 1}

    def test_duplicate_is_dropped_after_its_episode_closed(self):
        chat = Chat()
        chat.hear(*says("a", "b"), flush())
        assert chat.process([say("a")]).duplicates == 1

    def test_repeat_with_another_text_edits_the_pending_message(self):
        chat = Chat()
        chat.process([say("q"), say("a", "The", role="assistant")])
        for text in ("The key", "The key is here."):
            outcome = chat.process([say("a", text, role="assistant", flows=["keys"])])
            assert (outcome.changed_repeats, outcome.duplicates, outcome.outgoing) == (1, 0, [])
        [episode] = chat.hear(say("a", "The key is here.", role="assistant"), flush())
        assert [(m.content, m.flows) for m in episode.messages] == [("x", ()), ("The key is here.", ("keys",))]

    def test_repeat_with_another_text_amends_a_closed_episode(self):
        chat = Chat()
        chat.hear(*says("a", "b"), flush())
        outcome = chat.process([say("a", "edited"), say("a", "edited")])
        [event] = amendments(outcome.outgoing)
        assert (event.message_id, event.fields["content"], event.offset) == ("a", "edited", 3)
        assert (outcome.changed_repeats, outcome.duplicates) == (1, 1)

    def test_repeat_of_a_replaced_text_does_not_undo_an_edit(self):
        chat = Chat()
        outcome = chat.process([say("a", "one"), edit("a", content="two"), say("a", "one")])
        assert (outcome.amendments, outcome.duplicates) == (1, 1)
        [episode] = chat.hear(flush())
        assert episode.messages[0].content == "two"

    @with_rows
    def test_repeat_of_another_writer_is_dead_lettered(self, fields):
        chat = Chat()
        outcome = chat.process([say("a"), say("a", **fields)])
        assert (outcome.dead_letters, outcome.changed_repeats) == ({"changed_repeat": 1}, 0)
        [episode] = chat.hear(flush())
        assert [(m.role, m.content) for m in episode.messages] == [("user", "x")]

    def test_changed_repeat_is_dead_lettered_if_repeats_are_rejected(self):
        chat = Chat(limits(on_changed_repeat="reject"))
        outcome = chat.process([say("a"), say("a", "other"), say("a")])
        assert (outcome.dead_letters, outcome.duplicates) == ({"changed_repeat": 1}, 1)
        [episode] = chat.hear(flush())
        assert episode.messages[0].content == "x"

    def test_changed_repeats_are_logged_once_per_conversation(self):
        segmenter = Segmenter(limits(), "closed", "dlq", {}, {}, count_tokens=len)
        said = [say("a", text, conversation_id=name) for name in "cd" for text in ("one", "two", "three")]
        with capture_logs() as logs:
            segmenter.process(said, NOON)
        assert [log["event"] for log in logs] == ["message_repeated_with_another_text"] * 2
        assert {log["log_level"] for log in logs} == {"warning"}

    def test_only_the_last_messages_are_remembered(self):
        chat = Chat(limits(dedupe_window=3, trigger=1))
        assert chat.process(says("a", "b", "c", "a")).duplicates == 1
        outcome = chat.process(says("d", "a"))
        assert (outcome.messages, outcome.duplicates) == (2, 0)

    def test_pending_message_is_remembered_beyond_the_window(self):
        chat = Chat(limits(dedupe_window=2))
        assert chat.process(says("a", "b", "c", "d", "a")).duplicates == 1

    def test_id_is_unique_in_its_conversation_only(self):
        outcome = Chat().process([say("a"), say("a", conversation_id="other")])
        assert outcome.messages == 2

    @pytest.mark.parametrize(("first", "second"), [("acme", "evil"), ("acme", None), (None, "evil")])
    def test_another_tenant_cannot_write_into_a_conversation(self, first, second):
        outcome = Chat().process([say("a", tenant_id=first), say("b", tenant_id=second), say("a", tenant_id=second)])
        assert outcome.messages == 1
        assert outcome.dead_letters == {"tenant_mismatch": 2}


class TestSilence:
    def test_conversation_that_is_not_due_is_left_alone(self):
        chat = Chat()
        chat.hear(say("a"))
        assert chat.tick([b"c", b"unknown"]).outgoing == []

    def test_restarted_worker_closes_the_same_episodes(self):
        alive, dead = (Chat(limits(idle_seconds=300, overlap=1)) for _ in range(2))
        talk = [*says("a", "b"), say("c", at=1, stamped=400), flush()]
        seen_alive = alive.hear(*talk[:2]) + alive.wait(300) + alive.hear(*talk[2:])
        seen_dead = dead.hear(*talk)
        assert [e.fingerprint for e in seen_alive] == [e.fingerprint for e in seen_dead]
        assert closed(seen_alive) == closed(seen_dead) == [("a b", "idle"), ("c", "flush")]


class TestFlush:
    def test_flush_closes_nothing_twice(self):
        chat = Chat()
        outcome = chat.process([say("a"), flush(), flush(), flush("unknown")])
        assert (outcome.flushes, outcome.episodes) == (3, {"flush": 1})
        assert list(chat.conversations) == [b"c"]


class TestOrdinalsAndOverlap:
    def test_conversations_do_not_affect_each_other(self):
        chat = Chat(limits(trigger=2, overlap=1))
        found = chat.hear(*(say(i, conversation_id=c) for i in "abcd" for c in "xy"))
        assert [(e.conversation_id, e.ordinal) for e in found] == [("x", 1), ("y", 1), ("x", 2), ("y", 2)]


def test_batch_is_dated_by_the_given_clock():
    chat = Chat(now_ms=NOON + 5 * SECOND)
    assert chat.hear(say("a"), flush())[0].closed_at.second == 5


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


IDLE = 300
SKEWS = [310, -310, 86_400, -86_400, 10**9]
"""Seconds by which the assistant's clock is wrong; the last one is in the next thirty years."""


def talk(skew: int = 0, *, pause: int = 1000) -> list[Sent]:
    """Return four episodes of ten messages each, ten seconds apart, with silence between them."""
    messages = []
    for n in range(40):
        at = 10 * n + pause * (n // 10)
        assistant = n % 2 == 1
        sent = at + (skew if assistant else 0)
        messages.append(say(f"m{n}", at=sent, stamped=at, role="assistant" if assistant else "user"))
    return messages


def closings(messages: list[Sent]) -> list[tuple[str, str]]:
    return closed(Chat(limits(idle_seconds=IDLE)).hear(*messages))


@pytest.mark.parametrize("skew", SKEWS)
def test_role_with_a_wrong_clock_changes_no_episode(skew):
    assert len(closings(talk())) == 3
    assert closings(talk(skew)) == closings(talk())


def test_repeated_skewed_times_open_one_gap_per_silence():
    again = [Sent(m.key, m.value, timestamp=talk()[-1].timestamp + 10**6) for m in talk(310)]
    starts = ["m0", "m10", "m20", "m30"]
    assert [ids for ids, _ in closings(again) if ids in starts] == starts
    assert len(closings(again)) == len(closings(talk())) + len(starts)


def test_skewed_producers_open_one_gap():
    messages = []
    for n in range(40):
        at = 10 * n + (310 if n % 2 else 0)
        messages.append(say(f"m{n}", at=at))
    assert closings(messages) == [("m0", "idle")]


@pytest.mark.parametrize("sent", [10**9, -(10**9)])
def test_time_far_away_opens_and_hides_no_gap(sent):
    messages = talk()
    messages[3] = say("m3", at=sent, stamped=30, role="assistant")
    assert closings(messages) == closings(talk())


def test_record_without_timestamp_keeps_sent_times():
    assert closings([Sent(m.key, m.value, timestamp=-1) for m in talk()]) == closings(talk())


@given(st.integers(-(2**53), 2**53), st.integers(1, 2**53))
def test_no_event_is_later_than_its_record(sent_ms, record_ms):
    assert event_time(sent_ms, record_ms) <= record_ms
    assert event_time(min(sent_ms, record_ms), record_ms) == min(sent_ms, record_ms)


@given(st.lists(st.integers(0, 400), min_size=1, max_size=40), st.integers(0, 30))
def test_honest_clocks_are_compared_with_the_previous_message(gaps, delay):
    at, messages, expected, episode = 0, [], [], []
    for n, gap in enumerate(gaps):
        at += gap
        if n and gap > IDLE:
            expected.append(" ".join(episode))
            episode = []
        episode.append(f"m{n}")
        messages.append(say(f"m{n}", at=at, stamped=at + delay))
    assert [ids for ids, _ in closings(messages)] == expected


def override(message_id: str, given: object, **fields: object):
    return say(message_id, metadata={"afterword": given}, **fields)


@with_rows
def test_overrides_close_the_episodes_of_their_example(rule: str, changed: dict[str, Any], steps: list[Any]) -> None:
    check_steps(rule, changed, steps)


class TestTheyAreValidated:
    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ("often", "metadata.afterword: must be an object"),
            ([1], "metadata.afterword: must be an object"),
            (1, "metadata.afterword: must be an object"),
            *((empty, "metadata.afterword: must be an object") for empty in ([], "", 0, False)),
            ({"canary": 1}, f"metadata.afterword: may have {', '.join(OVERRIDABLE)}, and nothing else"),
            ({"overlap": 1}, f"metadata.afterword: may have {', '.join(OVERRIDABLE)}, and nothing else"),
            ({"trigger": {"any": [{"canary": 1}]}}, "metadata.afterword.trigger: any[0]: unknown condition"),
            ({"trigger": 0}, "metadata.afterword.trigger: messages: must be a whole number of at least 1"),
            ({"auto_summarize": "canary"}, "metadata.afterword.auto_summarize: Input should be a valid boolean"),
            ({"idle_seconds": 0}, "metadata.afterword.idle_seconds: Input should be greater than 0"),
            ({"min_episode_size": 7, "max_episode_size": 2},
             "metadata.afterword: min_episode_size (7) is larger than max_episode_size (2)"),
            ({"trigger": [{"turns": 1}] * 200},
             f"metadata.afterword: 2413 bytes of JSON, at most {MAX_OVERRIDES_BYTES}"),
        ],
    )  # fmt: skip
    def test_wrong_overrides_are_dead_lettered_with_a_reason(self, given, said):
        chat = Chat()
        with capture_logs() as logs:
            outcome = chat.process([say("a"), override("b", given), say("c"), flush()])
        assert outcome.dead_letters == {"invalid_override": 1}
        assert outcome.messages == 2
        letter = next(o for o in outcome.outgoing if o.topic == DEAD_LETTERS)
        assert dict(letter.headers)["__afterword.errors.message"].decode().startswith(said)
        assert orjson.loads(letter.value)["id"] == "b"
        assert "canary" not in str(logs) + str(letter.headers)

    def test_refused_message_sets_no_overrides(self):
        chat = Chat()
        refused = [
            override("b", {"trigger": 1, "overlap": 1}),
            override("c", {"trigger": 1}, flows=["f" * 600_000]),
            override("d", {"trigger": 1}, tenant_id="evil"),
        ]
        assert chat.process([say("a"), *refused, say("e")]).episodes == {}

    def test_every_override_is_a_setting(self):
        assert set(OVERRIDABLE) < set(Episodes.model_fields)

    def test_overrides_unfit_for_a_later_deployment_are_ignored(self):
        taken = Rulebook(limits(min_episode_size=1)).read({"afterword": {"max_episode_size": 2}}, "")
        later = Rulebook(limits(min_episode_size=5))
        with capture_logs() as logs:
            assert later.rules(taken) == later.rules("")
        assert [(entry["error_type"], entry["stage"]) for entry in logs] == [("invalid_override", "segmenter")]
