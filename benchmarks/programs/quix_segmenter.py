"""The same rules on quixstreams, exactly once: one message at a time, its state under the message's key."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from quixstreams import message_context

from benchmarks.programs.configuration import Configuration, from_environment
from benchmarks.programs.quix_application import application
from benchmarks.programs.rules import Record, segmenter_of

RAW = {"value_deserializer": "bytes", "key_deserializer": "bytes", "value_serializer": "bytes"}


@dataclass
class Rows:
    """A table in the state of the message at hand, which has no keys but text."""

    name: str
    state: Any = field(init=False)

    def get(self, key: bytes, /) -> bytes | None:
        found: bytes | None = self.state.get_bytes(self._key(key))
        return found

    def __setitem__(self, key: bytes, value: bytes, /) -> None:
        self.state.set_bytes(self._key(key), value)

    def __delitem__(self, key: bytes, /) -> None:
        self.state.delete(self._key(key))

    def _key(self, key: bytes) -> str:
        return self.name + key.decode("latin-1")


class Rules:
    def __init__(self, bench: Configuration) -> None:
        self._conversations, self._messages = Rows("c"), Rows("m")
        self._segmenter = segmenter_of(bench, self._conversations, self._messages)

    def __call__(self, value: bytes, key: bytes, timestamp: int, _: Any, state: Any) -> Iterator[bytes]:
        """The episodes that the message closes."""
        self._conversations.state = self._messages.state = state
        at = message_context()
        record = Record(at.topic, at.partition, at.offset, timestamp, key, value)
        outcome = self._segmenter.process([record], time.time_ns() // 1_000_000)
        return (outgoing.value for outgoing in outcome.outgoing if outgoing.value is not None)


def main() -> None:
    bench = from_environment()
    app = application(bench)
    episodes = app.topic(bench.episodes, **RAW)
    app.dataframe(app.topic(bench.messages, **RAW)).apply(
        Rules(bench), stateful=True, metadata=True, expand=True
    ).to_topic(episodes)
    app.run()


if __name__ == "__main__":
    main()
