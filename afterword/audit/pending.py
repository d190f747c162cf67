"""Which messages wait in the segmenter's state, read from the changelogs of its two tables."""

from collections.abc import Iterator
from typing import NamedTuple

from aiokafka import ConsumerRecord

from afterword.audit.facts import Pending, Position, scope_name
from afterword.streams.runtime.bookmark import KEY as BOOKMARK
from afterword.streams.segmenter.bodies import decode_body
from afterword.streams.segmenter.keys import NOBODY, Scope, parse_key, parse_scope
from afterword.streams.segmenter.state import decode_state


class Body(NamedTuple):
    scope: Scope
    seq: int
    position: Position
    """In `messages`; a changelog has the partitions of its source."""


class State:
    """The last value of every row, and of it only where the message was.

    The bodies must be read before the conversations: a message then moves from pending to closed, never back.
    """

    def __init__(self) -> None:
        self._bodies: dict[bytes, Body] = {}
        self._first_pending: dict[Scope, int] = {}

    def take_body(self, record: ConsumerRecord) -> None:
        """A record of the changelog of messages. Raises: StateUnreadable."""
        if record.key == BOOKMARK:
            return
        key = parse_key(record.key)
        if key.seq is None:
            return
        body = decode_body(record.value) if record.value is not None else None
        if body is None:
            self._bodies.pop(record.key, None)
        else:
            self._bodies[record.key] = Body(key.scope, key.seq, Position(record.partition, body.offset))

    def take_conversation(self, record: ConsumerRecord) -> None:
        """A record of the changelog of conversations. Raises: StateUnreadable."""
        if record.value is not None and record.key != BOOKMARK:
            self._first_pending[parse_scope(record.key)] = decode_state(record.value).first_pending

    def pending(self) -> set[Pending]:
        """Messages that are in no episode yet. Rows of the overlap are kept too, and are in one."""
        return {Pending(b.position, scope_name(b.scope.conversation_id, b.scope.named_agent)) for b in self._waiting()}

    def handed_over(self) -> set[Position]:
        """Messages that may have gone to an agent since their row was read, which has them in rows written later."""
        waiting = set(self._waiting())
        return {b.position for b in self._bodies.values() if b.scope.agent_id == NOBODY and b not in waiting}

    def _waiting(self) -> Iterator[Body]:
        return (body for body in self._bodies.values() if body.seq >= self._first_pending.get(body.scope, 0))
