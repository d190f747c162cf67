"""The segmenter's rules as every program runs them, whatever keeps its tables."""

from dataclasses import dataclass
from typing import Any

from afterword.streams.segmenter.processor import Segmenter
from afterword.streams.settings import Episodes
from afterword.streams.tokens import count_tokens
from benchmarks.programs.configuration import Configuration


@dataclass(frozen=True)
class Record:
    """A Kafka record, for clients whose own is shaped otherwise."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


def segmenter_of(bench: Configuration, conversations: Any, messages: Any) -> Segmenter:
    """All rules with their defaults."""
    return Segmenter(
        limits=Episodes(),
        episodes_topic=bench.episodes,
        dead_letters_topic=f"{bench.messages}.dlq",
        conversations=conversations,
        messages=messages,
        count_tokens=count_tokens,
    )
