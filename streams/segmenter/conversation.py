"""A conversation and its agents within one batch: whose a message is, and the rules' decisions applied to the rows.

An agent is active from the first message that names it until a flush that names it. The list of active agents is in the
order in which they were last named, so that the first one has to go when there are too many.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from afterword.schemas import CloseReason
from afterword.streams.errors import RowUnreadable
from afterword.streams.segmenter import state as rows
from afterword.streams.segmenter.arrival import Arrival, Weight, from_row, message_in, weight_of
from afterword.streams.segmenter.episodes import ClosedEpisode
from afterword.streams.segmenter.rules import (
    Cut,
    EpisodeRules,
    as_set,
    close_all,
    decide,
    emitted,
    is_duplicate,
    is_full,
    is_silent,
    judged,
    nothing_pending,
    overfull,
    overlap_of,
    recounted,
    split,
    topics_in,
    waiting,
    weighed,
    window_first,
)
from afterword.streams.segmenter.shifts import utterance_of
from afterword.streams.segmenter.state import NOBODY, Body, Rows, Scope, State, decode_body, digest_of, encode_body
from afterword.streams.settings import Episodes

Amend = Callable[[Body], Body]
"""Changes the row of a message; the row of one that is gone has no JSON."""


BodyRow = tuple[bytes, Body]
"""A message's row, and what is in it."""


