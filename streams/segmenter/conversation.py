"""A conversation and its agents within one batch: whose a message is, and the rules' decisions applied to the rows.

An agent is active from the first message that names it until a flush that names it. The list of active agents is in the
order in which they were last named, so that the first one has to go when there are too many.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from afterword.schemas import CloseReason
from afterword.streams.errors import RowUnreadable
from afterword.streams.segmenter import state as rows
from afterword.streams.segmenter.arrival import Arrival, from_row
from afterword.streams.segmenter.episodes import ClosedEpisode
from afterword.streams.segmenter.rules import (
    Cut,
    EpisodeRules,
    close_all,
    decide,
    emitted,
    is_duplicate,
    is_silent,
    nothing_pending,
    overlap_size,
    split,
    window_first,
)
from afterword.streams.segmenter.state import NOBODY, Body, Rows, Scope, State, decode_body, digest_of, encode_body


class Roster(NamedTuple):
    """Active agents after a message, and those that are not active any more because of it."""

    active: list[str]
    displaced: list[str]


def recipients(active: Sequence[str], agent_id: str | None) -> list[str]:
    """The agent that is named, else all that are active, else NOBODY."""
    if agent_id:
        return [agent_id]
    return list(active) or [NOBODY]


def activated(active: Sequence[str], agent_id: str | None, limit: int) -> Roster:
    """The roster after a message that names the agent, if it names one; at most `limit` are active."""
    if not agent_id:
        return Roster(list(active), [])
    order = [*(agent for agent in active if agent != agent_id), agent_id]
    return Roster(order[-limit:], order[:-limit])


def deactivated(active: Sequence[str], agent_id: str) -> list[str]:
    """Active agents after the named one has completed its work."""
    return [agent for agent in active if agent != agent_id]


class Thread:
    """Messages that are numbered together: a conversation, or an agent's part of one.

    `state`: None when no message was taken yet. `table`: of messages. `overlap`: messages of an episode that the next
    one carries. `window`: how many of its last messages' ids it remembers. `now_ms`: wall clock, ms since 1970.
    """

    def __init__(
        self, scope: Scope, state: State | None, table: Rows, *, overlap: int, window: int, now_ms: int
    ) -> None:
        self.scope = scope
        self.state = state
        self._table = table
        self._overlap = overlap
        self._window = window
        self._now_ms = now_ms
        self._prefix = rows.prefix(scope)
        self._first_row = state.window_first if state else 0

    def has(self, digest: bytes) -> bool:
        """Return whether a message with this id is a duplicate. `digest`: of the id."""
        row = self._table.get(rows.seen_key(self._prefix, digest))
        seq = None if row is None else rows.decode_seq(row)
        return self.state is not None and is_duplicate(self.state, seq, self._window)

    def remember(self, digest: bytes) -> None:
        """Record the id of the next message."""
        seq = self.state.next_seq if self.state else 0
        self._table[rows.seen_key(self._prefix, digest)] = rows.encode_seq(seq)

    def append(self, message: Arrival, rules: EpisodeRules) -> list[ClosedEpisode]:
        """Take the message, and return the episodes that it closes, in order."""
        state = self.state or State(message.tenant_id)
        decision = decide(state, message, rules, self._now_ms)
        seals = decision.sealed_before, decision.sealed_after
        shifts = message.is_continuation is False
        body = Body(message.json, message.tokens, message.offset, *seals, shifts, message.trace)
        self._table[self._body_key(state.next_seq)] = encode_body(message.digest, body)
        return self._emit(state, decision.state, decision.cuts)

    def keep_id(self, message: Arrival) -> None:
        """Number a message whose body other threads keep: here only its id is."""
        state = self.state or State(message.tenant_id)
        self._table[self._body_key(state.next_seq)] = message.digest
        self._step(state, nothing_pending(state._replace(next_seq=state.next_seq + 1)))

    def hand_over(self) -> list[Arrival]:
        """Remove all that is pending, which another thread must take, and the overlap before it."""
        state = self.state
        if state is None:
            return []
        found = self._read(range(state.overlap_first, state.next_seq))
        self._strip(state.overlap_first, found)
        self._step(state, nothing_pending(state)._replace(since_ms=None))
        pending = found[state.first_pending - state.overlap_first :]
        return [from_row(row, body_in(row), state) for row in pending]

    def close(self, reason: CloseReason) -> list[ClosedEpisode]:
        """Emit everything pending, and return the episodes that it makes."""
        cut = self.state and close_all(self.state, reason)
        return self._emit(self.state, emitted(self.state, cut), [cut]) if self.state and cut else []

    def tidy(self) -> None:
        """Delete the rows before the window: over time as many as were made."""
        if self.state is None:
            return
        for seq in range(self._first_row, self.state.window_first):
            self._forget(seq)
        self._first_row = self.state.window_first

    def _step(self, before: State, after: State) -> None:
        """Make `after` the state. The window moves with each step, so that batches make no difference to it."""
        self.state = after._replace(window_first=window_first(before, after, self._window))

    def _emit(self, before: State, state: State, cuts: Iterable[Cut]) -> list[ClosedEpisode]:
        episodes: list[ClosedEpisode] = []
        for cut in cuts:
            closed, state = self._split(state, cut)
            episodes += closed
        self._step(before, state)
        return episodes

    def _split(self, state: State, cut: Cut) -> tuple[list[ClosedEpisode], State]:
        first = state.overlap_first
        found = self._read(range(first, min(cut.end + 1, state.next_seq)))
        bodies = [body_in(row) for row in found]
        episodes = []
        overlap = bodies[: cut.first - first]
        for ordinal, one in enumerate(split(cut, bodies[cut.first - first :]), state.last_ordinal + 1):
            core = bodies[one.first - first : one.end - first]
            episodes.append(ClosedEpisode(self.scope, state.tenant_id, ordinal, one.reason, core, overlap))
            overlap = core[len(core) - overlap_size(core, self._overlap) :]
        overlap_first = cut.end - len(overlap)
        self._strip(first, found[: overlap_first - first])
        ordinal = state.last_ordinal + len(episodes)
        return episodes, state._replace(last_ordinal=ordinal, overlap_first=overlap_first)

    def _read(self, seqs: range) -> list[bytes]:
        return [self._row(self._body_key(seq)) for seq in seqs]

    def _strip(self, first: int, found: Iterable[bytes]) -> None:
        """Keep only the ids of messages that are emitted and no overlap. `found`: their rows, from `first` on."""
        for seq, row in enumerate(found, first):
            self._table[self._body_key(seq)] = digest_of(row)

    def _forget(self, seq: int) -> None:
        key = self._body_key(seq)
        row = self._table.get(key)
        if row is None:  # it was lost, and with it the id: what is not needed any more stops nobody
            return
        digest = digest_of(row)
        del self._table[key]
        if not self._window:  # ids are remembered elsewhere
            return
        seen = rows.seen_key(self._prefix, digest)
        # past the window the id may have been taken again, and the row belongs to that message now
        if self._table.get(seen) == rows.encode_seq(seq):
            del self._table[seen]

    def _row(self, key: bytes) -> bytes:
        row = self._table.get(key)
        if row is None:
            raise RowUnreadable(problem="a message's row is missing")
        return row

    def _body_key(self, seq: int) -> bytes:
        return rows.body_key(self._prefix, seq)


def body_in(row: bytes) -> Body:
    """The body of a message that is pending or overlap. Raises: RowUnreadable."""
    body = decode_body(row)
    if body is None:
        raise RowUnreadable(problem="a message that is pending has no body")
    return body


class Conversation(Protocol):
    """Both return the episodes that are closed, in order."""

    def take(self, message: Arrival, rules: EpisodeRules) -> list[ClosedEpisode]: ...
    def flush(self, agent_id: str | None) -> list[ClosedEpisode]: ...


class PerConversation:
    """One thread, whoever speaks."""

    def __init__(self, thread: Thread) -> None:
        self._thread = thread

    def take(self, message: Arrival, rules: EpisodeRules) -> list[ClosedEpisode]:
        self._thread.remember(message.digest)
        return self._thread.append(message, rules)

    def flush(self, _: str | None) -> list[ClosedEpisode]:
        return self._thread.close("flush")


class PerAgent:
    """A thread for each agent. `root` remembers ids and active agents, and never has anything pending itself.

    `thread_of`: opens the thread of an agent; that of NOBODY has what waits for the first one. An agent that is not
    active has nothing pending, so that the list of active agents is enough to find whatever is pending.
    """

    def __init__(self, root: Thread, thread_of: Callable[[Scope], Thread], max_agents: int) -> None:
        self._root = root
        self._thread_of = thread_of
        self._max_agents = max_agents

    def take(self, message: Arrival, rules: EpisodeRules) -> list[ClosedEpisode]:
        self._root.remember(message.digest)
        self._root.keep_id(message)
        before = self._active
        roster = activated(before, message.agent_id, self._max_agents)
        closed = self._close(roster.displaced, "idle")
        if message.agent_id and not before:
            closed += self._adopt(message.agent_id, message, rules)
        for agent in recipients(before, message.agent_id):
            closed += self._thread(agent).append(message, rules)
        self._set_active(roster.active)
        return closed

    def flush(self, agent_id: str | None) -> list[ClosedEpisode]:
        """Close what is pending of the agent, which is not active any more; of all when none is named."""
        if not agent_id:
            return self._close(recipients(self._active, None), "flush")
        if agent_id not in self._active:
            return []
        self._set_active(deactivated(self._active, agent_id))
        return self._close([agent_id], "flush")

    def _adopt(self, agent: str, message: Arrival, rules: EpisodeRules) -> list[ClosedEpisode]:
        """Give the agent what waited, unless it waited too long: then a living worker has closed it before."""
        waiting = self._thread(NOBODY)
        if waiting.state is None or not waiting.state.pending_messages:
            return []
        if is_silent(waiting.state, message, rules.limits):
            return waiting.close("idle")
        thread = self._thread(agent)
        return [closed for waited in waiting.hand_over() for closed in thread.append(waited, rules)]

    def _close(self, agents: Iterable[str], reason: CloseReason) -> list[ClosedEpisode]:
        return [closed for agent in agents for closed in self._thread(agent).close(reason)]

    def _thread(self, agent: str) -> Thread:
        return self._thread_of(Scope(self._root.scope.conversation_id, agent))

    @property
    def _active(self) -> list[str]:
        return (self._root.state and self._root.state.agents) or []

    def _set_active(self, agents: list[str]) -> None:
        if self._root.state:
            self._root.state = self._root.state._replace(agents=agents)
