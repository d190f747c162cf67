"""Sealing: texts under a key per user, so that destroying the key erases them wherever they are.

The library of its modules is in an extra: they are imported only where there is a key, and this one everywhere.
"""

from typing import TYPE_CHECKING, TypeGuard, TypeVar

if TYPE_CHECKING:
    from afterword.streams.sealing.records import Sealing

S = TypeVar("S", bound="Sealing")


def seals(sealing: S | None) -> TypeGuard[S]:
    """Tell whether what is written is to be sealed: without it, what was sealed before may still be opened."""
    return sealing is not None and sealing.is_on
