"""A conversation and its agents within one batch: who a message belongs to, and how decisions change the rows.

An agent is active from the first message that names it until a flush that names it. Active agents are listed in the
order in which they were last named, so the first one is dropped when there are too many.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from afterword.schemas import CloseReason
from afterword.streams.errors import RowUnreadable
from afterword.streams.segmenter import state as rows
from afterword.streams.segmenter.episodes import Arrival, ClosedEpisode, from_row
from afterword.streams.segmenter.rules import (
    Cut,
    EpisodeRules,
    close_all,
    decide,
    emitted,
    is_duplicate,
    is_silent,
    nothing_pending,
    overfull,
    overlap_of,
    recounted,
    split,
    window_first,
)
from afterword.streams.segmenter.state import (
    NOBODY,
    Body,
    Scope,
    StagedRows,
    StagedStates,
    State,
    decode_body,
    digest_of,
    encode_body,
)

Amend = Callable[[Body], Body]
"""Changes a message's row; the row of a deleted message has no JSON."""


def recipients(active: Sequence[str], agent_id: str | None) -> list[str]:
    """Return the named agent, else all active agents, else NOBODY."""
    if agent_id:
        return [agent_id]
    return list(active) or [NOBODY]


def activated(active: Sequence[str], agent_id: str | None, limit: int) -> tuple[list[str], list[str]]:
    """Return the agents that are active after a message, at most `limit`, and those that it displaces."""
    if not agent_id:
        return list(active), []
    order = [*(agent for agent in active if agent != agent_id), agent_id]
    return order[-limit:], order[:-limit]


def deactivated(active: Sequence[str], agent_id: str) -> list[str]:
    """Return the active agents after the named one has completed its work."""
    return [agent for agent in active if agent != agent_id]


