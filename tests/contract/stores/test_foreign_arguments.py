"""An argument that MongoDB would take for an operator finds nothing in any store."""

from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from inspect import isasyncgen
from typing import Any, cast

import pytest

from afterword.streams.stores.episodes import EpisodeQueries, EpisodeTotals
from afterword.streams.stores.index import EpisodeIndex, Query
from afterword.streams.stores.messages import ArchivedMessage, Counted, MessageArchive, PresentUsers, Selection
from tests.samples import NOON, a_conversation, a_message, a_row, a_stored_episode, a_summary
from tests.vectors import put

OPERATORS: Sequence[Any] = ({"$ne": None}, {"$gt": ""}, {"$regex": ".*"}, {"$in": ["c1:1", "c1"]}, {"$exists": True})
NOTHING: Sequence[object] = (None, [], {}, set(), 0, EpisodeTotals(), Counted(), PresentUsers())

Call = Callable[[Any, Any], Awaitable[object] | AsyncIterable[object]]
"""Calls a store with an operator as one argument."""

EPISODES: dict[str, Call] = {
    "lookup": lambda store, x: store.lookup([x]),
    "holding": lambda store, x: store.holding(x, "m1"),
    "holding message": lambda store, x: store.holding("c1", x),
    "page": lambda store, x: store.page(x, 5),
    "page limit": lambda store, x: store.page(None, x),
    "page of conversation": lambda store, x: store.page(None, 5, x),
    "latest": lambda store, x: store.latest(x, 5),
    "latest limit": lambda store, x: store.latest("c1", x),
    "latest before": lambda store, x: store.latest("c1", 5, before=x),
    "latest of agent": lambda store, x: store.latest("c1", 5, agent_id=x),
    "latest_row": lambda store, x: store.latest_row(x),
    "rows": lambda store, x: store.rows(x),
    "rows_at_ends": lambda store, x: store.rows_at_ends(x, 7),
    "rows ordinal": lambda store, x: store.rows("c1", x),
    "conversation": lambda store, x: store.conversation(x),
    "conversations_at": lambda store, x: store.conversations_at([x]),
    "conversations": lambda store, x: store.conversations(x, None, 5),
    "conversations tenant": lambda store, x: store.conversations("u1", x, 5),
    "totals": lambda store, x: store.totals(x),
    "totals of agent": lambda store, x: store.totals("c1", x),
    "conversations_of": lambda store, x: store.conversations_of(x, None, None, 5),
    "conversations_of tenant": lambda store, x: store.conversations_of("u1", x, None, 5),
    "conversations_of after": lambda store, x: store.conversations_of("u1", None, x, 5),
    "facts_of": lambda store, x: store.facts_of(x, None, 5),
    "facts_of tenant": lambda store, x: store.facts_of("u1", x, 5),
    "users tenant": lambda store, x: store.users(x, "", None, 5),
    "users prefix": lambda store, x: store.users(None, x, None, 5),
    "users before": lambda store, x: store.users(None, "", (NOON, x), 5),
    "expired": lambda store, x: store.expired(x, 5),
    "due": lambda store, x: store.due(x, 5),
    "usage": lambda store, x: store.usage(x),
}
MESSAGES: dict[str, Call] = {
    "newest": lambda store, x: store.newest(Selection(x, None)),
    "newest of tenant": lambda store, x: store.newest(Selection("c1", x)),
    "newest of agent": lambda store, x: store.newest(Selection("c1", None, x)),
    "newest of user": lambda store, x: store.newest(Selection("c1", None, user_id=x)),
    "newest before": lambda store, x: store.newest(Selection("c1", None, before=x)),
    "conversations_of": lambda store, x: store.conversations_of(x, None, None, 5),
    "conversations_of tenant": lambda store, x: store.conversations_of("u1", x, None, 5),
    "conversations_of after": lambda store, x: store.conversations_of("u1", None, x, 5),
    "count": lambda store, x: store.count(Selection(x, None)),
    "owners": lambda store, x: store.owners([x]),
    "present_users": lambda store, x: store.present_users(x, None),
    "get_many": lambda store, x: store.get_many([x]),
    "states": lambda store, x: store.states([x]),
    "texts": lambda store, x: store.texts([x], 10),
    "pending": lambda store, x: store.pending(x, None, 5, 10),
    "pending of tenant": lambda store, x: store.pending("u1", x, 5, 10),
    "expire": lambda store, x: store.expire(x, 5),
    "forget_user": lambda store, x: store.forget_user(x, None),
}
INDEX: dict[str, Call] = {
    "remove": lambda store, x: store.remove(x, 9),
    "forget": lambda store, x: store.forget([x]),
    "revisions": lambda store, x: store.revisions([x]),
}


async def found(store: object, calls: Mapping[str, Call]) -> list[str]:
    """Return the calls that found something: call, operator and result."""
    return [
        f"{name} of {operator}: {outcome}"
        for name, call in calls.items()
        for operator in OPERATORS
        if (outcome := await outcome_of(call, store, operator)) not in NOTHING
    ]


async def outcome_of(call: Call, store: object, operator: object) -> object:
    try:
        made = call(store, operator)
        return [item async for item in made] if isasyncgen(made) else await cast("Awaitable[object]", made)
    except (TypeError, AttributeError):
        return None


async def test_no_episode_method_accepts_an_operator(episodes: EpisodeQueries) -> None:
    await episodes.put(a_stored_episode(tenant_id=None), None)
    await episodes.put_conversation(a_conversation(tenant_id=None), None)
    await episodes.put_row(a_row(), None)
    assert await found(episodes, EPISODES) == []


async def test_no_archive_method_accepts_an_operator(messages: MessageArchive) -> None:
    sent = ArchivedMessage(a_message(agent_id="a1"), 0, 0)
    await messages.put_many([sent])
    assert await found(messages, MESSAGES) == []
    assert await messages.get_many(["c1:m1"]) == {"c1:m1": sent}


@pytest.mark.filterwarnings("ignore:Payload indexes have no effect:UserWarning")
async def test_no_index_method_accepts_an_operator(index: EpisodeIndex) -> None:
    await put(index, a_summary(), "The PIN is 4711.")
    assert await found(index, INDEX) == []


@pytest.mark.parametrize("field", ["text", "user_id", "tenant_id", "agent_id", "conversation_id"])
@pytest.mark.parametrize("foreign", [*OPERATORS, [], ["c1"], 7.5], ids=str)
def test_no_search_accepts_an_operator(field: str, foreign: object) -> None:
    given: dict[str, Any] = {"text": "pin", "user_id": "u1", "tenant_id": "t1", field: foreign}
    with pytest.raises(ValueError, match=field):
        Query(**given)
