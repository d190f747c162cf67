"""The one maker of dead letters, for every worker that writes them. Servers import it too, so it loads no Faust."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from afterword.schemas.dead_letters import UNFORESEEN, dead_letter
from afterword.schemas.records import KafkaRecord
from afterword.streams.telemetry.metrics import Metrics
from faust_eos.errors import place_of
from faust_eos.options import Options
from faust_eos.transaction import Output

if TYPE_CHECKING:  # its libraries take 100 ms to import, and most workers do not redact
    from afterword.streams.redactor import RecordRedaction

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Makes a worker's dead letters, and logs and counts each."""

    stage: str
    topic: str
    redaction: "RecordRedaction | None" = None
    """Removes personal data and secrets; None keeps records as they are."""
    metrics: Metrics | None = None
    """None if the caller counts, because it may drop the dead letter and make it again."""

    def of(self, record: KafkaRecord, error_type: str, problem: str, now_ms: int, attempts: int = 1) -> Output:
        """Make the dead letter of a record. `problem` is for people and quotes nothing that must not be kept.

        `now_ms` is in milliseconds since 1970; `attempts` counts how often the record was tried.
        """
        write = log.error if error_type == UNFORESEEN else log.warning
        where = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        write("record_rejected", stage=self.stage, error_type=error_type, problem=problem, **where)
        if self.metrics:
            self.metrics.dead_letters.labels(self.stage, error_type).inc()
        failure = {"stage": self.stage, "error_type": error_type, "message": problem}
        letter = dead_letter(record, **failure, attempts=attempts, now_ms=now_ms)
        key, value, headers = self.redaction.dead_letter(*letter) if self.redaction else letter
        return Output(self.topic, key, value, headers=headers)

    def of_failure(self, record: KafkaRecord, error: Exception, engine: Options) -> Output:
        """Make the dead letter of a record on which the agent failed even when it was alone in its batch.

        It has the error's type and place but not its text, which may quote the record.
        """
        return self.of(record, UNFORESEEN, place_of(error), engine.clock(), engine.agent_retries + 1)
