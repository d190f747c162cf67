"""When one episode ends and the next begins: pure functions over a conversation's counters.

They depend on the log alone, with one exception: the deadline at which a live worker notices silence. A worker that was
down at the time finds the same silence between the records' timestamps, and closes the same episodes.
"""

from collections.abc import Sequence
from typing import NamedTuple

from afterword.schemas import CloseReason
from afterword.streams.segmenter.episodes import Arrival
from afterword.streams.segmenter.state import MAX_DEADLINE_MS, Body, State, Totals
from afterword.streams.settings import Episodes
from afterword.streams.triggers import Fires, compile_trigger

MAX_EPISODE_BYTES = 700_000
"""Maximum number of bytes of the core messages' JSON; the rest of an `episode.closed`, which has less than a megabyte,
is for overlap and envelope."""
MAX_OVERLAP_BYTES = 100_000
MAX_PENDING_MESSAGES = 1000
"""Messages that may wait in a conversation's state; once there are this many, all finished episodes close."""
MAX_PENDING_BYTES = 2_000_000
"""Likewise for the bytes of their JSON."""
MOST_GONE = 10_000
"""Maximum number of rows of one open episode when most of its messages were deleted; also how far an overlap may lie
behind."""


class EpisodeRules(NamedTuple):
    """The settings of a conversation, and its trigger as a function."""

    limits: Episodes
    fires: Fires
    max_pending: int
    """Maximum number of messages that may wait in the conversation's state."""


class Cut(NamedTuple):
    """Emits the messages `first … end` as one episode, or before `split` as several."""

    first: int
    end: int
    reason: CloseReason
    """Reason to close the last episode. Before `split`, earlier ones keep the reasons for which they were sealed."""


class Decision(NamedTuple):
    """The effects of a message."""

    body: Body
    """The message's row, with the seals of episodes around it."""
    cuts: tuple[Cut, ...]
    """Emissions in this order; they may include the message itself."""
    state: State
    """State afterwards, except for the ordinals and the overlap, which follow from the emitted episodes."""


def episode_rules(limits: Episodes, max_pending: int = MAX_PENDING_MESSAGES) -> EpisodeRules:
    fires = compile_trigger(limits.conditions()) if limits.auto_summarize else lambda _: False
    return EpisodeRules(limits, fires, max_pending)


def decide(state: State, message: Arrival, rules: EpisodeRules, now_ms: int) -> Decision:
    """Decide on silence, boundary, append, full, trigger and limit, in this order.

    `now_ms` is the wall clock in milliseconds since 1970.
    """
    limits = rules.limits
    silence = close_all(state, "idle") if is_silent(state, message, limits) else None
    state = emitted(state, silence)
    before = boundary(state, message, limits)
    state = sealed(state) if before else state
    state = appended(state, message, limits, now_ms)
    after: CloseReason | None = "max_size" if is_complete(state, limits) else None
    state = sealed(state) if after else state
    triggered = trigger(state, rules) or overfull(state, rules.max_pending)
    state = emitted(state, triggered)
    body = message.body._replace(sealed_before=before, sealed_after=after) if before or after else message.body
    return Decision(body, tuple(cut for cut in (silence, triggered) if cut), state)


def is_duplicate(state: State, seq: int, window: int) -> bool:
    """Return whether a message is a duplicate.

    `seq` is the number of the last message with this id. One from before the window counts only while it is pending.
    """
    return min(state.next_seq - window, state.first_pending) <= seq < state.next_seq


def is_silent(state: State, message: Arrival, limits: Episodes) -> bool:
    """Return whether the message follows a silence while something is pending."""
    return state.pending_messages > 0 and is_late(state, message, limits)


def is_late(state: State, message: Arrival, limits: Episodes) -> bool:
    """Return whether more than `idle_seconds` lie between the message and all earlier ones.

    Times are compared with the highest so far, not the last, so that a wrong clock or a late message opens no gap.
    """
    silence_ms = max(message.event_ms - state.latest_event_ms, message.record_ms - state.latest_record_ms)
    return silence_ms > limits.idle_seconds * 1000


def boundary(state: State, message: Arrival, limits: Episodes) -> CloseReason | None:
    """Return the reason to seal the open episode before the message, or None to keep it open."""
    begins_topic = message.body.is_continuation is False and limits.topic_shift == "flags"
    if begins_topic and state.open_messages >= limits.min_episode_size:
        return "topic_shift"
    if state.open_messages and is_full(state, message, limits):
        return "max_size"
    return None


def is_full(state: State, message: Arrival, limits: Episodes) -> bool:
    """Return whether the message would make the open episode too large."""
    too_many_tokens = state.open.tokens + message.counted.tokens > limits.max_episode_tokens
    return too_many_tokens or state.open.episode_bytes + message.counted.episode_bytes > MAX_EPISODE_BYTES


def is_complete(state: State, limits: Episodes) -> bool:
    """Return whether the open episode takes no further message. The rows of deleted messages are limited too."""
    rows = state.next_seq - state.open_first
    return state.open_messages >= limits.max_episode_size or rows >= MOST_GONE


def trigger(state: State, rules: EpisodeRules) -> Cut | None:
    """Cut at a trigger: everything sealed leaves, and so does the open episode unless it is too short."""
    if not rules.fires(state):
        return None
    long_enough = state.open_messages >= rules.limits.min_episode_size
    end = state.next_seq if long_enough else state.open_first
    return Cut(state.first_pending, end, "trigger") if end > state.first_pending else None


