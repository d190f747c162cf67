import asyncio
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas.ids import message_key
from afterword.streams.stores.documents import original_names, safe_names
from afterword.streams.stores.messages import ArchivedMessage, Counted, MessageArchive, MessageRef, Selection
from afterword.streams.tokens import count_tokens
from tests.samples import NOON, a_message

HOSTILE_METADATA = {
    "$where": "sleep(1)",
    "a.b": {"$ref": "users", "$id": 1, "$db": "x"},
    "": {"": [{"%24": 1, "$": 2, "%": 3}]},
    "numbers": [2**63 - 1, -(2**63), 0.5, True, None],
    "_id": "mine",
    "💬": "text",
}


def archived(message_id: str = "m1", offset: int = 0, **fields: Any) -> ArchivedMessage:
    return ArchivedMessage(a_message(message_id, **fields), partition=0, offset=offset)


async def newest(messages: MessageArchive, selection: Selection) -> list[str]:
    return [found.message.id async for found in messages.newest(selection)]


async def refs(messages: MessageArchive) -> dict[str, MessageRef]:
    return {ref.key: ref async for ref in messages.all_messages()}


async def test_a_message_comes_back_equal_in_every_field(messages: MessageArchive) -> None:
    message = archived(metadata=HOSTILE_METADATA, flows=("booking",), sentiment=-0.5, is_continuation=False)
    await messages.put_many([message])
    assert await messages.get_many(["c1:m1"]) == {"c1:m1": message}
    assert [found async for found in messages.newest(Selection("c1", None))] == [message]


async def test_what_was_archived_first_stays(messages: MessageArchive) -> None:
    first = archived(offset=0)
    await messages.put_many([first, archived(offset=1, content="Changed in the same batch.")])
    await messages.put_many([archived(offset=2, content="Changed."), archived("m2", offset=3)])
    assert (await messages.get_many(["c1:m1"]))["c1:m1"] == first
    assert (await refs(messages)).keys() == {"c1:m1", "c1:m2"}


@pytest.mark.parametrize("archiver_first", [True, False])
async def test_the_order_of_archiver_and_summarizer_does_not_matter(
    messages: MessageArchive, archiver_first: bool
) -> None:
    message = archived()
    steps = [lambda: messages.put_many([message]), lambda: messages.assign("c1:1", ["c1:m1"])]
    for step in steps if archiver_first else reversed(steps):
        await step()
    await messages.put_many([archived(content="Changed.")])
    assert await refs(messages) == {"c1:m1": MessageRef("c1:m1", "c1:1", archived=True, skipped=False)}
    assert await messages.get_many(["c1:m1"]) == {"c1:m1": message}


async def test_archiver_and_summarizer_at_once_lose_nothing(messages: MessageArchive) -> None:
    batch = [archived(f"m{n}", n) for n in range(50)]
    keys = [f"c1:m{n}" for n in range(50)]
    writers = [messages.put_many(batch), messages.assign("c1:1", keys), messages.put_many(batch)]
    await asyncio.gather(*writers, messages.assign("c1:1", keys))
    assert await refs(messages) == {key: MessageRef(key, "c1:1", archived=True, skipped=False) for key in keys}


async def test_a_message_that_only_the_summarizer_knows_is_not_read_as_archived(messages: MessageArchive) -> None:
    await messages.assign("c1:1", ["c1:m1"])
    assert await messages.get_many(["c1:m1"]) == {}
    assert await newest(messages, Selection("c1", None)) == []
    assert await refs(messages) == {"c1:m1": MessageRef("c1:m1", "c1:1", archived=False, skipped=False)}


async def test_skipped_messages_are_archived_and_marked(messages: MessageArchive) -> None:
    await messages.put_many([archived(skip_summarization=True)])
    assert await refs(messages) == {"c1:m1": MessageRef("c1:m1", None, archived=True, skipped=True)}


async def test_more_than_a_batch_is_written_and_read(messages: MessageArchive) -> None:
    batch = [archived(f"m{n}", n) for n in range(1501)]
    keys = [f"c1:m{n}" for n in range(1501)]
    await messages.put_many(batch)
    await messages.assign("c1:1", keys)
    assert len(await messages.get_many(keys)) == 1501
    assert {ref.episode_id for ref in (await refs(messages)).values()} == {"c1:1"}


