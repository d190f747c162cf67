"""The end of an episode and the beginning of the next: pure functions over a conversation's counters.

They depend on the log alone, with one exception: the deadline, by which a living worker notices silence. A worker that
was down meanwhile finds the same silence between the records' timestamps, and closes the same episodes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from afterword.schemas import CloseReason
from afterword.streams.segmenter import shifts
from afterword.streams.segmenter.arrival import Arrival, Weight
from afterword.streams.segmenter.state import MAX_DEADLINE_MS, Body, State
from afterword.streams.settings import Episodes
from afterword.streams.triggers import Fires, compile_trigger

MAX_EPISODE_BYTES = 700_000
"""JSON of the core messages; the rest of an `episode.closed` of less than a megabyte is for overlap and envelope."""
MAX_OVERLAP_BYTES = 100_000
MOST_GONE = 10_000
"""Rows of one open episode, most of them of deleted messages; also those that an overlap may be behind."""
MOST_UNHEARD = 64
"""Messages that the topic model hears together, at most."""
FORGOTTEN_AT_ONCE = 4
"""Rows of an old, longer window that go with each message: a lowered window makes no transaction of all of them."""


class EpisodeRules(NamedTuple):
    """The settings of a conversation, and its trigger as a function."""

    limits: Episodes
    fires: Fires


class Cut(NamedTuple):
    """The messages `first … end` leave, as one episode or, before `split`, as several."""

    first: int
    end: int
    reason: CloseReason
    """Reason to close the last episode before `split`, unless that was sealed."""
    topic_model: int = 0
    """Version of the model that found the topic shift after it; 0: none did."""


Unheard = tuple[bool | None, int, shifts.Utterance]
"""`is_continuation` of a pending message, the version of the model that found, before the message was handed over, that
it shifts, or 0, and what the model is yet to hear."""


class Heard(NamedTuple):
    """A message that the topic model has heard, and not taken yet."""

    listener: shifts.TopicListener
    now: shifts.Utterance


class Beginning(NamedTuple):
    """A topic among messages that were unheard."""

    seq: int
    """The message that begins it."""
    topic_model: int
    """Version of the model that found it; 0: the message says it."""


class Decision(NamedTuple):
    """The consequences of a message."""

    sealed_before: CloseReason | None
    sealed_after: CloseReason | None
    cuts: tuple[Cut, ...]
    """Emissions in this order; they may include the message itself."""
    state: State
    """State after all of it, but for the ordinals and the overlap, which follow from the episodes emitted."""


def episode_rules(limits: Episodes) -> EpisodeRules:
    return EpisodeRules(limits, compile_trigger(limits.conditions()) if limits.auto_summarize else _never)


def decide(state: State, message: Arrival, rules: EpisodeRules, now_ms: int, heard: Heard | None = None) -> Decision:
    """Silence, boundary, append, full, trigger, limit: in this order.

    `now_ms`: wall clock, milliseconds since 1970; `heard`: the message for the topic model, if one looks at it.
    """
    limits = rules.limits
    silence = close_all(state, "idle") if is_silent(state, message, limits) else None
    state = emitted(state, silence)
    before = boundary(state, message, limits)
    state = sealed(state) if before else state
    state = appended(state, message, limits, now_ms, topic_after(state, heard, limits))
    after: CloseReason | None = "max_size" if is_complete(state, limits) else None
    state = sealed(state) if after else state
    triggered = trigger(state, rules) or overfull(state, limits)
    state = emitted(state, triggered)
    return Decision(before, after, tuple(cut for cut in (silence, triggered) if cut), state)


def as_set(message: Arrival, limits: Episodes) -> Arrival:
    """The message with what the settings make of its `is_continuation`."""
    return message._replace(is_continuation=None, topic_model=0) if limits.topic_shift == "off" else message


def waiting(state: State, message: Arrival, rules: EpisodeRules, now_ms: int) -> State | None:
    """The state after a message that the topic model need not hear yet; None for one that is to be decided on now.

    It waits where nothing leaves with it, wherever topics end: with fewer of them ended, the open episode has only more
    messages. So the model hears a conversation's messages together, shortly before they leave, and finds the same.
    """
    limits = rules.limits
    opens = not state.open_messages
    hears = limits.topic_shift == "auto" if opens else bool(state.topic)
    if not hears or state.unheard >= MOST_UNHEARD:
        return None
    if is_silent(state, message, limits) or (not opens and is_full(state, message, limits)):
        return None
    after = appended(state, message, limits, now_ms, state.topic or shifts.BEGUN, state.unheard + 1)
    return None if is_complete(after, limits) or rules.fires(after) or is_crowded(after, limits) else after


def topics_in(state: State, unheard: Sequence[Unheard], limits: Episodes) -> tuple[bytes, list[Beginning]]:
    """The topic model's row when it has heard what is unheard, and the topics that begin there."""
    listener = shifts.TopicListener(state.topic) if state.topic else None
    shortest, hears_all = limits.min_episode_size, limits.topic_shift == "auto"
    length = state.open_messages - state.unheard
    found = []
    for seq, (says, model, now) in enumerate(unheard, state.next_seq - state.unheard):
        if says is None and listener and length >= shortest and listener.begins_topic(now, length):
            says, model = False, listener.version
        if says is False and length >= shortest:
            found.append(Beginning(seq, model))
            length = 0
            if not hears_all:  # an episode keeps the model that opened it, or none
                listener = None
        if listener:
            listener.take(now, opens=not length)
        length += 1
    return listener.row if listener else b"", found


