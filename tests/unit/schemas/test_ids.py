"""Two different things never share an id, whatever characters their names have."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas.base import conversation_of_scope, episode_id, event_id, message_key, point_id, row_id, scope_id

names = st.text(alphabet="ab%:/2F3A5", min_size=1, max_size=6) | st.text(min_size=1, max_size=8)
ordinals = st.integers(1, 30)


@given(names, names, st.none() | names | st.just(""), names, names, st.none() | names | st.just(""))
def test_message_keys_are_equal_only_for_equal_parts(
    a: str, b: str, tenant: str | None, c: str, d: str, other: str | None
) -> None:
    assert (message_key(a, b, tenant) == message_key(c, d, other)) == ((a, b, tenant) == (c, d, other))


@given(names, ordinals, st.none() | names, names, ordinals, st.none() | names)
def test_episode_ids_are_equal_only_for_equal_scopes(
    a: str, m: int, agent: str | None, b: str, n: int, other: str | None
) -> None:
    assert (episode_id(a, m, agent) == episode_id(b, n, other)) == ((a, m, agent) == (b, n, other))


@given(names, st.none() | names, names, st.none() | names, ordinals)
def test_scopes_are_equal_only_for_equal_parts(a: str, agent: str | None, b: str, other: str | None, n: int) -> None:
    same = (a, agent) == (b, other)
    assert (scope_id(a, agent) == scope_id(b, other)) == same
    assert (row_id(scope_id(a, agent), n) == row_id(scope_id(b, other), n)) == same


def test_separators_inside_a_part_are_percent_encoded() -> None:
    assert episode_id("a:b/c%d", 3) == "a%3Ab%2Fc%25d:3"
    assert episode_id("a", 3, "x:y") == "a/x%3Ay:3"
    assert message_key("a:b", "c") == "a%3Ab:c"
    assert message_key("a:b", "c", "t/1") == "a%3Ab:c:t%2F1"
    assert row_id("a:b", 2) == "a%3Ab:2"
    assert row_id(scope_id("a/b"), 2) == "a%252Fb:2"
    assert event_id("a:3", 1) == "a:3:1"


def test_point_of_an_episode_never_moves() -> None:
    assert point_id("a:1") == point_id("a:1") != point_id("a:2")
    assert UUID(point_id("a:1")).version == 5
    assert point_id("a:1") == "65190ab6-7ab0-51ba-b195-029f2d82a497"


@given(st.text(), st.none() | st.text())
def test_scope_names_its_conversation_and_agent(conversation: str, agent: str | None) -> None:
    assert conversation_of_scope(scope_id(conversation, agent)) == (conversation, agent)
