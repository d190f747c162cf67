"""Triggers: conditions that close pending messages into episodes, their combinations, and presets. No I/O.

A trigger is written as a whole number (the default set with that many messages), the name of a preset, a table with one
condition, `any` or `all`, or a list, which means all. JSON in a string is equivalent. A parsed trigger is a `Node`, and
a compiled one is a function of a conversation's counters: no message is read again, however many are pending.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

MOST = 2**63
"""Numbers below this one can be written as JSON everywhere."""
MAX_DEPTH = 32
"""Maximum number of levels of `any` and `all`: more than anyone can follow, and far from Python's own limit."""
MILLISECONDS = 1000

Node = tuple[str, Any]
"""A condition and its number, or `any` or `all` and a tuple of nodes."""


Fires = Callable[[Any], bool]
"""Decides from the segmenter's `State` whether pending messages close. It changes nothing, so the order of conditions
does not matter."""


class Condition(NamedTuple):
    """A condition of a trigger; docs/segmentation.md says what each one means."""

    least: int | None
    """The lowest whole number that it accepts; None if it accepts any positive number."""
    is_met: Callable[[Any, Any], bool]
    """Decides by the `State` and the condition's number."""


CONDITIONS = {
    "messages": Condition(1, lambda c, n: c.pending_messages >= n),
    "events": Condition(1, lambda c, n: c.pending_messages >= n),
    "turns": Condition(1, lambda c, n: c.pending.turns >= n),
    "tokens": Condition(1, lambda c, n: c.pending.tokens >= n),
    "text_bytes": Condition(1, lambda c, n: c.pending.text_bytes >= n),
    "seconds": Condition(None, lambda c, n: c.since_ms is not None and c.last_sent_ms - c.since_ms >= n * MILLISECONDS),
    "important_content": Condition(0, lambda c, n: c.pending.longest > n),
}


class TriggerPreset(NamedTuple):
    """Settings that go well together. A setting that is also set individually takes precedence."""

    trigger: int | Mapping[str, Any]
    keep_recent: int | None
    """Number of messages that an agent is given verbatim beside the summary; None for all that fit, unless a summary
    saves many tokens."""
    max_summary_length: int
    """Maximum number of characters of the long summary."""


DEFAULT = TriggerPreset(10, keep_recent=None, max_summary_length=1000)
TRIGGER_PRESETS: dict[str, TriggerPreset] = {
    "default": DEFAULT,
    "high_frequency": TriggerPreset({"turns": 20}, keep_recent=5, max_summary_length=1000),
    "long_conversation": TriggerPreset({"turns": 50}, keep_recent=15, max_summary_length=1500),
    "memory_sensitive": TriggerPreset({"events": 15}, keep_recent=3, max_summary_length=1000),
    "context_node": TriggerPreset(
        {"any": ({"messages": 21}, {"tokens": 4001})}, keep_recent=4, max_summary_length=1000
    ),
}


class TriggerInvalid(ValueError):
    """An invalid trigger. The message has the place in it and the problem, but repeats none of its text."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}" if where else problem)


def read_trigger(written: object) -> Any:
    """Decode JSON in a string, and return anything else as it is. Raises: TriggerInvalid."""
    if not isinstance(written, str) or written in TRIGGER_PRESETS:
        return written
    try:
        decoded = orjson.loads(written)
    except orjson.JSONDecodeError:
        if written.lstrip()[:1] in ("[", "{"):
            raise TriggerInvalid("", "not JSON") from None
        raise TriggerInvalid("", f"neither a number, JSON nor a preset ({', '.join(TRIGGER_PRESETS)})") from None
    return read_trigger(decoded) if isinstance(decoded, str) and decoded != written else decoded


def parse_trigger(trigger: Any, tokens: int) -> Node:
    """Parse what `read_trigger` returned. `tokens` counts in the default set of conditions. Raises: TriggerInvalid."""
    if isinstance(trigger, str):
        return parse_trigger(TRIGGER_PRESETS[trigger].trigger, tokens)
    if isinstance(trigger, int | float) and not isinstance(trigger, bool):  # a float may be an integer of many digits
        return "any", (_condition("messages", trigger, ""), ("tokens", tokens))
    if isinstance(trigger, list | tuple):
        return _nested("all", trigger, "", 1, place="")
    return _node(trigger, "", 1)


def compile_trigger(node: Node) -> Fires:
    """Turn a parsed trigger into a function of the counters."""
    name, value = node
    if name in NESTED:
        combine, parts = NESTED[name], [compile_trigger(part) for part in value]
        return lambda counters: combine(fires(counters) for fires in parts)
    is_met = CONDITIONS[name].is_met
    return lambda counters: is_met(counters, value)


NESTED: Mapping[str, Callable[[Iterable[bool]], bool]] = {"any": any, "all": all}


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
        raise TriggerInvalid(where, "unknown condition")
    least = CONDITIONS[name].least
    if least is None:
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < MOST:
            raise TriggerInvalid(_join(where, name), "must be a number of more than 0, and less than 2⁶³")
    elif not isinstance(value, int) or isinstance(value, bool) or not least <= value < MOST:
        raise TriggerInvalid(_join(where, name), f"must be a whole number of at least {least}, and less than 2⁶³")
    return name, value


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
