"""docs/reference/findings.md, from the audit's report."""

from collections.abc import Mapping

from afterword.audit.report import FindingKind
from tools.reference.markdown import table

HEADING = """\
# Audit findings

Made by `make docs` from `afterword/audit/report.py`; do not edit it by hand.

`afterword audit` reads topics, stores and state, and counts what breaks the [promise](../specs/delivery.md), by these
names. It prints ids and positions of the first ten of each kind, never contents. The exit code is 1 if there is any
finding; with `--json`, `findings` has `count` and `examples` of each.

"""


def reference(meanings: Mapping[FindingKind, str]) -> str:
    """A table of the kinds of findings, in the order in which a report names them, as Markdown."""
    return HEADING + table(("finding", "meaning"), ((f"`{kind}`", meaning) for kind, meaning in meanings.items()))
