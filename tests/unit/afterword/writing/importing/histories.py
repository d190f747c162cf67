"""Small made-up histories in memory."""

import io
import json
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from afterword.schemas import MessageCreated
from afterword.writing.importing.formats import Found, ImportOptions, ImportOutcome, LeftOut, Rejected, read_history

plain_values = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
json_values = st.recursive(
    plain_values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


def read_all(format_: str, files: dict[str, Any], options: ImportOptions) -> list[ImportOutcome]:
    """Read files given by name, with bytes or with values to write as JSON."""
    data = {name: value if isinstance(value, bytes) else json.dumps(value).encode() for name, value in files.items()}
    opened = iter([(name, io.BufferedReader(io.BytesIO(content))) for name, content in data.items()])
    return list(read_history(format_, options, opened))


def lines(*records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def messages_of(outcomes: Iterable[ImportOutcome]) -> list[MessageCreated]:
    return [outcome.message for outcome in outcomes if isinstance(outcome, Found)]


def all_accounted(outcomes: list[ImportOutcome]) -> bool:
    return all(isinstance(outcome, Found | LeftOut | Rejected) for outcome in outcomes)


def reasons(outcomes: Iterable[ImportOutcome]) -> list[str]:
    """Return the reasons for omissions and the texts of rejections."""
    return [o.reason if isinstance(o, LeftOut) else str(o) for o in outcomes if isinstance(o, LeftOut | Rejected)]
