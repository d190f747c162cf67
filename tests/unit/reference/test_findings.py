import re
from pathlib import Path

from afterword.operating.audit.findings import FINDINGS
from tools.reference.findings import reference

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "findings.md"


def test_the_page_is_what_the_report_says() -> None:
    assert PAGE.read_text() == reference(FINDINGS), "docs/reference/findings.md is stale: make docs"


def test_every_kind_of_finding_has_a_row() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE) == list(FINDINGS)
