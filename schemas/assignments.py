"""To whom a conversation's messages belong after assignments. Users are digests, which erasures need not remove."""

from collections.abc import Sequence
from typing import NamedTuple

from afterword.schemas.ids import user_digest
from afterword.schemas.messages import ConversationAssigned

MOST_MOVES = 100
"""A conversation remembers this many assignments."""


class Move(NamedTuple):
    """An assignment: its log offset, and the digests of both users."""

    offset: int
    giver: str
    taker: str


def moved(moves: Sequence[Move], event: ConversationAssigned, offset: int) -> tuple[Move, ...]:
    """Return the assignments after one more."""
    return (*moves, Move(offset, user_digest(event.from_user_id), user_digest(event.user_id)))[-MOST_MOVES:]


def owner(moves: Sequence[Move], writer: str, offset: int) -> str:
    """Return the user to whom a message belongs now that `writer` sent at this log offset."""
    present = writer
    for move in moves:
        is_before = move.offset < offset
        if move.giver == present or (is_before and move.giver == writer):
            present = move.taker
        elif is_before and move.taker == writer:
            present = writer
    return present


def givers(moves: Sequence[Move], user: str) -> set[str]:
    """Return the users whose messages, at least some, were assigned to this user and still belong to them."""
    return {move.giver for n, move in enumerate(moves) if owner(moves[n:], move.giver, -1) == user} - {user}
