"""Conditions on stored records, in the words of no backend."""

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Conditions = Mapping[str, Any]
"""Values by field and operator: `{"scope": "c1", "ordinal <": 7}`. Without an operator, None means a missing value.

`in` asks for one of several values, and `or none` for the value or none at all.
"""

COMPARED = {"": operator.eq, "<": operator.lt, ">=": operator.ge}


def parts(conditions: Conditions) -> Iterator[tuple[str, str, Any]]:
    """Yield each field with its operator and value."""
    for name, value in conditions.items():
        field, _, operator_name = name.partition(" ")
        yield field, operator_name, value


def meets(record: object, conditions: Conditions) -> bool:
    """Return whether a record, of which no compared field is None, meets conditions of the kinds in COMPARED."""
    return all(COMPARED[compared](getattr(record, field), value) for field, compared, value in parts(conditions))


def in_parts(items: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    """Yield the items, at most this many at a time."""
    return (items[start : start + most] for start in range(0, len(items), most))
