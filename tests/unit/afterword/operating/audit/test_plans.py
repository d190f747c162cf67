"""How SQLite answers the queries of the findings: an audit of ten times as many messages takes ten times as long."""

import pytest

from afterword.operating.audit import FINDINGS, judge
from afterword.operating.evidence import open_evidence


@pytest.mark.parametrize("finding", FINDINGS)
def test_no_query_scans_a_table_per_row_of_another(finding: str) -> None:
    with open_evidence() as evidence:
        judge(evidence)
        plan = list(evidence.rows(f"EXPLAIN QUERY PLAN {FINDINGS[finding].query}"))
    steps = {step: (parent, detail) for step, parent, _, detail in plan}

    def is_repeated(step: int) -> bool:
        """Return whether the step is an inner loop, or belongs to a subquery for each row."""
        parent, _ = steps[step]
        if any(other < step and of == parent and detail.startswith("S") for other, (of, detail) in steps.items()):
            return True
        above = steps.get(parent, (0, ""))[1]
        return "CORRELATED" in above or (parent in steps and "LIST" not in above and is_repeated(parent))

    scans = [step for step, (_, detail) in steps.items() if detail.startswith("SCAN ") and "CONSTANT" not in detail]
    assert [steps[step][1] for step in scans if is_repeated(step)] == []
