"""Silence is measured on the conversation's own clock, which never goes back, whatever the speakers' clocks show."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.streams.segmenter.state import event_time
from tests.unit.segmenter.chat import Chat, Sent, closed, limits, say

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


def heard(messages: list[Sent]) -> list[tuple[str, str]]:
    return closed(Chat(limits(idle_seconds=IDLE)).hear(*messages))


@pytest.mark.parametrize("skew", SKEWS)
def test_role_with_a_wrong_clock_changes_no_episode(skew):
    assert len(heard(talk())) == 3
    assert heard(talk(skew)) == heard(talk())


def test_repeated_skewed_times_open_one_gap_per_silence():
    again = [Sent(m.key, m.value, timestamp=talk()[-1].timestamp + 10**6) for m in talk(310)]
    starts = ["m0", "m10", "m20", "m30"]
    assert [ids for ids, _ in heard(again) if ids in starts] == starts
    assert len(heard(again)) == len(heard(talk())) + len(starts)


def test_skewed_producers_open_one_gap():
    messages = []
    for n in range(40):
        at = 10 * n + (310 if n % 2 else 0)
        messages.append(say(f"m{n}", at=at))
    assert heard(messages) == [("m0", "idle")]


@pytest.mark.parametrize("sent", [10**9, -(10**9)])
def test_time_far_away_opens_and_hides_no_gap(sent):
    messages = talk()
    messages[3] = say("m3", at=sent, stamped=30, role="assistant")
    assert heard(messages) == heard(talk())


def test_record_without_timestamp_keeps_sent_times():
    assert heard([Sent(m.key, m.value, timestamp=-1) for m in talk()]) == heard(talk())


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
    assert [ids for ids, _ in heard(messages)] == expected
