"""Questions and answers that a summary puts side by side."""

from afterword_text.extractive import summarize
from afterword_text.gate import share_of_pairs
from tests.unit.summarizer.conversations import an_episode_of, dialogues

ORDERS = [
    ("user", "Where is my order 4711-22?"),
    ("assistant", "Let me **check**."),
    ("user", "And what about 8830-07?"),
    ("assistant", "Order 8830-07 was *delivered*."),
]


def test_question_with_anothers_answer_is_no_pair() -> None:
    joined = "User: Where is my order 4711-22? Assistant: Order 8830-07 was delivered."
    assert share_of_pairs([joined], ORDERS) == 0.0


def test_question_with_its_own_answer_is_a_pair() -> None:
    pair = "User: And what about 8830-07? Assistant: Order 8830-07 was delivered."
    assert share_of_pairs([pair], ORDERS) == 1.0
    assert share_of_pairs([pair, "User: Where is my order 4711-22? Assistant: Yes."], ORDERS) == 0.5


def test_text_without_pairs_is_not_judged() -> None:
    assert (
        share_of_pairs(["They spoke of orders.", "User: Where is it? User: And what about 8830-07?"], ORDERS[:1]) == 0
    )
    assert share_of_pairs(["They spoke of orders."], ORDERS) == 1.0


def test_pairs_of_extractive_summaries_were_pairs() -> None:
    for turns in dialogues():
        summary = summarize(an_episode_of(*turns), "", 800)
        assert share_of_pairs([summary.short_summary, summary.long_summary], turns) == 1.0
