"""Generate docs/reference/findings.md from the kinds of findings."""

from collections.abc import Mapping

from afterword.operating.audit.findings import FindingKind
from tools.reference.markdown import table

HEADING = """\
# Audit findings

Made by `make docs` from `afterword/operating/audit/findings.py`; do not edit it by hand.

`afterword audit` reads topics, stores and state, and counts what breaks the [promise](../specs/delivery.md), by these
names. It prints ids and positions of ten of each kind, the first in sorted order, never contents. The exit code is 1
if there is any finding; with `--json`, `findings` has `count` and `examples` of each.

With `--wait` the audit first waits until segmenter and archiver have consumed all messages, and every closed episode is
summarized. If that takes longer, the report says how many messages and episodes had not arrived, with ten episode ids;
with `--json`, in `missing`. Then it is not clean, and without a finding the exit code is 2.

What is read is put into the tables of a temporary SQLite database, and each finding is a query. Ids, positions and
digests are kept, no contents, some 1,200 bytes a message. What does not fit into 64 MiB is in a private file without a
name, which is gone when the process ends, however it ends. `TMPDIR` names its directory: choose one that is on a disk.

"""


def reference(kinds: Mapping[str, FindingKind]) -> str:
    """Return a table of the kinds of findings, in the order of a report, as Markdown."""
    return HEADING + table(("finding", "meaning"), ((f"`{name}`", kind.meaning) for name, kind in kinds.items()))
