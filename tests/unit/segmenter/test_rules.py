"""One example for each sentence of the rules."""

import pytest
from structlog.testing import capture_logs

from afterword.streams.segmenter.processor import Segmenter
from afterword.streams.segmenter.rules import MAX_EPISODE_BYTES, MAX_OVERLAP_BYTES
from tests.unit.segmenter.chat import NOON, SECOND, Chat, amendments, closed, edit, flush, limits, say, says


class TestWhatIsTaken:
    def test_skipped_message_is_ignored(self):
        chat = Chat(limits(trigger=2))
        outcome = chat.process([say("a", skip_summarization=True), say("a"), say("b")])
        assert (outcome.skipped, outcome.messages, outcome.duplicates) == (1, 2, 0)
        assert outcome.episodes == {"trigger": 1}

    def test_skipped_message_does_not_break_the_silence(self):
        chat = Chat(limits(idle_seconds=300))
        chat.hear(say("a"), say("b", at=200, skip_summarization=True))
        assert closed(chat.hear(say("c", at=400))) == [("a", "idle")]

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

    @pytest.mark.parametrize(
        "fields",
        [
            {"role": "assistant"},
            {"role": "assistant", "content": "other"},
            {"user_id": "ben"},
            {"user_id": "", "content": ""},
        ],
    )
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


