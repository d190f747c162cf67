import asyncio
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.ids import message_key
from streams.stores.documents import original_names, safe_names
from streams.stores.messages import ArchivedMessage, MessageArchive, MessageRef
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


async def refs(messages: MessageArchive) -> dict[str, MessageRef]:
    return {ref.key: ref async for ref in messages.all_messages()}


async def test_a_message_comes_back_equal_in_every_field(messages: MessageArchive) -> None:
    message = archived(metadata=HOSTILE_METADATA, flows=("booking",), sentiment=-0.5, is_continuation=False)
    await messages.put_many([message])
    assert await messages.get_many(["c1:m1"]) == {"c1:m1": message}
    assert await messages.recent("c1", 1) == [message]


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
    assert await messages.recent("c1", 5) == []
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


async def test_the_last_messages_are_those_of_the_latest_times_oldest_first(messages: MessageArchive) -> None:
    times = {"m1": 3, "m2": 1, "m3": 2, "m4": 3}
    for offset, (message_id, minute) in enumerate(times.items()):
        await messages.put_many([archived(message_id, offset, sent_at=NOON + timedelta(minutes=minute))])
    await messages.put_many([archived("x", conversation_id="c2", sent_at=NOON + timedelta(hours=1))])
    assert [m.message.id for m in await messages.recent("c1", 3)] == ["m3", "m1", "m4"]
    assert await messages.recent("c1", 0) == []


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
