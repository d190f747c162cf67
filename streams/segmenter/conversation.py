"""One conversation within one batch: what the rules decide, done to its rows."""

from collections.abc import Iterable

from schemas import CloseReason
from streams.errors import StateUnreadable
from streams.segmenter import keys
from streams.segmenter.bodies import Body, decode_body, digest_of, encode_body
from streams.segmenter.episodes import Closed
from streams.segmenter.rows import Rows
from streams.segmenter.rules import (
    Emission,
    Incoming,
    Seals,
    close_all,
    decide,
    emitted,
    forgettable,
    is_duplicate,
    overlap_size,
    split,
)
from streams.segmenter.state import State
from streams.settings import Episodes


class Conversation:
    """`state`: None for a conversation that no message was taken from yet. `rows`: the table of messages."""

    def __init__(self, conversation_id: str, state: State | None, rows: Rows, limits: Episodes) -> None:
        self.id = conversation_id
        self.state = state
        self._rows = rows
        self._limits = limits
        self._prefix = keys.prefix(conversation_id)

    def belongs_to(self, tenant_id: str | None) -> bool:
        return self.state is None or self.state.tenant_id == tenant_id

    def has(self, digest: bytes) -> bool:
        """Whether a message with this id is a duplicate. `digest`: of the id."""
        row = self._rows.get(keys.seen_key(self._prefix, digest))
        seq = None if row is None else keys.decode_seq(row)
        return self.state is not None and is_duplicate(self.state, seq, self._limits)

    def append(
        self, m: Incoming, json: bytes, digest: bytes, *, offset: int, tenant_id: str | None, now_ms: int
    ) -> list[Closed]:
        """Takes a message that is no duplicate; the episodes that it closes, in order."""
        state = self.state or State(tenant_id)
        decision = decide(state, m, self._limits, now_ms)
        body = Body(json, m.tokens, offset, decision.sealed_before, decision.sealed_after)
        self._rows[self._body_key(state.next_seq)] = encode_body(digest, body)
        self._rows[keys.seen_key(self._prefix, digest)] = keys.encode_seq(state.next_seq)
        return self._emit(decision.state, decision.emissions)

    def close(self, reason: CloseReason) -> list[Closed]:
        """The episodes that everything pending makes."""
        emission = self.state and close_all(self.state, reason)
        return self._emit(emitted(self.state, emission), [emission]) if self.state and emission else []

    def tidy(self) -> None:
        """Deletes rows that are not needed any more: over time two for each message."""
        if self.state is None:
            return
        forgotten = forgettable(self.state, self._limits)
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
            episodes.append(Closed(self.id, state.tenant_id, ordinal, cut.reason, core, overlap))
            overlap = core[len(core) - overlap_size([len(b.json) + 1 for b in core], self._limits) :]
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
        seen = keys.seen_key(self._prefix, digest_of(self._row(key)))
        del self._rows[key]
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