class TestBoundaries:
    def test_topic_shift_seals_a_long_enough_episode(self):
        chat = Chat(limits(min_episode_size=2))
        heard = [*says("a", "b"), say("c", is_continuation=False), flush()]
        assert closed(chat.hear(*heard)) == [("a b", "topic_shift"), ("c", "flush")]

    def test_topic_shift_does_not_seal_a_short_episode(self):
        chat = Chat(limits(min_episode_size=3))
        heard = [*says("a", "b"), say("c", is_continuation=False), flush()]
        assert closed(chat.hear(*heard)) == [("a b c", "flush")]

    @pytest.mark.parametrize("unknown", [None, True])
    def test_only_a_message_marked_as_shift_seals(self, unknown):
        heard = [*says("a", "b"), say("c", is_continuation=unknown), flush()]
        assert closed(Chat().hear(*heard)) == [("a b c", "flush")]

    def test_disabled_topic_shift_ignores_the_mark(self):
        heard = [*says("a", "b"), say("c", is_continuation=False), flush()]
        assert closed(Chat(limits(topic_shift="off")).hear(*heard)) == [("a b c", "flush")]

    def test_message_beyond_the_token_limit_begins_another_episode(self):
        chat = Chat(limits(max_episode_tokens=10, min_episode_size=5))
        heard = [say("a", "12345"), say("b", "12345"), say("c", "1"), flush()]
        assert closed(chat.hear(*heard)) == [("a b", "max_size"), ("c", "flush")]

    def test_oversized_message_is_one_episode_alone(self):
        chat = Chat(limits(max_episode_tokens=3))
        heard = [say("a", "1"), say("b", "12345"), say("c", "1"), flush()]
        assert closed(chat.hear(*heard)) == [("a", "max_size"), ("b", "max_size"), ("c", "flush")]

    def test_episode_stays_below_700_kilobytes_of_json(self):
        third = "x" * (MAX_EPISODE_BYTES // 3)
        chat = Chat()
        found = chat.hear(*says("a", "b", "c", content=third), flush())
        assert closed(found) == [("a b", "max_size"), ("c", "flush")]

    def test_topic_shift_outranks_a_full_episode(self):
        chat = Chat(limits(max_episode_tokens=2))
        heard = [*says("a", "b"), say("c", is_continuation=False), flush()]
        assert closed(chat.hear(*heard)) == [("a b", "topic_shift"), ("c", "flush")]

    def test_full_episode_is_sealed(self):
        chat = Chat(limits(max_episode_size=2))
        assert closed(chat.hear(*says("a", "b", "c", "d", "e"), flush())) == [
            ("a b", "max_size"),
            ("c d", "max_size"),
            ("e", "flush"),
        ]


class TestSilence:
    def test_message_after_silence_closes_all_pending(self):
        chat = Chat(limits(idle_seconds=300, min_episode_size=5))
        assert closed(chat.hear(say("a"), say("b", at=300), say("c", at=601))) == [("a b", "idle")]

    def test_silence_is_more_than_the_limit(self):
        assert Chat(limits(idle_seconds=300)).hear(say("a"), say("b", at=300)) == []

    def test_sealed_episodes_keep_their_own_reason(self):
        chat = Chat(limits(idle_seconds=300))
        heard = [say("a"), say("b", is_continuation=False), say("c", at=301)]
        assert closed(chat.hear(*heard)) == [("a", "topic_shift"), ("b", "idle")]

    def test_silence_outranks_a_topic_shift(self):
        chat = Chat(limits(idle_seconds=300))
        assert closed(chat.hear(say("a"), say("b", at=301, is_continuation=False))) == [("a", "idle")]

    def test_gap_between_records_is_silence(self):
        chat = Chat(limits(idle_seconds=300))
        assert closed(chat.hear(say("a"), say("b", at=1, stamped=301))) == [("a", "idle")]

    def test_late_message_opens_no_gap(self):
        chat = Chat(limits(idle_seconds=300))
        heard = [say("a", at=200, stamped=900), say("b", at=0, stamped=900), say("c", at=500, stamped=900)]
        assert chat.hear(*heard) == []
        assert closed(chat.hear(say("d", at=801, stamped=900))) == [("a b c", "idle")]

    def test_wall_time_without_messages_closes_pending_ones(self):
        chat = Chat(limits(idle_seconds=300, min_episode_size=5))
        chat.hear(*says("a", "b"))
        assert chat.wait(299.999) == []
        assert closed(chat.wait(0.001)) == [("a b", "idle")]
        assert chat.wait(1000) == []

    def test_each_message_moves_the_deadline(self):
        chat = Chat(limits(idle_seconds=300))
        chat.hear(say("a"))
        chat.wait(200)
        chat.hear(say("b"))
        assert chat.wait(200) == []
        assert closed(chat.wait(100)) == [("a b", "idle")]

    def test_duplicate_does_not_move_the_deadline(self):
        chat = Chat(limits(idle_seconds=300))
        chat.hear(say("a"))
        chat.wait(200)
        chat.hear(say("a"))
        assert closed(chat.wait(100)) == [("a", "idle")]

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

    def test_huge_idle_seconds_do_not_overflow_the_deadline(self):
        chat = Chat(limits(idle_seconds=1e300))
        assert chat.hear(say("a"), say("b", at=10**9)) == []
        assert chat.wait(10**9) == []


class TestTrigger:
    def test_enough_messages_close_the_open_episode(self):
        chat = Chat(limits(trigger=3))
        assert chat.hear(*says("a", "b")) == []
        assert closed(chat.hear(say("c"))) == [("a b c", "trigger")]

    def test_enough_tokens_close_the_open_episode(self):
        chat = Chat(limits(trigger_tokens=5))
        assert closed(chat.hear(say("a", "123"), say("b", "12"))) == [("a b", "trigger")]

    def test_trigger_counts_all_pending_and_keeps_sealed_reasons(self):
        chat = Chat(limits(trigger=4))
        heard = [*says("a", "b"), say("c", is_continuation=False), say("d")]
        assert closed(chat.hear(*heard)) == [("a b", "topic_shift"), ("c d", "trigger")]

    def test_short_tail_stays_pending(self):
        chat = Chat(limits(trigger=3, min_episode_size=2))
        assert closed(chat.hear(*says("a", "b"), say("c", is_continuation=False))) == [("a b", "topic_shift")]
        assert chat.hear(say("d")) == []
        assert closed(chat.hear(say("e"))) == [("c d e", "trigger")]

    def test_tokens_of_a_remaining_tail_stay_pending(self):
        chat = Chat(limits(trigger_tokens=10, min_episode_size=2))
        first = [say("a", "1234"), say("b", "12"), say("c", "12345", is_continuation=False)]
        assert closed(chat.hear(*first)) == [("a b", "topic_shift")]
        assert closed(chat.hear(say("d", "12345"))) == [("c d", "trigger")]

    def test_short_episode_waits_although_the_trigger_fires(self):
        chat = Chat(limits(trigger=1, min_episode_size=2))
        assert chat.hear(say("a")) == []
        assert closed(chat.hear(say("b"))) == [("a b", "trigger")]

    def test_full_episode_was_sealed_before_the_trigger_fired(self):
        chat = Chat(limits(trigger=2, max_episode_size=2))
        assert closed(chat.hear(*says("a", "b"))) == [("a b", "max_size")]


class TestFlush:
    def test_flush_closes_all_pending_whatever_its_size(self):
        chat = Chat(limits(min_episode_size=5))
        assert closed(chat.hear(say("a"), flush())) == [("a", "flush")]

    def test_flush_closes_nothing_twice(self):
        chat = Chat()
        outcome = chat.process([say("a"), flush(), flush(), flush("unknown")])
        assert (outcome.flushes, outcome.episodes) == (3, {"flush": 1})
        assert list(chat.conversations) == [b"c"]


class TestOrdinalsAndOverlap:
    def test_episodes_are_numbered_and_carry_the_previous_end(self):
        chat = Chat(limits(max_episode_size=3, overlap=2))
        found = chat.hear(*says(*"abcdefg"), flush())
        assert [e.ordinal for e in found] == [1, 2, 3]
        assert [[m.id for m in e.overlap] for e in found] == [[], ["b", "c"], ["e", "f"]]

    def test_short_episode_gives_all_its_overlap(self):
        chat = Chat(limits(overlap=2))
        found = chat.hear(*says("a", "b"), flush(), say("c"), flush(), say("d"), flush())
        assert [[m.id for m in e.overlap] for e in found] == [[], ["a", "b"], ["c"]]

    def test_overlap_outlives_the_duplicate_window(self):
        chat = Chat(limits(overlap=3, dedupe_window=1))
        found = chat.hear(*says("a", "b", "c"), flush(), say("d"), flush())
        assert [m.id for m in found[1].overlap] == ["a", "b", "c"]

    def test_large_overlap_is_dropped_from_the_front(self):
        third = "x" * (MAX_OVERLAP_BYTES // 3)
        chat = Chat(limits(overlap=3))
        found = chat.hear(*says("a", "b", "c", content=third), flush(), say("d"), flush())
        assert [m.id for m in found[1].overlap] == ["b", "c"]

    def test_message_too_large_for_an_overlap_leaves_none(self):
        chat = Chat(limits(overlap=1))
        found = chat.hear(say("a", "x" * MAX_OVERLAP_BYTES), flush(), say("b"), flush())
        assert found[1].overlap == ()

    def test_conversations_do_not_touch_each_other(self):
        chat = Chat(limits(trigger=2, overlap=1))
        found = chat.hear(*(say(i, conversation_id=c) for i in "abcd" for c in "xy"))
        assert [(e.conversation_id, e.ordinal) for e in found] == [("x", 1), ("y", 1), ("x", 2), ("y", 2)]


def test_batch_is_dated_by_the_given_clock():
    chat = Chat(now_ms=NOON + 5 * SECOND)
    assert chat.hear(say("a"), flush())[0].closed_at.second == 5
