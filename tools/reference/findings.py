"""Generate docs/reference/findings.md from the kinds of findings."""

from collections.abc import Mapping

from afterword.operating.audit import FindingKind
from tools.reference.markdown import table

HEADING = """\
# Audit findings

Made by `make docs` from `afterword/operating/sql/findings.sql`; do not edit it by hand.

`afterword audit` reads topics, stores and state, and counts violations of the [promise](../specs/delivery.md). It
prints the ids and positions of ten of each kind, never contents, and exits with 1 if it finds anything. With `--json`,
`findings` has `count` and `examples` of each kind.

With `--wait`, the audit first waits until segmenter, archiver and summarizer have finished all records of their topics.
If that takes longer, the report says how many are left (`missing` in JSON), and the exit code is 2 unless there is a
finding.

The audit keeps ids, positions and digests in a temporary SQLite database, about 800 bytes a message. Beyond 64 MiB it
uses an unnamed private file in `TMPDIR`, which should be on a disk.

"""


def reference(kinds: Mapping[str, FindingKind]) -> str:
    """Return a table of the kinds of findings, in the order of a report, as Markdown."""
    return HEADING + table(("finding", "meaning"), ((f"`{name}`", kind.meaning) for name, kind in kinds.items()))
