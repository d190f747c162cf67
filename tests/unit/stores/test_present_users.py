"""To whom messages belong after assignments of their conversation."""

import pytest

from afterword.schemas import ConversationAssigned
from afterword.schemas.base import user_digest
from afterword.schemas.messages import MOST_MOVES, givers
from afterword.streams.stores.messages import PresentUsers
from tests.rows import with_rows


def after(*moves: str) -> PresentUsers:
    """Apply assignments like `2 guest>ann`."""
    users = PresentUsers()
    for move in moves:
        offset, _, both = move.partition(" ")
        giver, taker = both.split(">")
        event = ConversationAssigned(conversation_id="c1", from_user_id=giver, user_id=taker)
        users = users.moved(event, int(offset))
    return users


BACK = "2 guest>ann", "4 ann>guest"
RING = "2 ann>bob", "4 bob>cleo", "6 cleo>ann"
GIVEN_TWICE = "2 guest>bob", "4 bob>ann", "6 guest>bob"


@with_rows
def test_offset_of_a_message_decides_whose_it_is(moves: tuple[str, ...], user: str, offset: int, present: str) -> None:
    users = after(*moves)
    assert users.of(user, offset) == present
    assert users.since(present, offset) == present


@pytest.mark.parametrize("moves", [BACK, RING, GIVEN_TWICE, (*GIVEN_TWICE, "8 ann>cleo", "9 bob>ann")])
def test_message_is_brought_up_to_date_from_any_state(moves: tuple[str, ...]) -> None:
    users = after(*moves)
    for writer in ("guest", "ann", "bob", "cleo"):
        for done in range(len(moves) + 1):
            assert users.since(after(*moves[:done]).of(writer, 1), 1) == users.of(writer, 1)


def test_only_takers_who_kept_something_are_named() -> None:
    users = after("2 guest>ann", "4 guest>bob", "6 ann>cleo")
    assert set(users.names.values()) == {"bob", "cleo"}
    for user, earlier in (("cleo", {"guest", "ann"}), ("bob", {"guest"}), ("ann", set())):
        assert givers(users.moves, user_digest(user)) == set(map(user_digest, earlier))


def test_many_assignments_forget_the_first_with_its_names() -> None:
    users = after("0 guest>ann", *(f"{n} bob{n}>cleo" for n in range(1, MOST_MOVES + 1)))
    assert users.of("guest", 0) == "guest"
    assert set(users.names.values()) == {"cleo"}
