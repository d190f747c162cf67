"""Limits of what waits in the state, whatever a conversation's rules are, and of what is sent at once."""

from afterword.streams.segmenter.processor import MAX_IDLE_SECONDS
from afterword.streams.segmenter.rules import MAX_PENDING_BYTES, MAX_PENDING_MESSAGES
from afterword.streams.segmenter.state import decode_state
from tests.rows import with_rows
from tests.unit.segmenter.chat import Chat, flush, limits, say

NOTHING_CLOSES = {"auto_summarize": False, "idle_seconds": MAX_IDLE_SECONDS}


def muted(max_pending: int = MAX_PENDING_MESSAGES) -> Chat:
    """Return a chat in which a producer has turned every trigger off."""
    chat = Chat(limits(max_episode_size=3), max_pending=max_pending)
    chat.process([say("first", metadata={"afterword": NOTHING_CLOSES})])
    return chat


class TestPending:
    def test_pending_messages_never_exceed_the_limit(self):
        chat = muted(max_pending=10)
        pending = []
        for n in range(50):
            chat.process([say(f"m{n}")])
            pending.append(decode_state(chat.conversations[b"c"]).pending_messages)
        assert max(pending) == 9  # the tenth sends the sealed ones off

    def test_pending_bytes_and_flush_output_are_bounded(self):
        chat = muted()
        largest = 0
        for n in range(40):
            chat.process([say(f"m{n}", "x" * 300_000)])
            largest = max(largest, sum(map(len, chat.messages.values())))
        assert largest < MAX_PENDING_BYTES + 1_000_000
        assert len(chat.process([flush()]).outgoing) <= 7

    def test_bytes_outside_the_text_count(self):
        chat = muted()
        for n in range(40):
            chat.process([say(f"m{n}", tools=["t" * 300_000])])
        assert sum(map(len, chat.messages.values())) < 2_000_000

    def test_endless_turns_hold_no_messages_back(self):
        chat = Chat(limits(trigger="long_conversation", max_episode_size=20), max_pending=100)
        found = chat.hear(*[say(f"m{n}", role="assistant") for n in range(1000)])
        assert sum(e.message_count for e in found) > 900

    def test_configured_episode_may_exceed_the_limit(self):
        chat = Chat(limits(max_episode_size=30, trigger=30), max_pending=10)
        (episode,) = chat.hear(*[say(f"m{n}") for n in range(30)])
        assert episode.message_count == 30


def test_lowered_window_applies_at_the_next_message():
    chat = Chat(limits(dedupe_window=500, trigger=5))
    chat.hear(*[say(f"m{n}") for n in range(500)])
    chat.limits = limits(dedupe_window=10, trigger=5)
    outcome = chat.process([say("m400"), say("m495")])
    assert (outcome.messages, outcome.duplicates) == (1, 1)
    row_and_id, emitted_at_once = 2, 5
    assert len(chat.messages) <= row_and_id * (10 + emitted_at_once)
    assert chat.process([say("m400")]).duplicates == 1


class TestOverrides:
    @with_rows
    def test_oversized_record_is_dead_lettered(self, given):
        outcome = Chat().process([say("a", metadata={"afterword": given})])
        assert outcome.dead_letters == {"invalid_override": 1}

    def test_largest_record_is_accepted(self):
        given = {"idle_seconds": MAX_IDLE_SECONDS, "max_episode_size": 1000}
        assert Chat().process([say("a", metadata={"afterword": given})]).messages == 1

    def test_deployments_own_values_do_not_limit_overrides(self):
        chat = Chat(limits(max_episode_size=5000, idle_seconds=1e9))
        assert chat.process([say("a", metadata={"afterword": {"trigger": 3}})]).messages == 1
