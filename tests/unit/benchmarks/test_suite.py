"""Findings as they are shown and kept."""

import json

from benchmarks.suite import Finding, Form, Line, as_json, as_markdown

FINDING = Finding(
    "state",
    [Line("ours", {"bytes": "12"}), Line("theirs", {"bytes": "24", "disk": "1"}, 2.0, "≥ 3.0", met=False)],
    notes=["measured twice"],
    ratios={"state/theirs": 2.0},
)


def test_a_table_has_the_columns_that_are_needed_and_no_other() -> None:
    assert as_markdown(FINDING).splitlines()[2:6] == [
        "|  | bytes | disk | ratio | aim | met |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| ours | 12 |  |  |  |  |",
        "| theirs | 24 | 1 | 2.00 × | ≥ 3.0 | **no** |",
    ]
    assert "ratio" not in as_markdown(Finding("alone", [Line("ours", {"bytes": "12"})]))


def test_the_file_carries_the_ratios_and_the_machine() -> None:
    kept = json.loads(as_json({"state": [FINDING]}, Form()))
    assert kept["ratios"] == {"state/theirs": 2.0}
    assert {"processor", "cores", "aiokafka"} <= set(kept["machine"])
    assert kept["findings"]["state"][0]["lines"][1]["figures"] == {"bytes": "24", "disk": "1"}
