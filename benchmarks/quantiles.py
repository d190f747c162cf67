"""Quantiles of repeated measurements."""

from collections.abc import Sequence


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of `values` that at least `share` (0 … 1) of them do not exceed: the nearest rank, one that was
    really measured. NaN of none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    rank = -(-len(ordered) * round(share * 1000) // 1000)  # rounded up; thousandths, so that 0.07 is exactly 7 of 100
    return ordered[max(rank, 1) - 1]


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"