async def test_the_newest_messages_have_the_latest_times_then_the_highest_offsets(
    messages: MessageArchive,
) -> None:
    times = {"m1": 3, "m2": 1, "m3": 2, "m4": 3}
    for offset, (message_id, minute) in enumerate(times.items()):
        await messages.put_many([archived(message_id, offset, sent_at=NOON + timedelta(minutes=minute))])
    await messages.put_many([archived("x", conversation_id="c2", sent_at=NOON + timedelta(hours=1))])
    assert await newest(messages, Selection("c1", None)) == ["m4", "m1", "m3", "m2"]


async def test_newest_come_first_by_time_and_whoever_has_enough_stops(messages: MessageArchive) -> None:
    batch = [archived(f"m{n}", n, sent_at=NOON + timedelta(minutes=n)) for n in range(120)]
    await messages.put_many([*batch, archived("x", conversation_id="c2", sent_at=NOON + timedelta(days=1))])
    assert await newest(messages, Selection("c1", None)) == [f"m{n}" for n in reversed(range(120))]
    async with aclosing(messages.newest(Selection("c1", None))) as found:
        assert await anext(found) == batch[-1]


async def test_only_messages_of_the_tenant_are_selected(messages: MessageArchive) -> None:
    await messages.put_many(
        [archived("ours", 1, tenant_id="t1"), archived("theirs", 2), archived("empty", 3, tenant_id="")]
    )
    assert await newest(messages, Selection("c1", "t1")) == ["ours"]
    assert await newest(messages, Selection("c1", None)) == ["theirs"]
    assert await messages.count(Selection("c1", "t2")) == Counted()


async def test_what_no_episode_has_is_selected_and_counted_by_tokens(messages: MessageArchive) -> None:
    await messages.put_many([archived(f"m{n}", n, content="A few words " * n) for n in range(1, 5)])
    await messages.put_many([archived("s", 5, content="Skipped.", skip_summarization=True)])
    await messages.assign("c1:1", ["c1:m1", "c1:m2", "c1:not archived yet"])
    pending = Selection("c1", None, unsummarised=True)
    assert sorted(await newest(messages, pending)) == ["m3", "m4", "s"]
    tokens = sum(count_tokens(text) for text in ("A few words " * 3, "A few words " * 4, "Skipped."))
    assert await messages.count(pending) == Counted(messages=3, tokens=tokens, skipped=1)
    assert (await messages.count(Selection("c1", None))).messages == 5


async def test_an_agent_has_its_own_messages_and_those_of_nobody_in_particular(messages: MessageArchive) -> None:
    agents = {"u": None, "a": "agent a", "b": "agent b"}
    await messages.put_many([archived(i, n, agent_id=agent) for n, (i, agent) in enumerate(agents.items())])
    assert sorted(await newest(messages, Selection("c1", None, "agent a"))) == ["a", "u"]


async def test_a_message_in_an_episode_of_one_agent_is_still_unsummarised_for_another(messages: MessageArchive) -> None:
    await messages.put_many([archived("u")])
    await messages.assign("c1/b:1", ["c1:u"])
    assert await newest(messages, Selection("c1", None, "a", unsummarised=True)) == ["u"]
    await messages.assign("c1/a:1", ["c1:u"])
    assert await newest(messages, Selection("c1", None, "a", unsummarised=True)) == []
    assert await newest(messages, Selection("c1", None, "b", unsummarised=True)) == []
    assert (await refs(messages))["c1:u"].episode_id == "c1/a:1"


async def test_the_first_message_is_the_one_that_was_read_first(messages: MessageArchive) -> None:
    await messages.put_many([archived("early", 7, sent_at=NOON - timedelta(days=1)), archived("first", 3)])
    found = await messages.first("c1")
    assert found is not None
    assert found.message.id == "first"
    assert await messages.first("c2") is None


async def test_ids_are_unique_only_within_their_conversation(messages: MessageArchive) -> None:
    await messages.put_many([archived("b:c", conversation_id="a"), archived("c", conversation_id="a:b")])
    assert (await refs(messages)).keys() == {message_key("a", "b:c"), message_key("a:b", "c")}


async def test_nothing_to_do_is_fine(messages: MessageArchive) -> None:
    await messages.put_many([])
    await messages.assign("c1:1", [])
    assert await messages.get_many([]) == {}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text("%$.24E5a") | st.text(), children),
)


@given(JSON)
def test_any_field_name_can_be_made_safe_and_restored(value: object) -> None:
    safe = safe_names(value)
    assert original_names(safe) == value
    assert not any(set(name) & {"$", "."} or not name for name in names_in(safe))


def names_in(value: object) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(name for child in value.values() for name in names_in(child))]
    return [name for child in value for name in names_in(child)] if isinstance(value, list) else []