class HeardRows(NamedTuple):
    """Messages that the topic model has heard just now."""

    rows: Mapping[int, BodyRow]
    """Rows of the messages by their numbers, as sealed."""
    has_topics: bool = False
    """A topic begins there: the counters of the open episode are too high."""


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
        self,
        scope: Scope,
        state: State | None,
        table: Rows,
        *,
        overlap: int,
        window: int,
        now_ms: int,
    ) -> None:
        self.scope = scope
        self.state = state
        self._table = table
        self._overlap = overlap
        self._window = window
        self._now_ms = now_ms
        self._prefix = rows.prefix(scope)
        self._first_row = state.window_first if state else 0

    @property
    def is_pending(self) -> bool:
        return self.state is not None and self.state.pending_messages > 0

    @property
    def pending_bytes(self) -> int:
        return self.state.pending_bytes if self.state else 0

    def has(self, digest: bytes) -> bool:
        """Return whether a message with this id is a duplicate. `digest`: of the id."""
        if self.state is None or not self.state.next_seq:  # spares a look that finds nothing
            return False
        row = self._table.get(rows.seen_key(self._prefix, digest))
        return is_duplicate(self.state, None if row is None else rows.decode_seq(row), self._window)

    def remember(self, digest: bytes) -> None:
        """Record the id of the next message."""
        seq = self.state.next_seq if self.state else 0
        self._table[rows.seen_key(self._prefix, digest)] = rows.encode_seq(seq)

    def append(self, message: Arrival, rules: EpisodeRules) -> list[ClosedEpisode]:
        """Take the message, and return the episodes that it closes, in order.

        One that is in an episode already, because the state was rebuilt since, only has its id remembered.
        """
        state = self.state or State(message.tenant_id)
        if message.offset < state.taken_to:
            self.keep_id(message)
            return []
        message = as_set(message, rules.limits)
        after = waiting(state, message, rules, self._now_ms)
        if after:
            self._put(state.next_seq, message, None, None, is_heard=True)
            self._step(state, after)
            return []
        found = self._hear(rules.limits)
        state = self.state or state
        if found.has_topics and is_full(state, message, rules.limits):
            state = self._weighed(state)
        message, heard = judged(state, message, rules.limits)
        decision = decide(state, message, rules, self._now_ms, heard)
        is_heard = heard is not None
        self._put(state.next_seq, message, decision.sealed_before, decision.sealed_after, is_heard=is_heard)
        after = decision.state
        if found.has_topics and after.open_messages:
            after = self._weighed(after, message)
        return self._emit(state, after, decision.cuts, found.rows)

    def _put(
        self, seq: int, message: Arrival, before: CloseReason | None, after: CloseReason | None, *, is_heard: bool
    ) -> None:
        """Write a message's row. `before`, `after`: where an episode was sealed."""
        says = message.is_continuation
        body = Body(
            message.json,
            message.tokens,
            message.offset,
            before,
            after,
            says is False,
            message.trace,
            says is True and is_heard,
            message.topic_model,
        )
        self._table[self._body_key(seq)] = encode_body(message.digest, body)

    def hear(self, limits: Episodes) -> None:
        """Let the topic model hear what it has not heard yet. Raises: RowUnreadable."""
        if self._hear(limits).has_topics and self.state:
            self.state = self._weighed(self.state)

    def _hear(self, limits: Episodes) -> HeardRows:
        """Seal where topics begin among what is unheard; what the last of them leaves is yet to be weighed."""
        state = self.state
        if state is None or not state.unheard:
            return HeardRows({})
        first = state.next_seq - state.unheard
        if first < state.open_first:
            raise RowUnreadable(problem="a conversation's row counts more messages than it has")
        found = [self._body_row(seq) for seq in range(first, state.next_seq)]
        said = [message_in(body) for _, body in found]
        unheard = [
            (body.is_continuation, body.topic_model, utterance_of(each.role == "user", each.content))
            for (_, body), each in zip(found, said, strict=True)
        ]
        topic, beginnings = topics_in(state, unheard, limits)
        for seq, model in beginnings:
            row, body = found[seq - first]
            body = body._replace(sealed_before="topic_shift", shifts=True, topic_model=model)
            row = self._table[self._body_key(seq)] = encode_body(digest_of(row), body)
            found[seq - first] = row, body
        open_first = beginnings[-1].seq if beginnings else state.open_first
        self.state = state._replace(topic=topic, unheard=0, open_first=open_first)
        return HeardRows(dict(enumerate(found, first)), bool(beginnings))

    def _weighed(self, state: State, last: Arrival | None = None) -> State:
        """The state with the counters of its open episode. `last`: its last message, where no row need be read."""
        end = state.next_seq - (last is not None)
        found: list[Arrival | Weight] = []
        for seq in range(state.open_first, end):
            _, body = self._body_row(seq)
            found.append(weight_of(body, message_in(body)))
        return weighed(state, found if last is None else [*found, last])

    def keep_id(self, message: Arrival) -> None:
        """Number a message whose body other threads keep: here only its id is."""
        state = self.state or State(message.tenant_id)
        self._table[self._body_key(state.next_seq)] = message.digest
        self._step(state, nothing_pending(state._replace(next_seq=state.next_seq + 1)))

    def hand_over(self, limits: Episodes) -> list[Arrival]:
        """Remove all that is pending, which another thread must take, and the overlap before it."""
        self._hear(limits)
        state = self.state
        if state is None:
            return []
        found = self._read(range(state.overlap_first, state.next_seq))
        self._strip(state.overlap_first, found)
        self._step(state, nothing_pending(state)._replace(since_ms=None, topic=b""))
        pending = found[state.first_pending - state.overlap_first :]
        return [message for message in (self._message(row, state) for row in pending) if message]

    def search(self, digest: bytes) -> list[int]:
        """Numbers of the messages with this id that are pending or overlap."""
        state = self.state
        if state is None:
            return []
        # where no ids are remembered, those of pending messages are looked at too
        looked_at = range(state.overlap_first, state.first_pending if self._window else state.next_seq)
        found = [seq for seq in looked_at if digest_of(self._row(self._body_key(seq))) == digest]
        row = self._table.get(rows.seen_key(self._prefix, digest))
        seq = None if row is None else rows.decode_seq(row)
        return [*found, seq] if seq is not None and state.first_pending <= seq < state.next_seq else found

    def amend(self, seq: int, amended: Amend, rules: EpisodeRules) -> list[ClosedEpisode]:
        """Change a message that `search` has found; returns the episodes that close as too much is pending.

        A message that is gone stays so.
        """
        self.hear(rules.limits)  # what was said counts, as in talk that nobody changes
        state = self.state
        row, body = self._body_row(seq)
        if state is None or body.is_gone:
            return []
        self._table[self._body_key(seq)] = encode_body(digest_of(row), amended(body))
        if seq < state.first_pending:
            return []
        pending = [self._message(row, state) for row in self._read(range(state.first_pending, state.next_seq))]
        after = recounted(state, pending)
        self._strip_to(after.overlap_first)
        cut = overfull(after, rules.limits)
        return self._emit(state, emitted(after, cut), [cut] if cut else [], {})

    def clear(self) -> None:
        """Remove all that is pending, and the overlap; ids, ordinals and clocks stay. Damaged rows go like others."""
        if self.state is None or self.state.is_stub:
            return
        self._strip_to(self.state.next_seq)
        self._step(self.state, nothing_pending(self.state)._replace(since_ms=None, topic=b"", unheard=0))

    def close(self, reason: CloseReason, limits: Episodes) -> list[ClosedEpisode]:
        """Emit everything pending, and return the episodes that it makes."""
        found = self._hear(limits).rows
        cut = self.state and close_all(self.state, reason)
        return self._emit(self.state, emitted(self.state, cut), [cut], found) if self.state and cut else []

    def forget(self, most: int) -> bool:
        """Remove the overlap and the ids, where nothing is pending; return whether only the stub is left.

        `most`: rows that go at once. Of more the overlap goes first, and the rest is left to the next call.
        """
        state = self.state
        if state is None:
            return True
        end = min(state.next_seq, self._first_row + most)
        for seq in range(self._first_row, end):
            self._forget(seq)
        if end < state.next_seq:
            self._first_row = end
            self._strip_to(state.next_seq)
            self.state = state._replace(window_first=end, overlap_first=state.next_seq)
            return False
        self._first_row = 0
        self.state = state.stub
        return True

    def tidy(self) -> None:
        """Delete the rows before the window: over time as many as were made."""
        if self.state is None:
            return
        for seq in range(self._first_row, self.state.window_first):
            self._forget(seq)
        self._first_row = self.state.window_first

    def _step(self, before: State, after: State) -> None:
        """Make `after` the state. The window moves with each step, so that batches make no difference to it."""
        silent_ms = 0 if after.pending_messages else self._now_ms
        first = window_first(before, after, self._window)
        if first != after.window_first or silent_ms != after.silent_ms:  # not so with most messages
            after = after._replace(window_first=first, silent_ms=silent_ms)
        self.state = after

    def _emit(
        self, before: State, state: State, cuts: Iterable[Cut], found: Mapping[int, BodyRow]
    ) -> list[ClosedEpisode]:
        """`found`: rows that were read."""
        episodes: list[ClosedEpisode] = []
        for cut in cuts:
            closed, state = self._split(state, cut, found)
            episodes += closed
        self._step(before, state)
        return episodes

    def _split(self, state: State, cut: Cut, found: Mapping[int, BodyRow]) -> tuple[list[ClosedEpisode], State]:
        first = state.overlap_first
        read = [found.get(seq) or self._body_row(seq) for seq in range(first, min(cut.end + 1, state.next_seq))]
        bodies = [body for _, body in read]
        episodes: list[ClosedEpisode] = []
        overlap = overlap_of(range(first, cut.first), bodies, first, self._overlap)
        for one in split(cut, bodies[cut.first - first :]):
            core = [body for body in bodies[one.first - first : one.end - first] if body.json]
            if not core:  # all of it was deleted
                continue
            ordinal = state.last_ordinal + len(episodes) + 1
            before = [bodies[seq - first] for seq in overlap]
            episodes.append(
                ClosedEpisode(self.scope, state.tenant_id, ordinal, one.reason, core, before, one.topic_model)
            )
            overlap = overlap_of(range(one.first, one.end), bodies, first, self._overlap)
        overlap_first = overlap[0] if overlap else cut.end
        self._strip(first, [row for row, _ in read[: overlap_first - first]])
        ordinal = state.last_ordinal + len(episodes)
        return episodes, state._replace(last_ordinal=ordinal, overlap_first=overlap_first)

    def _read(self, seqs: range) -> list[bytes]:
        return [self._row(self._body_key(seq)) for seq in seqs]

    def _strip(self, first: int, found: Iterable[bytes]) -> None:
        """Keep only the ids of messages that are emitted and no overlap. `found`: their rows, from `first` on."""
        for seq, row in enumerate(found, first):
            self._table[self._body_key(seq)] = digest_of(row)

    def _strip_to(self, end: int) -> None:
        """Keep only the ids of the messages from the overlap on, up to `end`."""
        for seq in range(self.state.overlap_first if self.state else end, end):
            row = self._table.get(self._body_key(seq))
            if row is not None:
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

    def _message(self, row: bytes, state: State) -> Arrival | None:
        """The pending message of a row; None if it was deleted."""
        body = body_in(row)
        if body.is_gone:
            return None
        return from_row(row, body, state, message_in(body))

    def _body_row(self, seq: int) -> BodyRow:
        """Raises: RowUnreadable."""
        row = self._row(self._body_key(seq))
        return row, body_in(row)

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


