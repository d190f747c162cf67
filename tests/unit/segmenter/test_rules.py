"""One example for each sentence of the rules: those about what closes are rows."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from afterword.streams.segmenter.processor import Segmenter
from tests.rows import with_rows
from tests.unit.segmenter.chat import (
    NOON,
    SECOND,
    Chat,
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


@with_rows
def test_rule_closes_the_episodes_of_its_example(rule: str, changed: dict[str, Any], steps: list[Any]) -> None:
    check_steps(rule, changed, steps)


@with_rows
def test_overlap_is_the_end_of_the_episode_before(
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
    def test_conversations_do_not_touch_each_other(self):
        chat = Chat(limits(trigger=2, overlap=1))
        found = chat.hear(*(say(i, conversation_id=c) for i in "abcd" for c in "xy"))
        assert [(e.conversation_id, e.ordinal) for e in found] == [("x", 1), ("y", 1), ("x", 2), ("y", 2)]


def test_batch_is_dated_by_the_given_clock():
    chat = Chat(now_ms=NOON + 5 * SECOND)
    assert chat.hear(say("a"), flush())[0].closed_at.second == 5