def judged(state: State, message: Arrival, limits: Episodes) -> tuple[Arrival, Heard | None]:
    """The message with what the model of its text says where it says nothing itself, and what the model has heard.

    The model is the one that opened the episode, whose row `state` has.
    """
    length = state.open_messages
    decides = bool(state.topic) and length > 0
    if not (decides or limits.topic_shift == "auto"):
        return message, None
    listener, now = (
        shifts.TopicListener(state.topic or shifts.BEGUN),
        shifts.utterance_of(message.is_user, message.content),
    )
    may_shift = message.is_continuation is None and decides and length >= limits.min_episode_size
    if may_shift and listener.begins_topic(now, length):
        message = message._replace(is_continuation=False, topic_model=listener.version)
    return message, Heard(listener, now)


def topic_after(state: State, heard: Heard | None, limits: Episodes) -> bytes:
    """The topic model's row after the message. An episode keeps the model that opened it, or none."""
    opens = not state.open_messages
    if opens and (limits.topic_shift != "auto" or heard is None):
        return b""
    if heard is None or not (opens or state.topic):
        return state.topic
    heard.listener.take(heard.now, opens=opens)
    return heard.listener.row


def is_duplicate(state: State, seq: int | None, window: int) -> bool:
    """`seq`: the number on record for the message's id; past the window it counts only while it is pending."""
    if seq is None:
        return False
    return min(state.next_seq - window, state.first_pending) <= seq < state.next_seq


def is_silent(state: State, message: Arrival, limits: Episodes) -> bool:
    """Return whether the message comes after silence while something is pending."""
    return state.pending_messages > 0 and is_late(state, message, limits)


def is_late(state: State, message: Arrival, limits: Episodes) -> bool:
    """Return whether more than `idle_seconds` lie between the message and all before it.

    Against the latest of them, not the last: a role whose clock is wrong, or a late message, opens no gap.
    """
    silence_ms = max(message.event_ms - state.latest_event_ms, message.record_ms - state.latest_record_ms)
    return silence_ms > limits.idle_seconds * 1000


def boundary(state: State, message: Arrival, limits: Episodes) -> CloseReason | None:
    """Return the reason to seal the open episode before the message, None to keep it open."""
    if message.is_continuation is False and state.open_messages >= limits.min_episode_size:
        return "topic_shift"
    if state.open_messages and is_full(state, message, limits):
        return "max_size"
    return None


def is_full(state: State, message: Arrival, limits: Episodes) -> bool:
    """Return whether the message would make the open episode too large."""
    too_many_tokens = state.open_tokens + message.tokens > limits.max_episode_tokens
    return too_many_tokens or state.open_bytes + message.episode_bytes > MAX_EPISODE_BYTES


def is_complete(state: State, limits: Episodes) -> bool:
    """Return whether the open episode takes no further message. Rows of deleted ones are bounded too."""
    rows = state.next_seq - state.open_first
    return state.open_messages >= limits.max_episode_size or rows >= max(limits.max_pending_messages, MOST_GONE)


