from hypothesis import given
from hypothesis import strategies as st

from afterword.interleaving import Interleaving
from afterword.lines import Outgoing


def records(*conversations: str) -> list[Outgoing]:
    return [Outgoing(c, str(n).encode(), []) for n, c in enumerate(conversations)]


def order(width: int, *lines: list[Outgoing]) -> list[Outgoing]:
    interleaving = Interleaving(width)
    return [r for line in lines for r in interleaving.add(line)] + list(interleaving.rest())


def test_a_width_of_one_keeps_the_order_of_the_input():
    lines = records("a", "b", "a", "c")
    assert order(1, lines) == lines


def test_conversations_take_turns():
    assert "".join(r.conversation_id for r in order(2, records(*"aaabbbcc"))) == "abababcc"


def test_a_freed_place_goes_to_the_next_conversation():
    assert "".join(r.conversation_id for r in order(2, records(*"abbbbcc"))) == "abbcbcb"


@given(st.text("abcdef", max_size=60), st.integers(1, 8))
def test_nothing_is_lost_and_each_conversation_keeps_its_order(conversations, width):
    before = records(*conversations)
    after = order(width, before)
    assert sorted(after) == sorted(before)
    for name in set(conversations):
        assert [r for r in after if r.conversation_id == name] == [r for r in before if r.conversation_id == name]
