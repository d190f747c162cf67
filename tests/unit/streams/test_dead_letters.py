"""What every worker's dead letters have in common."""

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from afterword.schemas.dead_letters import read_dead_letter
from afterword.streams.dead_letters import DeadLetters
from afterword.streams.telemetry.metrics import Metrics

RECORD: Any = SimpleNamespace(topic="in", partition=3, offset=7, key=b"k", value=b"v", headers=[], timestamp=0)


def test_dead_letter_has_its_record_and_reason() -> None:
    output = DeadLetters("stage", "in.dlq").of(RECORD, "invalid", "no JSON", now_ms=1000, attempts=4)
    assert (output.topic, output.key, output.value, output.partition) == ("in.dlq", b"k", b"v", None)
    fields = {"topic": output.topic, "key": output.key, "value": output.value, "headers": output.headers}
    letter = read_dead_letter(SimpleNamespace(**fields, partition=0, offset=0, timestamp=0))
    assert (letter.stage, letter.error_type, letter.problem) == ("stage", "invalid", "no JSON")
    assert (letter.origin, letter.failed_at.timestamp()) == (("in", 3, 7), 1)


@pytest.mark.parametrize(("error_type", "level"), [("invalid", "warning"), ("unforeseen", "error")])
def test_dead_letter_is_logged_and_counted(error_type: str, level: str) -> None:
    metrics = Metrics("stage", "1.2.3")
    with capture_logs() as logs:
        DeadLetters("stage", "in.dlq", metrics=metrics).of(RECORD, error_type, "no JSON", now_ms=0)
    where = {"topic": "in", "partition": 3, "offset": 7}
    failure = {"stage": "stage", "error_type": error_type, "problem": "no JSON"}
    assert logs == [{"event": "record_rejected", "log_level": level, **failure, **where}]
    labels = {"stage": "stage", "error_type": error_type}
    assert metrics.registry.get_sample_value("afterword_dead_letters_total", labels) == 1


def test_dead_letter_is_redacted() -> None:
    redaction: Any = SimpleNamespace(dead_letter=lambda key, _, headers: (key, b"[EMAIL]", headers))
    assert DeadLetters("stage", "in.dlq", redaction).of(RECORD, "invalid", "", now_ms=0).value == b"[EMAIL]"
