"""Which messages wait in the segmenter's state, read from the changelogs of its two tables."""

from typing import NamedTuple

from aiokafka import ConsumerRecord

from afterword.audit.facts import Position
from streams.runtime.bookmark import KEY as BOOKMARK
from streams.segmenter.bodies import decode_body
from streams.segmenter.keys import parse_key
from streams.segmenter.state import decode_state


class Body(NamedTuple):
    conversation_id: str
    seq: int
    position: Position
    """In `messages`; a changelog has the partitions of its source."""


class Pending:
    """The last value of every row, and of it only where the message was.

    The bodies must be read before the conversations: a message then moves from pending to closed, never back.
    """

    def __init__(self) -> None:
        self._bodies: dict[bytes, Body] = {}
        self._first_pending: dict[str, int] = {}

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
            self._bodies[record.key] = Body(key.conversation_id, key.seq, Position(record.partition, body.offset))

    def take_conversation(self, record: ConsumerRecord) -> None:
        """A record of the changelog of conversations. Raises: StateUnreadable."""
        if record.value is not None and record.key != BOOKMARK:
            self._first_pending[record.key.decode()] = decode_state(record.value).first_pending

    def positions(self) -> set[Position]:
        """Messages that are in no episode yet. Rows of the overlap are kept too, and are in one."""
        return {b.position for b in self._bodies.values() if b.seq >= self._first_pending.get(b.conversation_id, 0)}
