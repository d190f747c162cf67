"""Episodes that `audit --wait` waits for."""

import pytest

from afterword.operating.audit.report import Finding, Missing, Report
from afterword.operating.audit.run import OpenEvents

CLOSED, SUMMARIES = "episode.closed", "summary.created"


@pytest.mark.parametrize(
    ("events", "left"),
    [
        ([(CLOSED, "c1:1:1")], 1),
        ([(CLOSED, "c1:1:1"), (SUMMARIES, "c1:1:1")], 0),
        ([(SUMMARIES, "c1:1:1"), (CLOSED, "c1:1:1")], 0),
        ([(CLOSED, "c1:1:1"), (SUMMARIES, "c1:2:1")], 1),
        ([(CLOSED, "c1:1:1"), (SUMMARIES, "c1:1:2")], 0),  # the first was superseded before its announcement
        ([(CLOSED, "c1:1:1"), (SUMMARIES, "c1:1:1"), (CLOSED, "c1:1:2")], 1),
        ([(CLOSED, "c1:1:2"), (SUMMARIES, "c1:1:2"), (SUMMARIES, "c1:1:1")], 0),
        ([(CLOSED, "a/c:1:1"), (SUMMARIES, "a/c:1:10"), (CLOSED, "no id"), (SUMMARIES, "x:" + "9" * 5000)], 0),
    ],
)
def test_an_episode_is_waited_for_until_its_revision_or_a_later_one_is_announced(
    events: list[tuple[str, str]], left: int
) -> None:
    waited = OpenEvents(CLOSED)
    for topic, event_id in events:
        waited.take(topic, event_id)
    assert len(waited.names) == left
    assert waited.finished == len({name.rpartition(":")[0] for topic, name in events if topic == CLOSED} - {""}) - left


def test_a_report_with_something_missing_is_not_clean_and_says_what() -> None:
    missing = Missing(60, not_segmented=3, not_archived=0, not_summarized=1_581, episodes=["c1:1", "c2:7"])
    report = Report(missing=missing)
    assert not report.clean
    assert report.as_dict()["missing"]["episodes"] == ["c1:1", "c2:7"]
    lines = list(report.lines())
    assert lines[-4:-1] == [
        "missing after 60 s: 3 messages not segmented, 1,581 episodes not summarized",
        "  c1:1",
        "  c2:7",
    ]
    assert "clean" not in lines[-1]


def test_a_finding_outweighs_what_is_missing() -> None:
    report = Report(findings={"lost": Finding(1, ["c1:m1"])}, missing=Missing(60, 0, 0, 1, ["c1:1"]))
    assert list(report.lines())[-1] == "NOT CLEAN"
