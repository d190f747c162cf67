"""A record that cannot be taken counts as done when its dead letter is acknowledged, not before."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError, KafkaError, MessageSizeTooLargeError, TopicAuthorizationFailedError
from faust.exceptions import ProducerSendError

from afterword.schemas import Quality
from afterword.schemas.headers import Headers
from afterword.streams.errors import AnswerInvalid
from afterword.streams.runtime.errors import described
from afterword.streams.settings import Kafka, Retry
from afterword.streams.summarizer.agent import Outputs, count_summary
from afterword.streams.telemetry import Metrics
from tests.samples import a_summary
from tests.summarizer_world import RecordedReadiness, a_handler


@dataclass
class DeadLetterTopic:
    """Takes dead letters; at the first attempts no broker answers."""

    fails: int
    taken: list[tuple[bytes | None, bytes | None]] = field(default_factory=list)

    async def send_to_dlq(self, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        if self.fails:
            self.fails -= 1
            raise KafkaConnectionError
        self.taken.append((key, value))


@dataclass
class Event:
    """One record, and what had been taken when it was acknowledged."""

    value: Any
    dead_letters: DeadLetterTopic
    acknowledged: list[int] = field(default_factory=list)

    def ack(self) -> None:
        self.acknowledged.append(len(self.dead_letters.taken))


async def test_a_dead_letter_that_cannot_be_written_is_waited_for() -> None:
    dead_letters, readiness = DeadLetterTopic(fails=2), RecordedReadiness()
    record = SimpleNamespace(
        topic="episode.closed", partition=0, offset=7, key=b"c1", value=b"not JSON", headers=[], timestamp=0
    )
    event = Event(record, dead_letters)
    pipeline: Any = SimpleNamespace(process=None)  # what cannot be decoded does not come so far
    outputs: Any = dead_letters
    await a_handler(pipeline, outputs, Retry(), readiness=readiness).summarize(event)
    assert dead_letters.taken == [(b"c1", b"not JSON")]
    assert event.acknowledged == [1]
    assert readiness.calls == [("not_ready", "dead_letter", "kafka_connection")] * 2 + [("ready", "dead_letter")]


@dataclass
class RefusingTopic:
    """Raises when a record is sent, as Faust does for what aiokafka raises, or when it is delivered."""

    name: str
    error: KafkaError
    at_once: bool

    async def send(self, **_: Any) -> Any:
        if self.at_once:
            raise ProducerSendError("Error while sending") from self.error
        return self._delivered()

    async def _delivered(self) -> None:
        raise self.error

    def get_topic_name(self) -> str:
        return self.name


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("refusal", [MessageSizeTooLargeError, TopicAuthorizationFailedError])
async def test_a_refusal_names_its_cause_and_the_topic(refusal: type[KafkaError], at_once: bool) -> None:
    app: Any = SimpleNamespace(topic=lambda name, **_: RefusingTopic(name, refusal(), at_once))
    outputs = Outputs(app, Kafka(), Metrics("summarizer", "1.2.3"))
    with pytest.raises(refusal) as raised:
        await outputs.publish(a_summary())
    assert described(raised.value).endswith("topic summary.created")


def test_summaries_are_counted_by_source_and_reason() -> None:
    metrics = Metrics("summarizer", "1.2.3")
    invalid = AnswerInvalid(problem="no JSON").error_type
    count_summary(metrics, a_summary(quality=Quality(source="llm")))
    count_summary(metrics, a_summary(quality=Quality(source="fallback", reason=invalid)))
    value = metrics.registry.get_sample_value
    assert value("afterword_summaries_total", {"source": "llm", "reason": ""}) == 1
    assert value("afterword_summaries_total", {"source": "fallback", "reason": invalid}) == 1
