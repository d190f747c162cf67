"""The report of an audit that waited in vain."""

from afterword.operating.audit.report import Finding, Missing, Report


def test_a_report_with_something_missing_is_not_clean_and_says_what() -> None:
    missing = Missing(60, {"segmenter": 3, "archiver": 0, "summarizer": 1_581}, ["c1", "c2"])
    report = Report(missing=missing)
    assert not report.clean
    assert report.as_dict()["missing"]["conversations"] == ["c1", "c2"]
    lines = list(report.lines())
    assert lines[-4:-1] == [
        "records not finished after 60 s: 3 by the segmenter, 1,581 by the summarizer",
        "  c1",
        "  c2",
    ]
    assert "clean" not in lines[-1]


def test_a_finding_outweighs_what_is_missing() -> None:
    report = Report(findings={"lost": Finding(1, ["c1:m1"])}, missing=Missing(60, {"summarizer": 1}, ["c1"]))
    assert list(report.lines())[-1] == "NOT CLEAN"
