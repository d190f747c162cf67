"""docs/reference/findings.md, from the audit's report."""

from collections.abc import Mapping

from afterword.audit.report import FindingKind
from tools.reference.markdown import table

HEADING = """\
# Audit findings

Made by `make docs` from `afterword/audit/report.py`; do not edit it by hand.

`afterword audit` reads topics, stores and state, and counts what breaks the [promise](../specs/delivery.md), by these
names. It prints ids and positions of ten of each kind, the first in sorted order, never contents. The exit code is 1
if there is any finding; with `--json`, `findings` has `count` and `examples` of each.

With `--wait` the audit first waits until segmenter and archiver have consumed all messages, and every closed episode is
summarized. If that takes longer, the report says how many messages and episodes had not arrived, with ten episode ids;
with `--json`, in `missing`. Then it is not clean, and without a finding the exit code is 2.

Records and documents of more than some 130,000 messages are judged in parts, each with all that is known of its
conversations. Until then ids, positions and digests, no contents, wait in a temporary file without a name, some 500
bytes a message. It is private, and gone when the process ends, however it ends. `TMPDIR` names its directory: choose
one that is on a disk. A part has at least one whole conversation; parts that share a record whose ids contradict each
other are judged together, and take the memory of both. With `--wait` it also takes some 200 bytes for each episode.

"""


def reference(meanings: Mapping[FindingKind, str]) -> str:
    """A table of the kinds of findings, in the order in which a report names them, as Markdown."""
    return HEADING + table(("finding", "meaning"), ((f"`{kind}`", meaning) for kind, meaning in meanings.items()))
