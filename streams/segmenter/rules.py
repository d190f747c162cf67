"""When an episode is over and where the next begins: pure functions over a conversation's counters.

They look at the log alone, with one exception: the deadline, by which a living worker notices silence. A worker that
was dead meanwhile finds the same silence between the records' timestamps, and closes the same episodes.
"""

from typing import NamedTuple

from afterword.schemas import CloseReason
from afterword.streams.segmenter.conditions import Fires, compiled, never
from afterword.streams.segmenter.cuts import Emission
from afterword.streams.segmenter.state import MAX_DEADLINE_MS, State
from afterword.streams.settings import Episodes

MAX_EPISODE_BYTES = 700_000
"""JSON of the core messages; the rest of an `episode.closed` of less than a megabyte is for overlap and envelope."""


class Rules(NamedTuple):
    """What a conversation goes by."""

    limits: Episodes
    fires: Fires


class Incoming(NamedTuple):
    """What the rules look at in a message."""

    sent_ms: int
    """Event time, milliseconds since 1970."""
    record_ms: int
    """The record's timestamp, milliseconds since 1970."""
    tokens: int
    bytes: int
    """What it adds to the JSON of its episode."""
    is_continuation: bool | None = None
    is_user: bool = True
    """Whether a turn begins with it."""
    text_bytes: int = 0
    """Of its content, in UTF-8."""
    length: int = 0
    """Characters of its content, white space around it aside."""


class Decision(NamedTuple):
    """What becomes of a message that is taken."""

    sealed_before: CloseReason | None
    sealed_after: CloseReason | None
    emissions: tuple[Emission, ...]
    """In this order; they may include the message itself."""
    state: State
    """After all of it, but for the ordinals and the overlap, which follow from the episodes emitted."""


def rules_of(limits: Episodes) -> Rules:
    return Rules(limits, compiled(limits.conditions()) if limits.auto_summarize else never)


def decide(state: State, m: Incoming, rules: Rules, now_ms: int) -> Decision:
    """Silence, boundary, append, full, trigger: in this order. `now_ms`: wall clock, milliseconds since 1970."""
    limits = rules.limits
    silence = close_all(state, "idle") if is_silent(state, m, limits) else None
    state = emitted(state, silence)
    before = boundary(state, m, limits)
    state = appended(sealed(state) if before else state, m, limits, now_ms)
    after: CloseReason | None = "max_size" if state.open_messages >= limits.max_episode_size else None
    state = sealed(state) if after else state
    triggered = trigger(state, rules)
    state = emitted(state, triggered)
    return Decision(before, after, tuple(e for e in (silence, triggered) if e), state)


def is_duplicate(state: State, seq: int | None, window: int) -> bool:
    """`seq`: under which the message's id is on record; past the window it counts only while it is pending."""
    if seq is None:
        return False
    return min(state.next_seq - window, state.first_pending) <= seq < state.next_seq


def is_silent(state: State, m: Incoming, limits: Episodes) -> bool:
    """Whether more than `idle_seconds` lie between the message and the one before it, while something is pending."""
    return state.pending_messages > 0 and is_late(state, m, limits)


def is_late(state: State, m: Incoming, limits: Episodes) -> bool:
    """Whether more than `idle_seconds` lie between the message and the one before it."""
    return max(m.sent_ms - state.last_sent_ms, m.record_ms - state.last_record_ms) > limits.idle_seconds * 1000


def boundary(state: State, m: Incoming, limits: Episodes) -> CloseReason | None:
    """Why the open episode is sealed before the message, if it is."""
    if m.is_continuation is False and state.open_messages >= limits.min_episode_size:
        return "topic_shift"
    if state.open_messages and is_full(state, m, limits):
        return "max_size"
    return None


def is_full(state: State, m: Incoming, limits: Episodes) -> bool:
    """Whether the message would make the open episode too large."""
    return state.open_tokens + m.tokens > limits.max_episode_tokens or state.open_bytes + m.bytes > MAX_EPISODE_BYTES


def trigger(state: State, rules: Rules) -> Emission | None:
    """Enough is pending: all that is sealed leaves, and the open episode too unless it is short."""
    if not rules.fires(state):
        return None
    long_enough = state.open_messages >= rules.limits.min_episode_size
    end = state.next_seq if long_enough else state.open_first
    return Emission(state.first_pending, end, "trigger") if end > state.first_pending else None


def close_all(state: State, reason: CloseReason) -> Emission | None:
    """Everything pending leaves, whatever its size."""
    return Emission(state.first_pending, state.next_seq, reason) if state.pending_messages else None


def sealed(state: State) -> State:
    """The open episode ends here; the next message opens another."""
    return state._replace(
        open_first=state.next_seq, open_tokens=0, open_bytes=0, open_turns=0, open_text_bytes=0, open_longest=0
    )


def appended(state: State, m: Incoming, limits: Episodes, now_ms: int) -> State:
    return state._replace(
        next_seq=state.next_seq + 1,
        open_tokens=state.open_tokens + m.tokens,
        open_bytes=state.open_bytes + m.bytes,
        open_turns=state.open_turns + (m.is_user or not state.open_messages),
        open_text_bytes=state.open_text_bytes + m.text_bytes,
        open_longest=max(state.open_longest, m.length),
        pending_tokens=state.pending_tokens + m.tokens,
        pending_turns=state.pending_turns + (m.is_user or not state.pending_messages),
        pending_text_bytes=state.pending_text_bytes + m.text_bytes,
        pending_longest=max(state.pending_longest, m.length),
        since_ms=since(state, m, limits),
        last_sent_ms=m.sent_ms,
        last_record_ms=m.record_ms,
        deadline_ms=deadline(limits, now_ms),
    )


def since(state: State, m: Incoming, limits: Episodes) -> int:
    """Event time from which `seconds` count: the last summary's; at the start and after silence, the message's own.

    Without the second, whoever comes back after a day would have the first words summarised at once.
    """
    if state.since_ms is None or (not state.pending_messages and is_late(state, m, limits)):
        return m.sent_ms
    return state.since_ms


def emitted(state: State, emission: Emission | None) -> State:
    """The state without what was emitted: a tail that stays is all that is pending."""
    if emission is None:
        return state
    if emission.end == state.next_seq:
        state = sealed(state)
    state = state._replace(
        first_pending=emission.end,
        pending_tokens=state.open_tokens,
        pending_turns=state.open_turns,
        pending_text_bytes=state.open_text_bytes,
        pending_longest=state.open_longest,
        since_ms=state.last_sent_ms,
    )
    return state if state.pending_messages else state._replace(deadline_ms=0)


def deadline(limits: Episodes, now_ms: int) -> int:
    """When silence will close what is pending, in milliseconds since 1970."""
    return max(1, int(min(now_ms + limits.idle_seconds * 1000, MAX_DEADLINE_MS)))


def forgettable(state: State, window: int) -> range:
    """Messages whose rows are not needed any more: outside the window, not pending, not overlap."""
    return range(state.window_first, min(state.next_seq - window, state.overlap_first))
