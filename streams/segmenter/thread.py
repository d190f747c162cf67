"""Messages that are numbered together, within one batch: what the rules decide, done to their rows."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from afterword.schemas import CloseReason
from afterword.streams.errors import StateUnreadable
from afterword.streams.segmenter import keys
from afterword.streams.segmenter.bodies import Body, decode_body, digest_of, encode_body
from afterword.streams.segmenter.cuts import Emission, Seals, overlap_size, split
from afterword.streams.segmenter.episodes import Closed
from afterword.streams.segmenter.facts import facts_of_row
from afterword.streams.segmenter.rows import Rows
from afterword.streams.segmenter.rules import Incoming, Rules, close_all, decide, emitted, forgettable, is_duplicate
from afterword.streams.segmenter.state import State


class Taken(NamedTuple):
    """A message that is no duplicate, on its way into a thread."""

    facts: Incoming
    json: bytes
    """As its episode will carry it."""
    digest: bytes
    """Of its id."""
    offset: int
    """Where it was read."""
    trace: bytes = b""
    """As in its row."""


class Thread:
    """A conversation, or an agent's part of one.

    `state`: None when no message was taken yet. `rows`: the table of messages. `overlap`: messages of an episode that
    the next one carries. `window`: how many of its last messages' ids it remembers.
    """

    def __init__(self, scope: keys.Scope, state: State | None, rows: Rows, overlap: int, window: int) -> None:
        self.scope = scope
        self.state = state
        self._rows = rows
        self._overlap = overlap
        self._window = window
        self._prefix = keys.prefix(scope)

    def has(self, digest: bytes) -> bool:
        """Whether a message with this id is a duplicate. `digest`: of the id."""
        row = self._rows.get(keys.seen_key(self._prefix, digest))
        seq = None if row is None else keys.decode_seq(row)
        return self.state is not None and is_duplicate(self.state, seq, self._window)

    def remember(self, digest: bytes) -> None:
        """The next message is the one with this id."""
        seq = self.state.next_seq if self.state else 0
        self._rows[keys.seen_key(self._prefix, digest)] = keys.encode_seq(seq)

    def append(self, message: Taken, rules: Rules, tenant_id: str | None, now_ms: int) -> list[Closed]:
        """The episodes that the message closes, in order. `now_ms`: wall clock, milliseconds since 1970."""
        state = self.state or State(tenant_id)
        decision = decide(state, message.facts, rules, now_ms)
        seals = decision.sealed_before, decision.sealed_after
        shifts = message.facts.is_continuation is False
        body = Body(message.json, message.facts.tokens, message.offset, *seals, shifts, message.trace)
        self._rows[self._body_key(state.next_seq)] = encode_body(message.digest, body)
        return self._emit(decision.state, decision.emissions)

    def pass_on(self, digest: bytes, tenant_id: str | None) -> None:
        """Counts a message that other threads take: here only its id is kept."""
        state = self.state or State(tenant_id)
        self._rows[self._body_key(state.next_seq)] = digest
        self.state = _nothing_pending(state._replace(next_seq=state.next_seq + 1))

    def hand_over(self) -> Iterator[Taken]:
        """All that is pending, which another thread must take; here it is gone, and so is the overlap before it."""
        state = self.state
        if state is None:
            return
        for seq in range(state.first_pending, state.next_seq):
            row, body = self._row(self._body_key(seq)), self._body(seq)
            yield Taken(facts_of_row(body, state.last_record_ms), body.json, digest_of(row), body.offset, body.trace)
        self._strip(range(state.overlap_first, state.next_seq))
        self.state = _nothing_pending(state)._replace(since_ms=None)

    def close(self, reason: CloseReason) -> list[Closed]:
        """The episodes that everything pending makes."""
        emission = self.state and close_all(self.state, reason)
        return self._emit(emitted(self.state, emission), [emission]) if self.state and emission else []

    def tidy(self) -> None:
        """Deletes rows that are not needed any more: over time as many as were made."""
        if self.state is None:
            return
        forgotten = forgettable(self.state, self._window)
        for seq in forgotten:
            self._forget(seq)
        if forgotten:
            self.state = self.state._replace(window_first=forgotten.stop)

    def _emit(self, state: State, emissions: Iterable[Emission]) -> list[Closed]:
        episodes: list[Closed] = []
        for emission in emissions:
            done, state = self._split(state, emission)
            episodes += done
        self.state = state
        return episodes

    def _split(self, state: State, emission: Emission) -> tuple[list[Closed], State]:
        first = state.overlap_first
        bodies = [self._body(seq) for seq in range(first, min(emission.end + 1, state.next_seq))]
        seals = [Seals(b.sealed_before, b.sealed_after) for b in bodies[emission.first - first :]]
        episodes = []
        overlap = bodies[: emission.first - first]
        for ordinal, cut in enumerate(split(emission, seals), state.last_ordinal + 1):
            core = bodies[cut.first - first : cut.end - first]
            episodes.append(Closed(self.scope, state.tenant_id, ordinal, cut.reason, core, overlap))
            overlap = core[len(core) - overlap_size([len(b.json) + 1 for b in core], self._overlap) :]
        self._strip(range(first, emission.end - len(overlap)))
        ordinal = state.last_ordinal + len(episodes)
        return episodes, state._replace(last_ordinal=ordinal, overlap_first=emission.end - len(overlap))

    def _strip(self, seqs: range) -> None:
        """Emitted, and no overlap: of the message only its id is still needed."""
        for seq in seqs:
            key = self._body_key(seq)
            self._rows[key] = digest_of(self._row(key))

    def _forget(self, seq: int) -> None:
        key = self._body_key(seq)
        digest = digest_of(self._row(key))
        del self._rows[key]
        if not self._window:  # ids are remembered elsewhere
            return
        seen = keys.seen_key(self._prefix, digest)
        # past the window the id may have been taken again, and the row belongs to that message now
        if self._rows.get(seen) == keys.encode_seq(seq):
            del self._rows[seen]

    def _body(self, seq: int) -> Body:
        body = decode_body(self._row(self._body_key(seq)))
        if body is None:
            raise StateUnreadable(problem="a message that is pending has no body")
        return body

    def _row(self, key: bytes) -> bytes:
        row = self._rows.get(key)
        if row is None:
            raise StateUnreadable(problem="a message's row is missing")
        return row

    def _body_key(self, seq: int) -> bytes:
        return keys.body_key(self._prefix, seq)


def _nothing_pending(state: State) -> State:
    """As after an emission of everything, but for the ordinal, and without an overlap for the next episode."""
    end = state.next_seq
    state = emitted(state, Emission(state.first_pending, end, "flush"))
    return state._replace(overlap_first=end)
