"""An argument that MongoDB would take for an operator is refused by every method of every store, and finds nothing."""

from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from dataclasses import replace
from inspect import isasyncgen
from typing import Any, cast

import pytest

from afterword.streams.stores.bookkeeping import Budgets
from afterword.streams.stores.episodes import EpisodeQueries
from afterword.streams.stores.index import EpisodeIndex, Query
from afterword.streams.stores.messages import ArchivedMessage, MessageArchive, Selection
from tests.indexing import put
from tests.samples import NOON, a_conversation, a_message, a_row, a_stored_episode, a_summary

FOREIGN: Sequence[Any] = (
    {"$ne": None},
    {"$gt": ""},
    {"$regex": ".*"},
    {"$in": ["c1:1", "c1"]},
    [],
    ["c1"],
    b"c1",
    7.5,
)
NOT_EVEN_NONE: Sequence[Any] = (*FOREIGN, None)
ROW = a_row(content="The PIN is 4711.")

Call = Callable[[Any, Any], Awaitable[object] | AsyncIterable[object]]
"""A call of a store with a foreign value."""

EPISODES: dict[str, tuple[Call, Sequence[Any]]] = {
    "lookup": (lambda store, x: store.lookup(["c1:1", x]), NOT_EVEN_NONE),
    "versions": (lambda store, x: store.versions(["c1:1", x]), NOT_EVEN_NONE),
    "holding": (lambda store, x: store.holding(x, "m1"), NOT_EVEN_NONE),
    "holding message": (lambda store, x: store.holding("c1", x), NOT_EVEN_NONE),
    "page": (lambda store, x: store.page(x, 5), FOREIGN),
    "page limit": (lambda store, x: store.page(None, x), NOT_EVEN_NONE),
    "page of conversation": (lambda store, x: store.page(None, 5, x), FOREIGN),
    "latest": (lambda store, x: store.latest(x, 5), NOT_EVEN_NONE),
    "latest limit": (lambda store, x: store.latest("c1", x), NOT_EVEN_NONE),
    "latest before": (lambda store, x: store.latest("c1", 5, before=x), FOREIGN),
    "latest of agent": (lambda store, x: store.latest("c1", 5, agent_id=x), FOREIGN),
    "latest_row": (lambda store, x: store.latest_row(x), NOT_EVEN_NONE),
    "rows": (lambda store, x: store.rows(x), NOT_EVEN_NONE),
    "rows ordinal": (lambda store, x: store.rows("c1", x), NOT_EVEN_NONE),
    "put_row": (lambda store, x: store.put_row(replace(ROW, conversation_id=x), None), NOT_EVEN_NONE),
    "conversation": (lambda store, x: store.conversation(x), NOT_EVEN_NONE),
    "totals": (lambda store, x: store.totals(x), NOT_EVEN_NONE),
    "totals of agent": (lambda store, x: store.totals("c1", x), FOREIGN),
    "conversations_of": (lambda store, x: store.conversations_of(x, None, None, 5), NOT_EVEN_NONE),
    "conversations_of tenant": (lambda store, x: store.conversations_of("u1", x, None, 5), FOREIGN),
    "conversations_of after": (lambda store, x: store.conversations_of("u1", None, x, 5), FOREIGN),
    "conversations_of limit": (lambda store, x: store.conversations_of("u1", None, None, x), NOT_EVEN_NONE),
    "facts_of": (lambda store, x: store.facts_of(x, None, 5), NOT_EVEN_NONE),
    "facts_of tenant": (lambda store, x: store.facts_of("u1", x, 5), FOREIGN),
    "facts_of limit": (lambda store, x: store.facts_of("u1", None, x), NOT_EVEN_NONE),
    "users tenant": (lambda store, x: store.users(x, "", None, 5), FOREIGN),
    "users prefix": (lambda store, x: store.users(None, x, None, 5), NOT_EVEN_NONE),
    "users after": (lambda store, x: store.users(None, "", x, 5), FOREIGN),
    "users limit": (lambda store, x: store.users(None, "", None, x), NOT_EVEN_NONE),
    "users_of": (lambda store, x: store.users_of(x), NOT_EVEN_NONE),
    "expired": (lambda store, x: store.expired(x, 5), NOT_EVEN_NONE),
    "expired limit": (lambda store, x: store.expired(NOON, x), NOT_EVEN_NONE),
    "due": (lambda store, x: store.due(x, 5), NOT_EVEN_NONE),
    "due limit": (lambda store, x: store.due(NOON, x), NOT_EVEN_NONE),
    "taken_part_in": (lambda store, x: store.taken_part_in([x], "u1", None), NOT_EVEN_NONE),
    "taken_part_in user": (lambda store, x: store.taken_part_in(["c1"], x, None), NOT_EVEN_NONE),
    "taken_part_in tenant": (lambda store, x: store.taken_part_in(["c1"], "u1", x), FOREIGN),
    "count": (lambda store, x: store.count(x), FOREIGN),
}
MESSAGES: dict[str, tuple[Call, Sequence[Any]]] = {
    "assign": (lambda store, x: store.assign(x, [ArchivedMessage(a_message(), 0, 0)]), NOT_EVEN_NONE),
    "newest": (lambda store, x: store.newest(Selection(x, None)), NOT_EVEN_NONE),
    "newest of tenant": (lambda store, x: store.newest(Selection("c1", x)), FOREIGN),
    "newest of agent": (lambda store, x: store.newest(Selection("c1", None, x)), FOREIGN),
    "conversations_of": (lambda store, x: store.conversations_of(x, None, None, 5), NOT_EVEN_NONE),
    "conversations_of tenant": (lambda store, x: store.conversations_of("u1", x, None, 5), FOREIGN),
    "conversations_of after": (lambda store, x: store.conversations_of("u1", None, x, 5), FOREIGN),
    "conversations_of limit": (lambda store, x: store.conversations_of("u1", None, None, x), NOT_EVEN_NONE),
    "newest of user": (lambda store, x: store.newest(Selection("c1", None, user_id=x)), FOREIGN),
    "count": (lambda store, x: store.count(Selection(x, None)), NOT_EVEN_NONE),
    "authors": (lambda store, x: store.authors([x], "u1", None), NOT_EVEN_NONE),
    "authors user": (lambda store, x: store.authors(["c1"], x, None), NOT_EVEN_NONE),
    "authors tenant": (lambda store, x: store.authors(["c1"], "u1", x), FOREIGN),
    "first": (lambda store, x: store.first(x), NOT_EVEN_NONE),
    "get_many": (lambda store, x: store.get_many(["c1:m1", x]), NOT_EVEN_NONE),
    "texts": (lambda store, x: store.texts(["c1:m1", x], 10), NOT_EVEN_NONE),
    "expire": (lambda store, x: store.expire(x, 5), NOT_EVEN_NONE),
    "expire limit": (lambda store, x: store.expire(NOON, x), NOT_EVEN_NONE),
    "get_many of one text": (lambda store, _: store.get_many("c1:m1"), [None]),
}
BUDGETS: dict[str, tuple[Call, Sequence[Any]]] = {
    "take": (lambda store, x: store.take(x, 1, 10, NOON), NOT_EVEN_NONE),
    "take amount": (lambda store, x: store.take("k", x, 10, NOON), NOT_EVEN_NONE),
    "take limit": (lambda store, x: store.take("k", 1, x, NOON), NOT_EVEN_NONE),
    "correct": (lambda store, x: store.correct(x, 1), NOT_EVEN_NONE),
    "correct amount": (lambda store, x: store.correct("k", x), NOT_EVEN_NONE),
}
INDEX: dict[str, tuple[Call, Sequence[Any]]] = {
    "revisions": (lambda store, x: store.revisions([x]), NOT_EVEN_NONE),
}


