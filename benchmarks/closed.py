"""Episodes as the segmenter closes them, without a broker: the input of whoever measures the summarizer alone."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from afterword.streams.segmenter.processor import Segmenter
from afterword.streams.settings import Episodes
from afterword.streams.tokens import count_tokens
from benchmarks.llm import chat, name_of

MESSAGES = 10
"""Messages of each episode."""
TOPIC = "messages"


class Record(NamedTuple):
    """Record as the segmenter reads it."""

    offset: int
    key: bytes
    value: bytes
    topic: str = TOPIC
    partition: int = 0
    timestamp: int = 0
    headers: Sequence[tuple[str, bytes]] = ()


def closed_episodes(conversations: Sequence[int], each: int) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of `episode.closed`: the first of every conversation, then the second of every one …"""
    segmenter = Segmenter(
        limits=Episodes(trigger=MESSAGES),
        episodes_topic="episode.closed",
        dead_letters_topic="messages.dlq",
        conversations={},
        messages={},
        count_tokens=count_tokens,
    )
    offset = 0
    for turn in range(each):
        for number in conversations:
            name = name_of(number)
            said = [value for _, value in chat(name, turn * MESSAGES, MESSAGES)]
            records = [Record(offset + at, name.encode(), value) for at, value in enumerate(said)]
            offset += len(records)
            for sent in segmenter.process(records, now_ms=0).outgoing:
                yield sent.key or b"", sent.value or b""
