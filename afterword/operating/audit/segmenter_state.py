"""The segmenter's state, read from the changelogs of its two tables."""

from collections.abc import Iterator
from typing import NamedTuple

from aiokafka import ConsumerRecord

from afterword.operating.audit.evidence import Damage, Pending, scope_name
from afterword.streams.errors import RowUnreadable
from afterword.streams.runtime.changelog import BOOKMARK_KEY
from afterword.streams.segmenter.state import (
    CONVERSATIONS,
    MESSAGES,
    NOBODY,
    Scope,
    decode_body,
    decode_state,
    parse_key,
    parse_scope,
)


class Body(NamedTuple):
    """A message's row, reduced to its position."""

    scope: Scope
    seq: int
    partition: int
    """Partition on `messages`. A changelog has the partitions of its source."""
    offset: int


class SegmenterState:
    """What is waiting in the segmenter, and which rows are damaged.

    The messages must be read before the conversations, so that a message can only move from pending to closed.
    """

    def __init__(self) -> None:
        self._bodies: dict[bytes, Body] = {}
        self._first_pending: dict[Scope, int] = {}
        self._damage: dict[tuple[str, bytes], Damage] = {}

    @property
    def damaged(self) -> list[Damage]:
        """The rows that are currently unreadable."""
        return list(self._damage.values())

    def take(self, table: str, record: ConsumerRecord) -> None:
        """Apply a record of a table's changelog. Raises: StateUnreadable if a later release wrote it."""
        if record.key == BOOKMARK_KEY:
            return
        self._damage.pop((table, record.key), None)
        if table == MESSAGES:
            self._bodies.pop(record.key, None)
        try:
            if record.value is not None:
                self._read(table, record)
        except RowUnreadable as error:
            conversation = conversation_of(table, record.key)
            self._damage[table, record.key] = Damage(conversation, record.partition, error.problem)

    def rows(self) -> Iterator[Pending | Damage]:
        """Yield the rows that an audit keeps, except for the overlap, which is in an episode already."""
        damaged = {damage.conversation for damage in self._damage.values()}
        yield from self._damage.values()
        for body in self._bodies.values():
            scope = body.scope
            waits = scope.conversation_id not in damaged and body.seq >= self._first_pending.get(scope, 0)
            if waits or scope.agent_id == NOBODY:  # it may have moved to an agent's rows since its own row was read
                names = scope_name(scope.conversation_id, scope.named_agent), scope_name(scope.conversation_id)
                yield Pending(body.partition, body.offset, *names, handed_over=not waits)

    def _read(self, table: str, record: ConsumerRecord) -> None:
        if table == CONVERSATIONS:
            self._first_pending[parse_scope(record.key)] = decode_state(record.value).first_pending
            return
        key = parse_key(record.key)
        if key.seq is not None and (body := decode_body(record.value)) and not body.is_gone:
            self._bodies[record.key] = Body(key.scope, key.seq, record.partition, body.offset)


def conversation_of(table: str, key: bytes) -> str | None:
    """Return the conversation named by a row's key, or None."""
    try:
        return (parse_scope(key) if table == CONVERSATIONS else parse_key(key).scope).conversation_id
    except RowUnreadable:
        return None
