"""A record that fails counts as done once its dead letter is sent, not before."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from afterword.schemas import Quality
from afterword.streams.errors import AnswerInvalid
from afterword.streams.settings import Kafka
from afterword.streams.summarizer.agent import Outputs
from afterword.streams.telemetry import Metrics
from faust_eos.batch import Batch, bound
from faust_eos.output import Output
from tests.samples import a_summary
from tests.summarizer_world import a_handler


@dataclass
class DeadLetterTopic:
    taken: list[tuple[bytes | None, bytes | None]] = field(default_factory=list)

    def send(self, letter: Output) -> None:
        self.taken.append((letter.key, letter.value))


@dataclass
class Event:
    """One record, and what had been taken when it was acknowledged."""

    value: Any
    dead_letters: DeadLetterTopic
    acknowledged: list[int] = field(default_factory=list)

    def ack(self) -> None:
        self.acknowledged.append(len(self.dead_letters.taken))


async def test_invalid_record_is_done_after_its_dead_letter() -> None:
    dead_letters = DeadLetterTopic()
    record = SimpleNamespace(
        topic="episode.closed", partition=0, offset=7, key=b"c1", value=b"not JSON", headers=[], timestamp=0
    )
    event = Event(record, dead_letters)
    reconciler: Any = SimpleNamespace(handle=None)  # what cannot be decoded does not come so far
    await a_handler(reconciler, dead_letters.send).handle(event)
    assert dead_letters.taken == [(b"c1", b"not JSON")]
    assert event.acknowledged == [1]


async def test_summaries_are_counted_by_source_and_reason() -> None:
    metrics = Metrics("summarizer", "1.2.3")
    invalid = AnswerInvalid(problem="no JSON").error_type
    outputs = Outputs(Kafka(), metrics)
    with bound(Batch("episode.closed-0", None)):
        await outputs.publish(a_summary(quality=Quality(source="llm")))
        await outputs.publish(a_summary(quality=Quality(source="fallback", reason=invalid)))
    value = metrics.registry.get_sample_value
    assert value("afterword_summaries_total", {"source": "llm", "reason": ""}) == 1
    assert value("afterword_summaries_total", {"source": "fallback", "reason": invalid}) == 1