class ScopeLog:
    """The messages of a conversation, or of one agent's part of it, which share one numbering.

    `messages` is the table. `overlap` is the number of an episode's messages that the next one carries, and `window`
    the number of recent messages whose ids are remembered. `now_ms` is the wall clock in milliseconds since 1970.
    """

    def __init__(
        self, scope: Scope, states: StagedStates, messages: StagedRows, *, overlap: int, window: int, now_ms: int
    ) -> None:
        self.scope = scope
        self._states = states
        self._messages = messages
        self._overlap = overlap
        self._window = window
        self._now_ms = now_ms
        self._prefix = rows.prefix(scope)

    @property
    def stored(self) -> State | None:
        """The state; None if no message has been accepted yet. Raises: RowUnreadable, StateUnreadable."""
        return self._states.get(self.scope)

    @property
    def state(self) -> State:
        """The state, which is empty if no message has been accepted yet. Raises: RowUnreadable, StateUnreadable."""
        return self.stored or State(None)

    @state.setter
    def state(self, state: State) -> None:
        self._states[self.scope] = state

    @property
    def is_pending(self) -> bool:
        return self.state.pending_messages > 0

    @property
    def pending_bytes(self) -> int:
        return self.state.pending.episode_bytes

    def known_text(self, digest: bytes) -> bytes | None:
        """Return the `text_digest` of the last record with this id; None if a message with the id is no duplicate."""
        state = self.state
        if not state.next_seq:  # a new log has no ids to look up
            return None
        row = self._messages.get(rows.seen_key(self._prefix, digest))
        if row is None or not is_duplicate(state, rows.decode_seq(row), self._window):
            return None
        return row[rows.SEQ_BYTES :]

    def remember(self, digest: bytes, text: bytes, *, is_new: bool) -> None:
        """Record the id and the `text_digest` of the next message or, unless it is new, another text of a known one."""
        key = rows.seen_key(self._prefix, digest)
        known = None if is_new else self._messages.get(key)
        seq = self.state.next_seq if known is None else rows.decode_seq(known)
        self._messages[key] = seq.to_bytes(rows.SEQ_BYTES) + text

    def append(self, message: Arrival, rules: EpisodeRules) -> list[ClosedEpisode]:
        """Append the message, and return the episodes that it closes, in order.

        If the state was rebuilt and the message is already in an episode, only its id is remembered.
        """
        state = self.stored or State(message.tenant_id)
        if message.body.offset < state.taken_to:
            self.keep_id(message)
            return []
        decision = decide(state, message, rules, self._now_ms)
        self._put(state.next_seq, decision.body)
        return self._emit(state, decision.state, decision.cuts)

    def keep_id(self, message: Arrival) -> None:
        """Number a message whose body is kept in other logs; this one keeps only its id."""
        state = self.stored or State(message.tenant_id)
        self._messages[self._body_key(state.next_seq)] = message.body.digest
        self._step(state, nothing_pending(state._replace(next_seq=state.next_seq + 1)))

    def hand_over(self) -> list[Arrival]:
        """Remove the overlap and all pending messages, and return the messages for another log to take over."""
        pending = self._pending(self.state)
        self.clear()
        return [message for message in pending if message]

    def search(self, digest: bytes) -> list[int]:
        """Return the numbers of the messages with this id that are pending or in the overlap."""
        state = self.state
        # a log that remembers no ids must search pending messages too
        looked_at = range(state.overlap_first, state.first_pending if self._window else state.next_seq)
        matching = [seq for seq in looked_at if digest_of(self._row(seq)) == digest]
        row = self._messages.get(rows.seen_key(self._prefix, digest))
        seq = None if row is None else rows.decode_seq(row)
        return [*matching, seq] if seq is not None and state.first_pending <= seq < state.next_seq else matching

    def amend(self, seq: int, amended: Amend, rules: EpisodeRules) -> list[ClosedEpisode]:
        """Change a message that `search` has found, and return the episodes that close because too much is pending.

        A deleted message stays deleted.
        """
        state, body = self.state, self._body(seq)
        if body.is_gone:
            return []
        self._put(seq, amended(body))
        if seq < state.first_pending:
            return []
        after = recounted(state, self._pending(state))
        self._strip_to(after.overlap_first)
        cut = overfull(after, rules.max_pending)
        return self._emit(state, emitted(after, cut), [cut] if cut else [])

    def clear(self) -> None:
        """Remove everything pending and the overlap; ids, ordinals and clocks stay. Damaged rows are removed too."""
        state = self.state
        if state.is_stub:
            return
        self._strip_to(state.next_seq)
        self._step(state, nothing_pending(state)._replace(since_ms=None))

    def close(self, reason: CloseReason) -> list[ClosedEpisode]:
        """Emit everything pending, and return the episodes that it makes."""
        state = self.state
        cut = close_all(state, reason)
        return self._emit(state, emitted(state, cut), [cut]) if cut else []

    def forget(self) -> None:
        """Remove the overlap and the ids of a log with nothing pending, which leaves only the stub."""
        state = self.state
        for seq in range(state.window_first, state.next_seq):
            self._forget(seq)
        self.state = state.stub

    def _step(self, before: State, after: State) -> None:
        """Make `after` the state, and delete the rows that leave the window; over time, as many are deleted as were
        created."""
        first = window_first(before, after, self._window)
        for seq in range(before.window_first, first):
            self._forget(seq)
        silent_ms = 0 if after.pending_messages else self._now_ms
        if first != after.window_first or silent_ms != after.silent_ms:
            after = after._replace(window_first=first, silent_ms=silent_ms)
        self.state = after

    def _emit(self, before: State, after: State, cuts: Iterable[Cut]) -> list[ClosedEpisode]:
        episodes: list[ClosedEpisode] = []
        for cut in cuts:
            closed, after = self._split(after, cut)
            episodes += closed
        self._step(before, after)
        return episodes

    def _split(self, state: State, cut: Cut) -> tuple[list[ClosedEpisode], State]:
        first = state.overlap_first
        bodies = [self._body(seq) for seq in range(first, min(cut.end + 1, state.next_seq))]
        episodes: list[ClosedEpisode] = []
        overlap = overlap_of(range(first, cut.first), bodies, first, self._overlap)
        for piece in split(cut, bodies[cut.first - first :]):
            core = [body for body in bodies[piece.first - first : piece.end - first] if not body.is_gone]
            if not core:  # all of its messages were deleted
                continue
            ordinal = state.last_ordinal + len(episodes) + 1
            before = [bodies[seq - first] for seq in overlap]
            episodes.append(ClosedEpisode(self.scope, state.tenant_id, ordinal, piece.reason, core, before))
            overlap = overlap_of(range(piece.first, piece.end), bodies, first, self._overlap)
        overlap_first = overlap[0] if overlap else cut.end
        for seq in range(first, overlap_first):  # messages that are emitted and not in the overlap keep only their ids
            self._messages[self._body_key(seq)] = bodies[seq - first].digest
        ordinal = state.last_ordinal + len(episodes)
        return episodes, state._replace(last_ordinal=ordinal, overlap_first=overlap_first)

    def _strip_to(self, end: int) -> None:
        """Keep only the ids of the messages from the overlap up to `end`."""
        for seq in range(self.state.overlap_first, end):
            row = self._messages.get(self._body_key(seq))
            if row is not None:
                self._messages[self._body_key(seq)] = digest_of(row)

    def _forget(self, seq: int) -> None:
        key = self._body_key(seq)
        row = self._messages.get(key)
        if row is None:  # the row was lost, but nothing needs it any longer, so the worker continues
            return
        digest = digest_of(row)
        del self._messages[key]
        if not self._window:  # for an agent, the conversation's own log remembers ids
            return
        seen = rows.seen_key(self._prefix, digest)
        # outside the window the id may have been accepted again; the row then belongs to that message
        known = self._messages.get(seen)
        if known is not None and rows.decode_seq(known) == seq:
            del self._messages[seen]

    def _pending(self, state: State) -> list[Arrival | None]:
        """Return the pending messages, with None for each deleted one. Raises: RowUnreadable."""
        bodies = [self._body(seq) for seq in range(state.first_pending, state.next_seq)]
        return [None if body.is_gone else from_row(body, state) for body in bodies]

    def _put(self, seq: int, body: Body) -> None:
        self._messages[self._body_key(seq)] = encode_body(body)

    def _body(self, seq: int) -> Body:
        """Return the body of a message that is pending or in the overlap. Raises: RowUnreadable."""
        body = decode_body(self._row(seq))
        if body is None:
            raise RowUnreadable(problem="a message that is pending has no body")
        return body

    def _row(self, seq: int) -> bytes:
        row = self._messages.get(self._body_key(seq))
        if row is None:
            raise RowUnreadable(problem="a message's row is missing")
        return row

    def _body_key(self, seq: int) -> bytes:
        return rows.body_key(self._prefix, seq)


