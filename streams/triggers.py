"""What closes pending messages into episodes: conditions, all and any of them, and presets by name. No I/O.

A trigger is written as a whole number (the default set with so many messages), the name of a preset, a table with one
condition, `any` or `all`, or a list, which means all. JSON in a string is the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

NESTED = ("any", "all")
COUNTS = ("messages", "events", "turns", "tokens", "text_bytes")
"""Fulfilled by at least so many; whole numbers from 1."""
CONDITIONS = (*COUNTS, "seconds", "important_content")
MAX_DEPTH = 32
"""Levels of `any` and `all`: more than anybody reads, and far from Python's own limit."""

Node = tuple[str, Any]
"""A condition and its number, or `any` or `all` and a tuple of nodes."""


class Preset(NamedTuple):
    """Settings that go well together; each may be set by itself, and then wins."""

    trigger: int | Mapping[str, int]
    keep_recent: int
    """Messages that an agent is given verbatim beside the summary."""
    max_summary_length: int
    """Characters of the long summary."""


DEFAULT = Preset(10, keep_recent=4, max_summary_length=1000)
PRESETS: dict[str, Preset] = {
    "default": DEFAULT,
    "high_frequency": Preset({"turns": 20}, keep_recent=5, max_summary_length=1000),
    "long_conversation": Preset({"turns": 50}, keep_recent=15, max_summary_length=1500),
    "memory_sensitive": Preset({"events": 15}, keep_recent=3, max_summary_length=1000),
}


class TriggerInvalid(ValueError):
    """No such trigger can be; `where` is the place in it, `problem` repeats nothing of what was written there."""

    def __init__(self, where: str, problem: str, found: object = None) -> None:
        self.where = where
        self.problem = problem
        named = problem if found is None else f"{problem} {orjson.dumps(found).decode()}"
        super().__init__(f"{where}: {named}" if where else named)

    @property
    def without_content(self) -> str:
        return f"{self.where}: {self.problem}" if self.where else self.problem


def read_trigger(written: object) -> Any:
    """What was written, with JSON in a string decoded. Raises: TriggerInvalid."""
    if not isinstance(written, str) or written in PRESETS:
        return written
    try:
        decoded = orjson.loads(written)
    except orjson.JSONDecodeError:
        raise _unreadable(written) from None
    return read_trigger(decoded) if isinstance(decoded, str) and decoded != written else decoded


def parse_trigger(trigger: Any, tokens: int) -> Node:
    """`trigger`: as `read_trigger` returns it. `tokens`: of the default set. Raises: TriggerInvalid."""
    if isinstance(trigger, str):
        return parse_trigger(PRESETS[trigger].trigger, tokens)
    if isinstance(trigger, int) and not isinstance(trigger, bool):
        return "any", (_condition("messages", trigger, ""), ("tokens", tokens))
    if isinstance(trigger, list | tuple):
        return _nested("all", trigger, "", 1, place="")
    return _node(trigger, "", 1)


def preset_of(trigger: Any) -> Preset:
    """The preset that a trigger names; of any other trigger, the default one."""
    return PRESETS.get(trigger, DEFAULT) if isinstance(trigger, str) else DEFAULT


def _node(written: Any, where: str, depth: int) -> Node:
    if not isinstance(written, Mapping):
        raise TriggerInvalid(where, "must be a table with a condition, any or all")
    if len(written) != 1:
        raise TriggerInvalid(where, "must have exactly one entry: several conditions go into any or all")
    [(name, value)] = written.items()
    return _nested(name, value, where, depth) if name in NESTED else _condition(name, value, where)


def _nested(kind: str, written: Any, where: str, depth: int, place: str | None = None) -> Node:
    here = _join(where, kind) if place is None else place
    if not isinstance(written, Sequence) or isinstance(written, str) or not written:
        raise TriggerInvalid(here, "must be a list of conditions that is not empty")
    if depth > MAX_DEPTH:
        raise TriggerInvalid("", f"nested deeper than {MAX_DEPTH} levels")
    return kind, tuple(_node(each, f"{here}[{n}]", depth + 1) for n, each in enumerate(written))


def _condition(name: Any, value: Any, where: str) -> Node:
    if name not in CONDITIONS:
        raise TriggerInvalid(where, "unknown condition", name)
    least = 0 if name == "important_content" else 1
    if name == "seconds":
        if not _is_number(value) or not 0 < value < float("inf"):
            raise TriggerInvalid(_join(where, name), "must be a number of more than 0")
    elif not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise TriggerInvalid(_join(where, name), f"must be a whole number of at least {least}")
    return name, value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _unreadable(written: str) -> TriggerInvalid:
    if written.lstrip()[:1] in ("[", "{"):
        return TriggerInvalid("", "not JSON")
    return TriggerInvalid("", f"neither a number, JSON nor a preset ({', '.join(PRESETS)}):", written)
