"""Cost of the state: bytes written to the changelogs for each message."""

from tests.unit.segmenter.chat import Chat, limits, say

RECORD_OVERHEAD_BYTES = 30
"""Overhead of a record in a changelog: lengths, deltas, a share of the batch's header."""
MESSAGE_BYTES = 300
LIMIT_BYTES = 1200
CONVERSATION = "0b6f0c0e-6e1f-5d7b-9a5c-3f1b6c1d2e4f"


class Changelog(dict):
    """A table that counts what its changelog takes."""

    bytes = 0

    def __setitem__(self, key, value):
        self.bytes += len(key) + len(value) + RECORD_OVERHEAD_BYTES
        super().__setitem__(key, value)

    def __delitem__(self, key):
        self.bytes += len(key) + RECORD_OVERHEAD_BYTES
        super().__delitem__(key)


def message_of_300_bytes(number: int):
    def of(content: str):
        return say(f"{number:036}", content, conversation_id=CONVERSATION, user_id="user-123")

    return of("x" * (MESSAGE_BYTES - len(of("").value)))


def per_message(episode_length: int, messages: int = 2000) -> float:
    """Return the bytes per message if each is a batch of its own, the worst case, measured once the window is full."""
    chat = Chat(limits(max_episode_size=episode_length, trigger=episode_length, overlap=2))
    chat.conversations, chat.messages = Changelog(), Changelog()
    measured_from = 0
    for number in range(messages):
        if number == messages // 2:
            measured_from = chat.conversations.bytes + chat.messages.bytes
        chat.process([message_of_300_bytes(number)])
    return (chat.conversations.bytes + chat.messages.bytes - measured_from) / (messages - messages // 2)


def test_changelog_takes_at_most_1200_bytes_a_message():
    costs = {length: per_message(length) for length in (5, 100, 500)}
    assert max(costs.values()) <= LIMIT_BYTES
    assert max(costs.values()) - min(costs.values()) < 0.02 * LIMIT_BYTES, costs


def test_message_writes_no_more_when_many_are_pending():
    chat = Chat()
    chat.conversations, chat.messages = Changelog(), Changelog()
    costs = []
    for number in range(900):
        before = chat.conversations.bytes + chat.messages.bytes
        chat.process([message_of_300_bytes(number)])
        costs.append(chat.conversations.bytes + chat.messages.bytes - before)
    more_digits = 30
    assert max(costs) - min(costs[1:]) <= more_digits
