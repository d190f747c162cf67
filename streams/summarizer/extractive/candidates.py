"""The sentences of an episode that could stand in its summary."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from afterword.schemas import EpisodeMessage
from afterword.streams.summarizer.control_tokens import strip_control_tokens
from afterword.streams.summarizer.sentences import cut_at_word, split_sentences

MAX_CANDIDATES = 240
"""Sentences that are compared, in pairs: with 240 of 300 characters a summary stays under half a second."""
MAX_SENTENCE_CHARACTERS = 300
MAX_MESSAGE_CHARACTERS = 24_000
"""A longer message is read at its beginning and at its end, where people say what they want."""

Terms = Callable[[str], list[str]]
"""Stems of a text in one language, without its stop words."""


@dataclass(frozen=True)
class Candidate:
    """A sentence and where it was said."""

    text: str
    role: str
    message: int
    """Index of its message in the episode."""
    place: int
    """Index of the sentence in its message."""
    answers: bool = False
    """It opens a reply to a question of somebody else."""


def candidates(messages: Iterable[EpisodeMessage]) -> list[Candidate]:
    """In the order in which they were said; evenly thinned to MAX_CANDIDATES."""
    found = list(_sentences(messages))
    if len(found) <= MAX_CANDIDATES:
        return found
    return [found[i * len(found) // MAX_CANDIDATES] for i in range(MAX_CANDIDATES)]


def clean(text: str) -> str:
    """What of a message is read: control tokens gone, a huge one without its middle."""
    if len(text) > MAX_MESSAGE_CHARACTERS:
        half = MAX_MESSAGE_CHARACTERS // 2
        text = f"{text[:half]}\n{text[-half:]}"
    return strip_control_tokens(text)


def _sentences(messages: Iterable[EpisodeMessage]) -> Iterator[Candidate]:
    asked_by: str | None = None
    for index, message in enumerate(messages):
        texts = [" ".join(sentence.split()) for sentence in split_sentences(clean(message.content))]
        answers = asked_by is not None and asked_by != message.role
        for place, text in enumerate(texts):
            yield Candidate(
                cut_at_word(text, MAX_SENTENCE_CHARACTERS), message.role, index, place, answers and place < 2
            )
        if texts:
            asked_by = message.role if is_question(texts[-1]) else None


def is_question(sentence: str) -> bool:
    return sentence.rstrip("\"'”’»)」』 ").endswith(("?", "？", "؟"))