async def refused(store: object, calls: dict[str, tuple[Call, Sequence[Any]]]) -> list[str]:
    """Calls that were not refused: the call, the value and the outcome."""
    return [
        f"{name} of {value}: {outcome}"
        for name, (call, values) in calls.items()
        for value in values
        if (outcome := await outcome_of(call, store, value)) is not TypeError
    ]


async def outcome_of(call: Call, store: object, value: object) -> object:
    try:
        made = call(store, value)
        return [item async for item in made] if isasyncgen(made) else await cast("Awaitable[object]", made)
    except TypeError as error:
        return TypeError if "must be" in str(error) else error  # not one of Python's own, by chance


async def test_no_method_of_the_episodes_takes_an_operator(episodes: EpisodeQueries) -> None:
    await episodes.put(a_stored_episode(), None)
    await episodes.put_conversation(a_conversation(), None)
    await episodes.put_row(ROW, None)
    assert await refused(episodes, EPISODES) == []
    assert await episodes.latest_row("c1") == ROW


async def test_no_method_of_the_archive_takes_an_operator(messages: MessageArchive) -> None:
    await messages.put_many([ArchivedMessage(a_message(), 0, 0)])
    assert await refused(messages, MESSAGES) == []
    [ref] = [ref async for ref in messages.all_messages()]
    assert ref.episode_id is None


async def test_no_method_of_the_budgets_takes_an_operator(budgets: Budgets) -> None:
    await budgets.take("k", 1, 10, NOON)
    assert await refused(budgets, BUDGETS) == []


@pytest.mark.filterwarnings("ignore:Payload indexes have no effect:UserWarning")
async def test_no_method_of_the_index_takes_an_operator(index: EpisodeIndex) -> None:
    await put(index, a_summary(), "The PIN is 4711.")
    assert await refused(index, INDEX) == []


@pytest.mark.parametrize("field", ["text", "user_id", "tenant_id", "agent_id", "conversation_id"])
@pytest.mark.parametrize("foreign", [value for value in FOREIGN if not isinstance(value, bytes)], ids=str)
def test_no_search_is_made_of_an_operator(field: str, foreign: object) -> None:
    given: dict[str, Any] = {"text": "pin", "user_id": "u1", "tenant_id": "t1", field: foreign}
    with pytest.raises(ValueError, match=field):
        Query(**given)