def trigger(state: State, rules: EpisodeRules) -> Cut | None:
    """Cut at a trigger: everything sealed leaves, and the open episode too unless it is short."""
    if not rules.fires(state):
        return None
    long_enough = state.open_messages >= rules.limits.min_episode_size
    end = state.next_seq if long_enough else state.open_first
    return Cut(state.first_pending, end, "trigger") if end > state.first_pending else None


def overfull(state: State, limits: Episodes) -> Cut | None:
    """Cut when too much is pending: everything sealed leaves, in the episodes that it would have made later."""
    if not is_crowded(state, limits) or state.open_first == state.first_pending:
        return None
    return Cut(state.first_pending, state.open_first, "max_size")


def is_crowded(state: State, limits: Episodes) -> bool:
    """Return whether too much is pending."""
    rows = state.next_seq - state.first_pending
    return rows >= limits.max_pending_messages or state.pending_bytes >= limits.max_pending_bytes


def close_all(state: State, reason: CloseReason) -> Cut | None:
    """Everything pending leaves, whatever its size."""
    return Cut(state.first_pending, state.next_seq, reason) if state.pending_messages else None


def sealed(state: State) -> State:
    """The open episode ends here; the next message opens another."""
    return state._replace(
        open_first=state.next_seq,
        open_tokens=0,
        open_bytes=0,
        open_turns=0,
        open_text_bytes=0,
        open_longest=0,
        open_gone=0,
        topic=shifts.without_words(state.topic),
    )


def appended(state: State, message: Arrival, limits: Episodes, now_ms: int, topic: bytes, unheard: int = 0) -> State:
    """`topic`: the model's row after the message; `unheard`: messages that the row lacks."""
    has_before, is_user = state.next_seq > 0, message.is_user
    tokens, size, text_bytes, length = message.tokens, message.episode_bytes, message.text_bytes, message.length
    record_ms, event_ms = message.record_ms, message.event_ms
    # all fields in order: `_replace` takes three times as long, and this is done for each message
    return State(
        state.tenant_id,
        state.next_seq + 1,
        state.window_first,
        state.overlap_first,
        state.first_pending,
        state.open_first,
        state.open_tokens + tokens,
        state.open_bytes + size,
        state.pending_tokens + tokens,
        state.last_ordinal,
        message.sent_ms,
        max(state.latest_record_ms, record_ms) if has_before else record_ms,
        state.open_turns + (is_user or not state.open_messages),
        state.pending_turns + (is_user or not state.pending_messages),
        state.open_text_bytes + text_bytes,
        state.pending_text_bytes + text_bytes,
        max(state.open_longest, length),
        max(state.pending_longest, length),
        since(state, message, limits),
        state.overrides,
        state.agents,
        state.pending_bytes + size,
        max(state.latest_event_ms, event_ms) if has_before else event_ms,
        state.taken_to,
        state.open_gone,
        state.pending_gone,
        unheard,
        deadline(limits, now_ms),
        state.silent_ms,
        topic,
    )


def since(state: State, message: Arrival, limits: Episodes) -> int:
    """Event time from which `seconds` count: the last summary's; at the start and after silence, the message's own.

    Without the second, the first words of somebody who returns after a day would be summarized at once.
    """
    if state.since_ms is None or (not state.pending_messages and is_late(state, message, limits)):
        return message.sent_ms
    return state.since_ms


def emitted(state: State, cut: Cut | None) -> State:
    """The state after an emission: a tail that stays is all that is pending."""
    if cut is None:
        return state
    if cut.end == state.next_seq:
        state = sealed(state)
    stays = state.next_seq - cut.end - state.open_gone
    return state._replace(
        first_pending=cut.end,
        pending_tokens=state.open_tokens,
        pending_bytes=state.open_bytes,
        pending_turns=state.open_turns,
        pending_text_bytes=state.open_text_bytes,
        pending_longest=state.open_longest,
        pending_gone=state.open_gone,
        since_ms=state.last_sent_ms,
        deadline_ms=state.deadline_ms if stays else 0,
    )


def nothing_pending(state: State) -> State:
    """The state after an emission of everything, but for the ordinal, and without an overlap."""
    end = state.next_seq
    return emitted(state, Cut(state.first_pending, end, "flush"))._replace(overlap_first=end)


