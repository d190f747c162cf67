"""How an audit waits for the workers, and its report if it waited in vain."""

from typing import Any

from aiokafka import TopicPartition

from afterword.operating.audit import Finding, Report
from afterword.operating.evidence import until_finished
from afterword.streams.settings import Kafka
from distributions.engine.tests.simulation.virtual_time import run_in_virtual_time

KAFKA = Kafka()


def test_report_with_something_missing_is_not_clean() -> None:
    report = Report(missing={"segmenter": 3, "summarizer": 1_581})
    assert not report.clean
    assert report.as_dict()["missing"]["summarizer"] == 1_581
    *_, said, last = report.lines()
    assert said == "records not finished in time: 3 by the segmenter, 1,581 by the summarizer"
    assert "clean" not in last


def test_report_with_a_finding_ends_with_not_clean() -> None:
    report = Report(findings={"lost": Finding(1, ["c1:m1"])}, missing={"summarizer": 1})
    assert list(report.lines())[-1] == "NOT CLEAN"


class ScriptedLog:
    """A log on which each group has fewer and fewer records left."""

    def __init__(self, **left: list[int]) -> None:
        self.asked: list[str] = []
        self._left = left

    async def ends(self, topic: str) -> dict[TopicPartition, int]:
        self.asked.append(f"end of {topic}")
        return {TopicPartition(topic, 0): 7}

    async def left(self, group: str, topic: str, ends: dict[TopicPartition, int]) -> int:
        assert {where.topic for where in ends} == {topic}
        role = group.removeprefix("afterword-")
        self.asked.append(role)
        numbers = self._left[role]
        return numbers.pop(0) if len(numbers) > 1 else numbers[0]


def test_audit_waits_for_the_summarizer_last() -> None:
    log: Any = ScriptedLog(segmenter=[2, 0], archiver=[1, 1, 0], summarizer=[9, 0, 3, 0])
    told: list[tuple[str, int, int | None]] = []
    waiting = until_finished(log, KAFKA, 60, lambda *what: told.append(what))
    assert run_in_virtual_time(waiting) == {}
    summarizer = [f"end of {KAFKA.episodes_topic}", "summarizer", "summarizer"]
    assert [one for one in log.asked if one != f"end of {KAFKA.messages_topic}"] == [
        *["segmenter"] * 2,
        *["archiver"] * 3,
        *summarizer,
        *summarizer,
    ]
    assert {("waiting for the summarizer", 0, 9), ("waiting for the summarizer", 0, 3)} <= set(told)


def test_timeout_names_what_every_worker_has_left() -> None:
    log: Any = ScriptedLog(segmenter=[0], archiver=[4], summarizer=[3])
    missing = run_in_virtual_time(until_finished(log, KAFKA, 0, lambda *_: None))
    assert missing == {"archiver": 4, "summarizer": 3}
