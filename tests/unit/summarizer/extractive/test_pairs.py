"""Questions and answers that a summary without an LLM puts side by side."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise

from afterword.streams.summarizer.extractive import summarize
from afterword.streams.text.fences import NAMED
from afterword.streams.text.language import words
from afterword.streams.text.prose import sentences_of
from tests.unit.summarizer.conversations import an_episode_of, dialogues

Said = tuple[str, str]
"""Role and text."""

KEY = 6
"""This many words at the end of a question, and at the beginning of an answer, are searched for in the conversation."""
_SPEAKER = re.compile(rf"(?:^|(?<=\s))(User|Assistant|Tool|System){NAMED}")
_END = re.compile(r"(?<=[.!?…。！？])\s+")
_QUESTION = re.compile(r"[?？؟]")


def share_of_pairs(texts: Iterable[str], messages: Sequence[Said]) -> float:
    """Return the share of the texts' pairs of question and answer that the conversation has; 1.0 if they have none.

    The conversation has a pair if the asker asked nothing else before the answer came. `messages` are the
    conversation's.
    """
    pairs = [pair for text in texts for pair in _pairs(text)]
    if not pairs:
        return 1.0

    @cache
    def spoken(at: int) -> str:
        return _spelled(" ".join(sentences_of(messages[at][1])))

    def was_one(asked: Said, told: Said) -> bool:
        for at in (at for at, (role, _) in enumerate(messages) if role == asked[0] and asked[1] in spoken(at)):
            for later in range(at + 1, len(messages)):
                role, content = messages[later]
                if role == told[0] and told[1] in spoken(later):
                    return True
                if role == asked[0] and _QUESTION.search(content):
                    break
        return False

    return sum(was_one(*pair) for pair in pairs) / len(pairs)


def _pairs(text: str) -> Iterator[tuple[Said, Said]]:
    parts = _SPEAKER.split(text)
    turns = [(role.lower(), _END.split(said.strip())) for role, said in zip(parts[1::2], parts[2::2], strict=True)]
    for (asker, asked), (other, told) in pairwise(turns):
        if _QUESTION.search(asked[-1]):
            yield (asker, _spelled(asked[-1], last=KEY)), (other, _spelled(told[0], first=KEY))


def _spelled(text: str, first: int | None = None, last: int = 0) -> str:
    """Return the words of a text, or its first or last ones, in the form in which they are compared."""
    return f" {' '.join(words(text)[-last:][:first])} "


ORDERS = [
    ("user", "Where is my order 4711-22?"),
    ("assistant", "Let me **check**."),
    ("user", "And what about 8830-07?"),
    ("assistant", "Order 8830-07 was *delivered*."),
]


def test_a_question_beside_the_answer_to_another_one_is_no_pair() -> None:
    joined = "User: Where is my order 4711-22? Assistant: Order 8830-07 was delivered."
    assert share_of_pairs([joined], ORDERS) == 0.0


def test_a_question_beside_its_own_answer_is_one() -> None:
    pair = "User: And what about 8830-07? Assistant: Order 8830-07 was delivered."
    assert share_of_pairs([pair], ORDERS) == 1.0
    assert share_of_pairs([pair, "User: Where is my order 4711-22? Assistant: Yes."], ORDERS) == 0.5


def test_a_text_without_pairs_is_not_judged() -> None:
    assert (
        share_of_pairs(["They spoke of orders.", "User: Where is it? User: And what about 8830-07?"], ORDERS[:1]) == 0
    )
    assert share_of_pairs(["They spoke of orders."], ORDERS) == 1.0


def test_the_pairs_of_extractive_summaries_were_pairs() -> None:
    for turns in dialogues():
        summary = summarize(an_episode_of(*turns), "", 800)
        assert share_of_pairs([summary.short_summary, summary.long_summary], turns) == 1.0
