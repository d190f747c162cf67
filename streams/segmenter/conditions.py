"""A trigger as a function of a conversation's counters: no message is looked at again, however many are pending."""

from collections.abc import Callable

from afterword.streams.segmenter.state import State
from afterword.streams.triggers import Node

Fires = Callable[[State], bool]
"""Whether pending messages are to be closed. Changes nothing, so no condition is lost because another one was asked."""

MILLISECONDS = 1000


def compiled(node: Node) -> Fires:
    name, value = node
    if name in NESTED:
        return NESTED[name](tuple(map(compiled, value)))
    return CONDITIONS[name](value)


def never(_: State) -> bool:
    return False


def _any(parts: tuple[Fires, ...]) -> Fires:
    return lambda state: any(fires(state) for fires in parts)


def _all(parts: tuple[Fires, ...]) -> Fires:
    return lambda state: all(fires(state) for fires in parts)


def _messages(least: int) -> Fires:
    return lambda state: state.next_seq - state.first_pending >= least


def _turns(least: int) -> Fires:
    return lambda state: state.pending_turns >= least


def _tokens(least: int) -> Fires:
    return lambda state: state.pending_tokens >= least


def _text_bytes(least: int) -> Fires:
    return lambda state: state.pending_text_bytes >= least


def _seconds(least: float) -> Fires:
    milliseconds = least * MILLISECONDS
    return lambda state: state.since_ms is not None and state.last_sent_ms - state.since_ms >= milliseconds


def _important_content(characters: int) -> Fires:
    return lambda state: state.pending_longest > characters


NESTED: dict[str, Callable[[tuple[Fires, ...]], Fires]] = {"any": _any, "all": _all}
CONDITIONS: dict[str, Callable[..., Fires]] = {
    "messages": _messages,
    "events": _messages,  # every record that is taken is a message here, what tools say included
    "turns": _turns,
    "tokens": _tokens,
    "text_bytes": _text_bytes,
    "seconds": _seconds,
    "important_content": _important_content,
}