def overfull(state: State, max_pending: int) -> Cut | None:
    """Cut when too much is pending: everything sealed leaves, in the same episodes that it would have made later."""
    rows = state.next_seq - state.first_pending
    is_crowded = rows >= max_pending or state.pending.episode_bytes >= MAX_PENDING_BYTES
    if not is_crowded or state.open_first == state.first_pending:
        return None
    return Cut(state.first_pending, state.open_first, "max_size")


def close_all(state: State, reason: CloseReason) -> Cut | None:
    """Emit everything pending, whatever its size."""
    return Cut(state.first_pending, state.next_seq, reason) if state.pending_messages else None


def sealed(state: State) -> State:
    """End the open episode here; the next message opens another one."""
    return state._replace(open_first=state.next_seq, open=Totals())


def appended(state: State, message: Arrival, limits: Episodes, now_ms: int) -> State:
    has_before = state.next_seq > 0
    return state._replace(
        next_seq=state.next_seq + 1,
        pending=added(state.pending, message.counted, is_first=not state.pending_messages),
        open=added(state.open, message.counted, is_first=not state.open_messages),
        last_sent_ms=message.sent_ms,
        latest_record_ms=max(state.latest_record_ms, message.record_ms) if has_before else message.record_ms,
        latest_event_ms=max(state.latest_event_ms, message.event_ms) if has_before else message.event_ms,
        since_ms=since(state, message, limits),
        deadline_ms=max(1, int(min(now_ms + limits.idle_seconds * 1000, MAX_DEADLINE_MS))),
    )


def added(totals: Totals, counted: Totals, *, is_first: bool) -> Totals:
    """Add a message's counters. With `is_first`, a turn begins with the message, whoever speaks."""
    return Totals(
        totals.tokens + counted.tokens,
        totals.episode_bytes + counted.episode_bytes,
        totals.turns + (counted.turns or is_first),
        totals.text_bytes + counted.text_bytes,
        max(totals.longest, counted.longest),
        totals.gone,
    )


def recount(messages: Sequence[Arrival | None]) -> Totals:
    """Count a range of messages; None stands for a deleted one."""
    totals = Totals(gone=messages.count(None))
    for number, message in enumerate(filter(None, messages)):
        totals = added(totals, message.counted, is_first=not number)
    return totals


def since(state: State, message: Arrival, limits: Episodes) -> int:
    """Return the event time from which `seconds` count.

    It is the time of the last summary, but at the start and after silence the time of the message. Otherwise, the first
    words of somebody who returns after a day would be summarized at once.
    """
    if state.since_ms is None or (not state.pending_messages and is_late(state, message, limits)):
        return message.sent_ms
    return state.since_ms


def emitted(state: State, cut: Cut | None) -> State:
    """Return the state after an emission; if a tail stays, nothing else is pending."""
    if cut is None:
        return state
    if cut.end == state.next_seq:
        state = sealed(state)
    stays = state.next_seq - cut.end - state.open.gone
    return state._replace(
        first_pending=cut.end,
        pending=state.open,
        since_ms=state.last_sent_ms,
        deadline_ms=state.deadline_ms if stays else 0,
    )


def nothing_pending(state: State) -> State:
    """Return the state after an emission of everything, with the same ordinal and without an overlap."""
    end = state.next_seq
    return emitted(state, Cut(state.first_pending, end, "flush"))._replace(overlap_first=end)


def recounted(state: State, pending: Sequence[Arrival | None]) -> State:
    """Return the state after a change of pending messages; boundaries and times stay.

    `pending` are the messages `first_pending … next_seq`, with None for deleted ones. If all are deleted, their rows
    are no longer pending.
    """
    unsealed = pending[state.open_first - state.first_pending :]
    state = state._replace(pending=recount(pending), open=recount(unsealed))
    if state.pending_messages:
        return state
    end = state.next_seq
    overlap_first = state.overlap_first if end - state.overlap_first < MOST_GONE else end
    return sealed(state)._replace(first_pending=end, pending=Totals(), overlap_first=overlap_first, deadline_ms=0)


def window_first(before: State, after: State, window: int) -> int:
    """Return the first message whose row stays after a step, because it is in the window, pending or overlap."""
    return max(before.window_first, min(after.next_seq - window, after.overlap_first))


def split(cut: Cut, bodies: Sequence[Body]) -> list[Cut]:
    """Return one cut per episode, split where episodes were sealed.

    `bodies` are the cut's messages in order, followed by the next message if there is one: a boundary is recorded in
    the row of the message that made it.
    """
    cuts: list[Cut] = []
    start = cut.first
    for seq, body in enumerate(bodies, cut.first):
        if body.sealed_before and start < seq:
            cuts.append(Cut(start, seq, body.sealed_before))
            start = seq
        if body.sealed_after and seq < cut.end:
            cuts.append(Cut(start, seq + 1, body.sealed_after))
            start = seq + 1
    if start < cut.end:
        cuts.append(Cut(start, cut.end, cut.reason))
    return cuts


def overlap_of(seqs: range, bodies: Sequence[Body], first: int, overlap: int) -> list[int]:
    """Return the numbers of an episode's last messages that the next one carries: at most `overlap`, with bounded JSON.

    `seqs` are the episode's messages, and `bodies` the messages from `first` on. Deleted messages are skipped.
    """
    chosen: list[int] = []
    size = 0
    for seq in reversed(seqs):
        if len(chosen) == overlap:
            break
        json = bodies[seq - first].json
        if not json:
            continue
        size += len(json) + 1
        if size > MAX_OVERLAP_BYTES:
            break
        chosen.append(seq)
    return chosen[::-1]