class Amended(NamedTuple):
    """Consequences of a changed message."""

    closed: list[ClosedEpisode]
    is_elsewhere: bool
    """It is, or may be, in an episode that was emitted."""
    episode: tuple[Scope, int] | None = None
    """Scope and ordinal of that episode, if the rows have them."""


class SegmentedConversation(Protocol):
    """Its methods go by its rules."""

    def take(self, message: Arrival) -> list[ClosedEpisode]:
        """Return the episodes that are closed, in order."""
        ...

    def amend(self, digest: bytes, amended: Amend) -> Amended: ...

    def hear(self) -> None:
        """Let the topic model hear all that is pending: other rules follow."""
        ...

    def clear(self) -> None:
        """Remove all messages; those that come later start over, and only their ordinals go on."""
        ...

    @property
    def is_pending(self) -> bool:
        """True while a message of any agent waits for its episode."""
        ...

    @property
    def pending_bytes(self) -> int:
        """Bytes of JSON of the pending messages: a change of one of them reads them all."""
        ...

    def flush(self, agent_id: str | None) -> Iterable[list[ClosedEpisode]]:
        """Close one thread after the other; one that is closed has nothing pending when the flush is repeated."""
        ...


class PerConversation:
    """One thread, whoever speaks."""

    def __init__(self, only: Thread, rules: EpisodeRules) -> None:
        self._only = only
        self._rules = rules

    def take(self, message: Arrival) -> list[ClosedEpisode]:
        self._only.remember(message.digest)
        return self._only.append(message, self._rules)

    def hear(self) -> None:
        self._only.hear(self._rules.limits)

    def flush(self, _: str | None) -> Iterable[list[ClosedEpisode]]:
        return [self._only.close("flush", self._rules.limits)]

    def amend(self, digest: bytes, amended: Amend) -> Amended:
        found, state = self._only.search(digest), self._only.state
        closed = [closed for seq in found for closed in self._only.amend(seq, amended, self._rules)]
        if state is None or not found:
            return Amended(closed, is_elsewhere=True)
        is_overlap = found[-1] < state.first_pending
        return Amended(closed, is_overlap, (self._only.scope, state.last_ordinal) if is_overlap else None)

    def clear(self) -> None:
        self._only.clear()

    @property
    def is_pending(self) -> bool:
        return self._only.is_pending

    @property
    def pending_bytes(self) -> int:
        return self._only.pending_bytes


