"""A record that an agent sends. It is apart from `batch`, so that code that only makes records does not load Faust."""

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

Headers = list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Output:
    """A record that the agent sends with the batch."""

    topic: str
    key: bytes | None
    value: bytes | None
    _: KW_ONLY
    headers: Headers = field(default_factory=list)
    partition: int | None = None
    timestamp_ms: int | None = None
    partition_key: bytes | None = None
    """Chooses the partition in place of the key, where none is given."""


def size_of(record: Any) -> int:
    """Return the size of an `Output` or an aiokafka record in bytes."""
    named = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + named