def recounted(state: State, pending: Sequence[Arrival | None]) -> State:
    """The state after a change of pending messages; boundaries and times stay.

    `pending`: `first_pending … next_seq`, None for those that are gone. If all are, their rows pend no longer.
    """
    whole, unsealed = _counted(pending), _counted(pending[state.open_first - state.first_pending :])
    counters: dict[str, Any] = {f"open_{name}": number for name, number in unsealed.items()}
    state = state._replace(**counters, **{f"pending_{name}": number for name, number in whole.items()})
    state = state._replace(topic=recollected(state, pending))
    if state.pending_messages:
        return state
    end = state.next_seq
    overlap_first = state.overlap_first if end - state.overlap_first < MOST_GONE else end
    return sealed(state)._replace(first_pending=end, pending_gone=0, overlap_first=overlap_first, deadline_ms=0)


def recollected(state: State, pending: Sequence[Arrival | None]) -> bytes:
    """The topic model's row with no words but those of living messages. `pending`: as in `recounted`."""
    living = [message for message in pending[state.open_first - state.first_pending :] if message is not None]
    if not state.topic:
        return shifts.without_words(state.topic)
    return shifts.reworded(state.topic, (shifts.utterance_of(each.is_user, each.content) for each in living))


def weighed(state: State, unsealed: Sequence[Arrival | Weight]) -> State:
    """The state with the counters of the open episode. `unsealed`: its messages."""
    counted = _counted(unsealed)
    counters = {f"open_{name}": number for name, number in counted.items()}
    if state.first_pending == state.open_first:
        counters |= {f"pending_{name}": number for name, number in counted.items()}
    return state._replace(**counters)


def _counted(messages: Sequence[Arrival | Weight | None]) -> dict[str, Any]:
    living = [message for message in messages if message is not None]
    return {
        "tokens": sum(message.tokens for message in living),
        "bytes": sum(message.episode_bytes for message in living),
        "turns": sum(message.is_user for message in living) + bool(living and not living[0].is_user),
        "text_bytes": sum(message.text_bytes for message in living),
        "longest": max((message.length for message in living), default=0),
        "gone": len(messages) - len(living),
    }


def deadline(limits: Episodes, now_ms: int) -> int:
    """The idle timeout of what is pending, in milliseconds since 1970."""
    return max(1, int(min(now_ms + limits.idle_seconds * 1000, MAX_DEADLINE_MS)))


def window_first(before: State, after: State, window: int) -> int:
    """Return the first message whose row stays after a step: in the window, pending or overlap.

    What the step itself emitted may go at once; of what remained from a longer window only a little goes with it.
    """
    needed = min(after.next_seq - window, after.overlap_first)
    emitted_now = after.overlap_first - before.overlap_first
    return max(before.window_first, min(needed, before.window_first + emitted_now + FORGOTTEN_AT_ONCE))


def split(cut: Cut, bodies: Sequence[Body]) -> list[Cut]:
    """One cut for each episode, split where they were sealed.

    `bodies`: of its messages in order, and of the message that follows them, if there is one: a boundary is on record
    with the message that made it.
    """
    cuts: list[Cut] = []
    start = cut.first
    for seq, body in enumerate(bodies, cut.first):
        if body.sealed_before and start < seq:
            model = body.topic_model if body.sealed_before == "topic_shift" else 0
            cuts.append(Cut(start, seq, body.sealed_before, model))
            start = seq
        if body.sealed_after and seq < cut.end:
            cuts.append(Cut(start, seq + 1, body.sealed_after))
            start = seq + 1
    if start < cut.end:
        cuts.append(Cut(start, cut.end, cut.reason))
    return cuts


def overlap_of(seqs: range, bodies: Sequence[Body], first: int, overlap: int) -> list[int]:
    """Numbers of the last messages of an episode that the next one carries: `overlap` at most, with bounded JSON.

    `seqs`: of the episode's messages; `bodies`: of the messages from `first` on. Those that are gone are passed over.
    """
    found: list[int] = []
    size = 0
    for seq in reversed(seqs):
        if len(found) == overlap:
            break
        json = bodies[seq - first].json
        if not json:
            continue
        size += len(json) + 1
        if size > MAX_OVERLAP_BYTES:
            break
        found.append(seq)
    return found[::-1]


def _never(_: object) -> bool:
    return False
