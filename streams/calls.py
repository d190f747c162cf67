"""What calls of an LLM used, by model and outcome."""

from collections.abc import Iterable
from dataclasses import dataclass

from afterword.schemas import Usage

OK = "ok"
"""Outcome of a call whose answer was used."""


@dataclass(frozen=True)
class Calls:
    """What the calls of one model with the same outcome used."""

    model: str
    outcome: str
    """`ok`, or else the name of what made the call or its summary useless."""
    usage: Usage


def add_up(calls: Iterable[Calls]) -> tuple[Calls, ...]:
    """Combine the calls of the same model with the same outcome."""
    used: dict[tuple[str, str], Usage] = {}
    for one in calls:
        key = one.model, one.outcome
        used[key] = used.get(key, Usage()) + one.usage
    return tuple(Calls(*key, usage) for key, usage in used.items())


def total(calls: Iterable[Calls]) -> Usage:
    return sum((one.usage for one in calls), Usage())