class Amended(NamedTuple):
    """The effects of a changed message."""

    closed: list[ClosedEpisode]
    is_elsewhere: bool
    """True if the message is, or may be, in an episode that was already emitted."""
    episode: tuple[Scope, int] | None = None
    """Scope and ordinal of that episode, if the rows still have them."""


class Conversation:
    """The messages of a conversation, in one log for all of it or, with `max_agents`, in a log for each agent.

    With agents, `root` remembers ids and active agents, and never has anything pending itself. `log_of` opens an
    agent's log. The log of NOBODY holds the messages that arrive before the first agent is named. An inactive agent has
    nothing pending, so the list of active agents is enough to find everything pending.
    """

    def __init__(
        self, root: ScopeLog, log_of: Callable[[Scope], ScopeLog], max_agents: int | None, rules: EpisodeRules
    ) -> None:
        self._root = root
        self._log_of = log_of
        self._max_agents = max_agents
        self._rules = rules

    def take(self, message: Arrival) -> list[ClosedEpisode]:
        """Accept the message, and return the episodes that it closes, in order."""
        if self._max_agents is None:
            return self._root.append(message, self._rules)
        self._root.keep_id(message)
        before = self._active
        active, displaced = activated(before, message.agent_id, self._max_agents)
        closed = self._close(displaced, "idle")
        if message.agent_id and not before:
            closed += self._adopt(message.agent_id, message)
        for agent in recipients(before, message.agent_id):
            closed += self._log(agent).append(message, self._rules)
        self._set_active(active)
        return closed

    def flush(self, agent_id: str | None) -> Iterator[list[ClosedEpisode]]:
        """Deactivate the agent and close its pending messages; if none is named, close those of the whole conversation.

        Yields after each agent. If the flush is interrupted and repeated, an agent that was closed has nothing pending.
        """
        if self._max_agents is None:
            yield self._root.close("flush")
        elif not agent_id:
            for agent in recipients(self._active, None):
                yield self._close([agent], "flush")
        elif agent_id in self._active:
            self._set_active(deactivated(self._active, agent_id))
            yield self._close([agent_id], "flush")

    def amend(self, digest: bytes, amended: Amend) -> Amended:
        """Change the message wherever it is pending; other agents may have it in an episode or as overlap."""
        state, places = self._root.state, [(log, seq) for log in self._logs for seq in log.search(digest)]
        closed = [episode for log, seq in places for episode in log.amend(seq, amended, self._rules)]
        if self._max_agents is not None or not places:
            return Amended(closed, is_elsewhere=True)
        is_overlap = places[-1][1] < state.first_pending
        return Amended(closed, is_overlap, (self._root.scope, state.last_ordinal) if is_overlap else None)

    def clear(self) -> None:
        """Remove all messages. Later ones start over, but their ordinals continue."""
        for log in self._logs:
            log.clear()
        if self._active:
            self._set_active([])

    @property
    def is_pending(self) -> bool:
        return any(log.is_pending for log in self._logs)

    @property
    def pending_bytes(self) -> int:
        """Bytes of the pending messages' JSON; a change of any of these messages reads all of it."""
        return sum(log.pending_bytes for log in self._logs)

    @property
    def _logs(self) -> list[ScopeLog]:
        """The logs that may have something pending."""
        return [self._root] if self._max_agents is None else [*map(self._log, [*self._active, NOBODY])]

    def _adopt(self, agent: str, message: Arrival) -> list[ClosedEpisode]:
        """Give the agent the waiting messages, unless they waited so long that a live worker would have closed them."""
        waited_for = self._log(NOBODY)
        if not waited_for.is_pending:
            return []
        if is_silent(waited_for.state, message, self._rules.limits):
            return waited_for.close("idle")
        log = self._log(agent)
        return [closed for waited in waited_for.hand_over() for closed in log.append(waited, self._rules)]

    def _close(self, agents: Iterable[str], reason: CloseReason) -> list[ClosedEpisode]:
        return [closed for agent in agents for closed in self._log(agent).close(reason)]

    def _log(self, agent: str) -> ScopeLog:
        return self._log_of(Scope(self._root.scope.conversation_id, agent))

    @property
    def _active(self) -> list[str]:
        return self._root.state.agents or []

    def _set_active(self, agents: list[str]) -> None:
        self._root.state = self._root.state._replace(agents=agents)