class PerAgent:
    """A thread for each agent. `root` remembers ids and active agents, and never has anything pending itself.

    `thread_of`: opens the thread of an agent; that of NOBODY has what waits for the first one. An agent that is not
    active has nothing pending, so that the list of active agents is enough to find whatever is pending.
    """

    def __init__(
        self, root: Thread, thread_of: Callable[[Scope], Thread], max_agents: int, rules: EpisodeRules
    ) -> None:
        self._root = root
        self._thread_of = thread_of
        self._max_agents = max_agents
        self._rules = rules

    def take(self, message: Arrival) -> list[ClosedEpisode]:
        self._root.remember(message.digest)
        self._root.keep_id(message)
        before = self._active
        roster = activated(before, message.agent_id, self._max_agents)
        closed = self._close(roster.displaced, "idle")
        if message.agent_id and not before:
            closed += self._adopt(message.agent_id, message)
        for agent in recipients(before, message.agent_id):
            closed += self._thread(agent).append(message, self._rules)
        self._set_active(roster.active)
        return closed

    def hear(self) -> None:
        for agent in [*self._active, NOBODY]:
            self._thread(agent).hear(self._rules.limits)

    def flush(self, agent_id: str | None) -> Iterator[list[ClosedEpisode]]:
        """Close what is pending of the agent, which is not active any more; of all when none is named."""
        if not agent_id:
            for agent in recipients(self._active, None):
                yield self._close([agent], "flush")
        elif agent_id in self._active:
            self._set_active(deactivated(self._active, agent_id))
            yield self._close([agent_id], "flush")

    def amend(self, digest: bytes, amended: Amend) -> Amended:
        """Look at the agents that may have it pending; others may have it in an episode, or in one and as overlap."""
        closed: list[ClosedEpisode] = []
        for agent in [*self._active, NOBODY]:
            thread = self._thread(agent)
            closed += [closed for seq in thread.search(digest) for closed in thread.amend(seq, amended, self._rules)]
        return Amended(closed, is_elsewhere=True)

    def clear(self) -> None:
        for agent in [*self._active, NOBODY]:
            self._thread(agent).clear()
        self._set_active([])

    @property
    def is_pending(self) -> bool:
        return any(self._thread(agent).is_pending for agent in [*self._active, NOBODY])

    @property
    def pending_bytes(self) -> int:
        return sum(self._thread(agent).pending_bytes for agent in [*self._active, NOBODY])

    def _adopt(self, agent: str, message: Arrival) -> list[ClosedEpisode]:
        """Give the agent what waited, unless it waited too long: then a living worker has closed it before."""
        waited_for = self._thread(NOBODY)
        if waited_for.state is None or not waited_for.state.pending_messages:
            return []
        rules = self._rules
        if is_silent(waited_for.state, message, rules.limits):
            return waited_for.close("idle", rules.limits)
        thread = self._thread(agent)
        return [closed for waited in waited_for.hand_over(rules.limits) for closed in thread.append(waited, rules)]

    def _close(self, agents: Iterable[str], reason: CloseReason) -> list[ClosedEpisode]:
        return [closed for agent in agents for closed in self._thread(agent).close(reason, self._rules.limits)]

    def _thread(self, agent: str) -> Thread:
        return self._thread_of(Scope(self._root.scope.conversation_id, agent))

    @property
    def _active(self) -> list[str]:
        return (self._root.state and self._root.state.agents) or []

    def _set_active(self, agents: list[str]) -> None:
        if self._root.state:
            self._root.state = self._root.state._replace(agents=agents)
