"""A record that cannot be taken counts as done when its dead letter is acknowledged, not before."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from aiokafka.errors import KafkaConnectionError

from afterword.schemas.headers import Headers
from afterword.streams.runtime.options import Options
from afterword.streams.settings import Retry
from afterword.streams.summarizer.agent import Handling
from afterword.streams.summarizer.patience import Patience


@dataclass
class Letters:
    """Takes dead letters; at the first attempts no broker answers."""

    fails: int
    taken: list[tuple[bytes | None, bytes | None]] = field(default_factory=list)

    async def bury(self, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        if self.fails:
            self.fails -= 1
            raise KafkaConnectionError
        self.taken.append((key, value))


@dataclass
class Event:
    """One record, and what had been taken when it was acknowledged."""

    value: Any
    letters: Letters
    acknowledged: list[int] = field(default_factory=list)

    def ack(self) -> None:
        self.acknowledged.append(len(self.letters.taken))


@dataclass
class Told:
    """Remembers for what somebody waited."""

    stages: list[str] = field(default_factory=list)

    def waiting(self, stage: str, error_type: str) -> None:
        self.stages.append(f"{stage}: {error_type}")

    def recovered(self, stage: str) -> None:
        self.stages.append(f"{stage}: recovered")


async def at_once(seconds: float) -> None:
    await asyncio.sleep(0)


async def test_a_dead_letter_that_cannot_be_written_is_waited_for() -> None:
    letters, told = Letters(fails=2), Told()
    record = SimpleNamespace(
        topic="episode.closed", partition=0, offset=7, key=b"c1", value=b"not JSON", headers=[], timestamp=0
    )
    event = Event(record, letters)
    app: Any = SimpleNamespace(engine=Options())
    pipeline: Any = SimpleNamespace(process=None)  # what cannot be decoded does not come so far
    outputs: Any = letters
    await Handling(app, pipeline, outputs, Patience(told, at_once), Retry()).handle(event)
    assert letters.taken == [(b"c1", b"not JSON")]
    assert event.acknowledged == [1]
    assert told.stages == ["dead_letter: kafka_connection"] * 2 + ["dead_letter: recovered"]
