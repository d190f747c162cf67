"""Checks the arguments of the public API, so that an operator of a query language is never taken for an id."""

from collections.abc import Sequence
from types import UnionType


def require(kind: type | UnionType, **arguments: object) -> None:
    """Refuse arguments of other types, such as `{"$ne": None}` for an id. Raises: TypeError, without the value."""
    for name, value in arguments.items():
        if not isinstance(value, kind):
            wanted = kind.__name__ if isinstance(kind, type) else str(kind)
            raise TypeError(f"{name} must be {wanted}, not {type(value).__name__}")


def require_within(least: int, most: int | None = None, **arguments: int) -> None:
    """Refuse numbers out of bounds, because MongoDB gives a limit of 0 or less its own meaning.

    Raises: ValueError, or TypeError for anything but an int.
    """
    require(int, **arguments)
    for name, value in arguments.items():
        if value < least or (most is not None and value > most):
            raise ValueError(f"{name} must be at least {least}" + (f" and at most {most}" if most else ""))


def require_texts(**arguments: Sequence[object]) -> None:
    """Refuse anything but sequences of strings; a single string is not one. Raises: TypeError, without the value."""
    for name, values in arguments.items():
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise TypeError(f"{name} must be a sequence of str, not {type(values).__name__}")
        for value in values:
            if not isinstance(value, str):  # checked inline: building a name for every value costs more
                require(str, **{f"each of {name}": value})
