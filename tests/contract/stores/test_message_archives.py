import asyncio
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from afterword.schemas import ConversationAssigned, ConversationDeleted, MessageDeleted, MessageEdited
from afterword.schemas.base import message_key
from afterword.streams.stores.messages import (
    ArchiveChange,
    ArchivedMessage,
    Counted,
    DeletedMessage,
    MessageArchive,
    MessageText,
    Selection,
    StoredMessage,
)
from afterword_text.tokens import count_tokens
from tests.nasty_texts import IDS
from tests.rows import with_rows
from tests.samples import HOSTILE_METADATA, NOON, a_message, a_whole_message


def archived(message_id: str = "m1", offset: int = 0, **fields: Any) -> ArchivedMessage:
    return ArchivedMessage(a_message(message_id, **fields), partition=0, offset=offset)


async def newest(messages: MessageArchive, selection: Selection) -> list[str]:
    return [found.message.id async for found in messages.newest(selection)]


def ref(key: str, episode_id: str | None, of: ArchivedMessage) -> StoredMessage:
    return StoredMessage(key, episode_id, of.message.content, of.partition, of.offset, of.changed)


async def refs(messages: MessageArchive) -> dict[str, StoredMessage]:
    return {ref.key: ref async for ref in messages.all_messages()}


async def test_message_survives_a_round_trip_in_every_field(messages: MessageArchive) -> None:
    message = ArchivedMessage(a_whole_message(), 0, 0)
    await messages.put_many([message])
    assert await messages.get_many(["c1:m1:t1"]) == {"c1:m1:t1": message}
    assert [found async for found in messages.newest(Selection("c1", "t1"))] == [message]


async def test_messages_may_be_read_without_their_metadata(messages: MessageArchive) -> None:
    await messages.put_many([archived(metadata=HOSTILE_METADATA)])
    await messages.copy({"c1:m2": DeletedMessage(7)})
    read = await messages.states(["c1:m1", "c1:m2"], with_metadata=False)
    assert read == {"c1:m1": archived(metadata={}), "c1:m2": DeletedMessage(7)}


async def test_pending_messages_are_the_users_without_an_episode(messages: MessageArchive) -> None:
    times = {f"m{n}": NOON + timedelta(minutes=n) for n in range(8)}
    sent = [archived(name, n, sent_at=at, tenant_id="t1") for n, (name, at) in enumerate(times.items())]
    await messages.put_many(sent)
    others = {
        "x1": {"user_id": "u2", "tenant_id": "t1"},
        "x2": {},
        "x3": {"tenant_id": "t1", "skip_summarization": True},
    }
    await messages.put_many([archived(name, 9, sent_at=NOON, **fields) for name, fields in others.items()])
    whose = {"role": "assistant", "agent_id": "bot", "author": "Botty", "tenant_id": "t1", "reply_to": "q1"}
    await messages.put_many([archived("a1", 8, conversation_id="c2", **whose)])  # sent at noon
    await messages.assign("c1:1", sent[:2])
    deletion = MessageDeleted(id="m5", conversation_id="c1", tenant_id="t1")
    await messages.change(ArchiveChange(deletion, 0, 10))

    async def pending(limit: int = 9, **asked: Any) -> list[str]:
        return [one.id for one in await messages.pending("u1", "t1", limit, 100, **asked)]

    assert await pending() == ["m7", "m6", "m4", "m3", "m2", "a1"]
    assert await pending(2) == ["m7", "m6"]
    assert await pending(since=NOON + timedelta(minutes=4)) == ["m7", "m6", "m4"]
    [*_, found] = await messages.pending("u1", "t1", 9, 4)
    text = MessageText("Text", "assistant", NOON, "bot", "Botty", "u1")
    assert found == ("c2", "a1", "bot", "q1", 8, text)
    assert [one.id for one in await messages.pending("u1", None, 9, 9)] == ["x2"]


def stored(given: dict[str, Any]) -> ArchivedMessage | DeletedMessage:
    """Return a message with these fields, last changed at the offset `changed`, or its deletion at `deleted`."""
    if "deleted" in given:
        return DeletedMessage(given["deleted"])
    fields = {name: tuple(value) if name == "flows" else value for name, value in given.items() if name != "changed"}
    return replace(archived(**fields), changed=given["changed"]) if "changed" in given else archived(**fields)


@with_rows
async def test_history_of_a_message_ends_as_described(
    messages: MessageArchive, what: str, steps: list[list[Any]], left: dict[str, Any]
) -> None:
    """Archiver and summarizer write `m1`, and it is edited or deleted at offsets."""
    for step, given, *offset in steps:
        match step:
            case "put" | "put without edits":
                await messages.put_many(list(map(stored, given)), repeats_edit=step == "put")
            case "assign":
                await messages.assign("c1:1", list(map(stored, given)))
            case "edit":
                flows = {"flows": tuple(given["flows"])} if "flows" in given else {}
                await messages.change(changed(edit(**given | flows), *offset))
            case "delete":
                await messages.change(changed(MessageDeleted(id="m1", conversation_id="c1"), *offset))
    assert await messages.states(["c1:m1"]) == {"c1:m1": stored(left)}, what


async def test_copy_brings_only_later_changes_and_deletions(messages: MessageArchive) -> None:
    there, gone, edited = archived(), DeletedMessage(7), replace(archived("m4", content="Edited."), changed=9)
    await messages.put_many([archived("m4")])
    await messages.copy({"c1:m4": edited})
    await messages.copy({"c1:m4": archived("m4")})
    assert await messages.states(["c1:m4"]) == {"c1:m4": edited}
    await messages.put_many([there, archived("m2", offset=1)])
    await messages.copy({"c1:m1": archived(content="Other."), "c1:m2": gone, "c1:m3": gone})
    assert await messages.states(["c1:m1", "c1:m2", "c1:m3"]) == {"c1:m1": there, "c1:m2": gone, "c1:m3": gone}
    await messages.put_many([archived("m3", offset=2)])
    assert await messages.states(["c1:m3"]) == {"c1:m3": gone}


@pytest.mark.parametrize("archiver_first", [True, False])
async def test_order_of_archiver_and_summarizer_does_not_matter(messages: MessageArchive, archiver_first: bool) -> None:
    message = archived(metadata=HOSTILE_METADATA, is_continuation=False)
    known = replace(message, message=message.message.model_copy(update={"metadata": {}, "is_continuation": None}))
    steps = [lambda: messages.put_many([message]), lambda: messages.assign("c1:1", [known])]
    for step in steps if archiver_first else reversed(steps):
        await step()
    await messages.put_many([archived(content="Changed.")])
    assert await refs(messages) == {"c1:m1": ref("c1:m1", "c1:1", message)}
    assert await messages.get_many(["c1:m1"]) == {"c1:m1": message}


async def test_concurrent_archiver_and_summarizer_lose_nothing(messages: MessageArchive) -> None:
    batch = [archived(f"m{n}", n) for n in range(50)]
    keys = [f"c1:m{n}" for n in range(50)]
    writers = [messages.put_many(batch), messages.assign("c1:1", batch), messages.put_many(batch)]
    await asyncio.gather(*writers, messages.assign("c1:1", batch))
    assert await refs(messages) == {key: ref(key, "c1:1", one) for key, one in zip(keys, batch, strict=True)}


async def test_message_written_only_by_the_summarizer_is_archived(messages: MessageArchive) -> None:
    message = archived()
    await messages.assign("c1:1", [message])
    assert await messages.get_many(["c1:m1"]) == {"c1:m1": message}
    assert await newest(messages, Selection("c1", None)) == ["m1"]
    assert await refs(messages) == {"c1:m1": ref("c1:m1", "c1:1", message)}


async def test_unarchived_message_only_gets_its_episode(messages: MessageArchive) -> None:
    known, missing = archived(metadata={"a": 1}), archived("m2", 1)
    await messages.put_many([known])
    await messages.assign("c1:1", [missing], ["c1:m1", "c1:nobody"])
    assert await refs(messages) == {"c1:m1": ref("c1:m1", "c1:1", known), "c1:m2": ref("c1:m2", "c1:1", missing)}


async def test_summarizers_shortened_text_gives_way_to_the_archivers(messages: MessageArchive) -> None:
    await messages.assign("c1:1", [archived(content="Short …"), replace(archived("m2", 1, content="Cut …"), changed=7)])
    whole = [archived(content="Short, no more."), archived("m2", 1, content="Before.", metadata={"a": 1})]
    await messages.put_many(whole)
    assert (await messages.get_many(["c1:m2"]))["c1:m2"].message.content == "Cut …"
    await messages.change(changed(edit("m2", content="Cut, no more."), 7))
    edited = archived("m2", 1, content="Cut, no more.", metadata={"a": 1})
    assert await messages.get_many(["c1:m1", "c1:m2"]) == {"c1:m1": whole[0], "c1:m2": replace(edited, changed=7)}


async def test_skipped_messages_are_archived_and_marked(messages: MessageArchive) -> None:
    skipped = archived(skip_summarization=True)
    await messages.put_many([skipped])
    assert await refs(messages) == {"c1:m1": ref("c1:m1", None, skipped)}


async def test_more_than_one_batch_is_written_and_read(messages: MessageArchive) -> None:
    batch = [archived(f"m{n}", n) for n in range(1501)]
    keys = [f"c1:m{n}" for n in range(1501)]
    await messages.put_many(batch[:700])
    await messages.assign("c1:1", batch)
    await messages.put_many(batch)
    assert len(await messages.get_many(keys)) == 1501
    assert {found.episode_id for found in (await refs(messages)).values()} == {"c1:1"}


async def test_newest_messages_have_the_highest_offsets_despite_producer_clocks(messages: MessageArchive) -> None:
    times = {"m1": 3, "m2": 1, "m3": 2, "m4": 3}
    for offset, (message_id, minute) in enumerate(times.items()):
        await messages.put_many([archived(message_id, offset, sent_at=NOON + timedelta(minutes=minute))])
    await messages.put_many([archived("x", conversation_id="c2", sent_at=NOON + timedelta(hours=1))])
    assert await newest(messages, Selection("c1", None)) == ["m4", "m3", "m2", "m1"]


async def test_newest_messages_come_first_up_to_the_limit(messages: MessageArchive) -> None:
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


async def test_messages_without_an_episode_are_selected_and_counted(messages: MessageArchive) -> None:
    said = [archived(f"m{n}", n, content="A few words " * n) for n in range(1, 5)]
    await messages.put_many(said)
    await messages.put_many([archived("s", 5, content="Skipped.", skip_summarization=True)])
    await messages.assign("c1:1", said[:2])
    pending = Selection("c1", None, unsummarised=True)
    assert sorted(await newest(messages, pending)) == ["m3", "m4", "s"]
    tokens = sum(count_tokens(text) for text in ("A few words " * 3, "A few words " * 4, "Skipped."))
    assert await messages.count(pending) == Counted(messages=3, tokens=tokens, skipped=1)
    assert (await messages.count(Selection("c1", None))).messages == 5


async def test_agent_has_its_own_and_unaddressed_messages(messages: MessageArchive) -> None:
    agents = {"u": None, "a": "agent a", "b": "agent b"}
    await messages.put_many([archived(i, n, agent_id=agent) for n, (i, agent) in enumerate(agents.items())])
    assert sorted(await newest(messages, Selection("c1", None, "agent a"))) == ["a", "u"]


async def test_message_of_one_agents_episode_stays_pending_for_another(messages: MessageArchive) -> None:
    await messages.put_many([archived("u")])
    await messages.assign("c1/b:1", [archived("u")])
    assert await newest(messages, Selection("c1", None, "a", unsummarised=True)) == ["u"]
    await messages.assign("c1/a:1", [archived("u")])
    assert await newest(messages, Selection("c1", None, "a", unsummarised=True)) == []
    assert await newest(messages, Selection("c1", None, "b", unsummarised=True)) == []
    assert (await refs(messages))["c1:u"].episode_id == "c1/a:1"


async def test_owner_is_the_user_of_the_first_message(messages: MessageArchive) -> None:
    await messages.put_many(
        [
            archived("later", 7, user_id="u2", tenant_id="a", sent_at=NOON - timedelta(days=1)),
            archived("first", 3, user_id="u1", tenant_id="a"),
            archived("other", 5, user_id="ü", conversation_id="c:2"),
            archived("more", 6, user_id="u3", conversation_id="c3"),
        ]
    )
    assert await messages.owners(["c:2", "c1", "gone"]) == {"c1": ("u1", "a"), "c:2": ("ü", None)}
    assert await messages.owners([]) == {}


async def test_ids_are_unique_only_within_their_conversation(messages: MessageArchive) -> None:
    await messages.put_many([archived("b:c", conversation_id="a"), archived("c", conversation_id="a:b")])
    assert (await refs(messages)).keys() == {message_key("a", "b:c"), message_key("a:b", "c")}


async def test_empty_batch_is_accepted(messages: MessageArchive) -> None:
    await messages.put_many([])
    await messages.assign("c1:1", [])
    assert await messages.get_many([]) == {}


async def test_texts_are_read_up_to_a_length(messages: MessageArchive) -> None:
    theirs, ours = (
        archived(tenant_id="b", content="Not from a."),
        archived(offset=1, tenant_id="a", content="From a.", author="Ada"),
    )
    deleted, edited = archived("m2", 2, content="Gone."), archived("m3", 3, content="Once.")
    await messages.put_many([theirs, ours, deleted, edited])
    await messages.change(ArchiveChange(MessageDeleted(conversation_id="c1", id="m2"), 0, 4))
    await messages.change(ArchiveChange(MessageEdited(conversation_id="c1", id="m3", content="Now."), 0, 5))
    key = message_key("c1", "m1", "a")
    assert await messages.texts([key, "c1:m1", "c1:m2", "c1:m3", "c1:m4", "c1:m5"], 4) == {
        key: MessageText("From", ours.message.role, ours.message.sent_at or NOON, "u1", "Ada", "u1"),
        "c1:m3": MessageText("Now.", edited.message.role, edited.message.sent_at or NOON, "u1", None, "u1"),
    }
    assert await messages.texts([], 4) == {}


async def test_two_tenants_with_equal_ids_have_separate_messages(messages: MessageArchive) -> None:
    theirs = archived(offset=1, tenant_id="b", content="Not from a.")
    ours = archived(offset=2, tenant_id="a", content="From a.")
    nobodys = archived(offset=3, content="Without a tenant.")
    await messages.put_many([theirs])
    await messages.put_many([ours, nobodys])
    key_of = {tenant: message_key("c1", "m1", tenant) for tenant in ("a", "b", None)}
    assert await messages.get_many([key_of["a"]]) == {key_of["a"]: ours}
    assert await messages.get_many(list(key_of.values())) == {
        key_of["a"]: ours,
        key_of["b"]: theirs,
        key_of[None]: nobodys,
    }
    for tenant, one in (("a", ours), ("b", theirs), (None, nobodys)):
        assert [found async for found in messages.newest(Selection("c1", tenant))] == [one]


async def test_episode_labels_only_messages_of_its_tenant(messages: MessageArchive) -> None:
    ours, theirs = archived(offset=1, tenant_id="a"), archived(offset=2, tenant_id="b")
    await messages.put_many([theirs])
    await messages.assign("c1:1", [ours])
    await messages.put_many([ours])
    assert (await messages.count(Selection("c1", "a", unsummarised=True))).messages == 0
    assert (await messages.count(Selection("c1", "b", unsummarised=True))).messages == 1
    assert {found.key: found.episode_id for found in (await refs(messages)).values()} == {
        message_key("c1", "m1", "a"): "c1:1",
        message_key("c1", "m1", "b"): None,
    }


async def test_message_of_a_tenant_is_stored_once(messages: MessageArchive) -> None:
    message = archived(tenant_id="a")
    for step in (messages.put_many([message]), messages.assign("c1:1", [message]), messages.put_many([message])):
        await step
    assert await refs(messages) == {"c1:m1:a": ref("c1:m1:a", "c1:1", message)}


def changed(
    event: MessageEdited | MessageDeleted | ConversationDeleted | ConversationAssigned, offset: int
) -> ArchiveChange:
    return ArchiveChange(event, 0, offset)


def edit(message_id: str = "m1", **fields: Any) -> MessageEdited:
    return MessageEdited(id=message_id, conversation_id="c1", **fields)


def delete(message_id: str = "m1", tenant_id: str | None = None) -> MessageDeleted:
    return MessageDeleted(id=message_id, conversation_id="c1", tenant_id=tenant_id)


async def test_edit_replaces_its_fields_only(messages: MessageArchive) -> None:
    before = archived(metadata={"kept": 1}, flows=("f",), sentiment=0.5)
    await messages.put_many([before])
    await messages.assign("c1:1", [before])
    await messages.change(changed(edit(content="New.", metadata={"$a.b": 2}, sentiment=None), 7))
    expected = archived(content="New.", metadata={"$a.b": 2}, flows=("f",), sentiment=None)
    assert await messages.states(["c1:m1"]) == {"c1:m1": replace(expected, changed=7)}
    assert (await refs(messages))["c1:m1"].episode_id == "c1:1"
    assert (await messages.count(Selection("c1", None))).tokens == count_tokens("New.")


async def test_lower_offset_never_overwrites_a_higher_one(messages: MessageArchive) -> None:
    await messages.put_many([archived(offset=5)])
    for offset in (4, 9, 8, 9):
        await messages.change(changed(edit(content=f"At {offset}."), offset))
    await messages.change(changed(delete(), 3))
    assert await messages.states(["c1:m1"]) == {"c1:m1": replace(archived(offset=5, content="At 9."), changed=9)}


async def test_deleted_message_does_not_come_back(messages: MessageArchive) -> None:
    both = [archived(), archived("m2", 1)]
    await messages.put_many(both)
    await messages.assign("c1:1", both)
    await messages.change(changed(delete(), 7))
    await messages.put_many([archived(), archived(offset=9)])
    await messages.assign("c1:1", both)
    await messages.change(changed(edit(content="Back."), 10))
    await messages.change(changed(delete(), 11))
    assert await messages.states(["c1:m1", "c1:m2"]) == {"c1:m1": DeletedMessage(7), "c1:m2": archived("m2", 1)}
    assert await messages.get_many(["c1:m1"]) == {}
    assert await newest(messages, Selection("c1", None)) == ["m2"]
    tombstone = (await refs(messages))["c1:m1"]
    assert (tombstone.content, tombstone.offset, tombstone.changed) == (None, None, 7)


async def test_message_written_only_by_the_summarizer_can_be_deleted(messages: MessageArchive) -> None:
    await messages.assign("c1:1", [archived()])
    await messages.change(changed(delete(), 7))
    await messages.put_many([archived()])
    assert await messages.states(["c1:m1"]) == {"c1:m1": DeletedMessage(7)}


async def test_change_of_missing_or_foreign_messages_has_no_effect(messages: MessageArchive) -> None:
    await messages.put_many([archived(tenant_id="t1")])
    for change in (delete("m2"), edit("m2", content="x"), delete(), delete(tenant_id="t2"), edit(content="x")):
        await messages.change(changed(change, 7))
    await messages.change(changed(ConversationDeleted(conversation_id="c1", tenant_id="t2"), 7))
    assert await messages.states(["c1:m1:t1"]) == {"c1:m1:t1": archived(tenant_id="t1")}
    assert [one.key async for one in messages.all_messages()] == ["c1:m1:t1"]


async def test_total_counts_all_messages_except_deleted_ones(messages: MessageArchive) -> None:
    assert await messages.total() == 0
    await messages.put_many([archived("m1"), archived("m2", 1), archived("m1", 2, conversation_id="c2")])
    deletion = MessageDeleted(id="m1", conversation_id="c1")
    await messages.change(ArchiveChange(deletion, 0, 9))
    assert await messages.total() == 2


async def test_deleted_conversation_keeps_later_messages(messages: MessageArchive) -> None:
    await messages.put_many([archived(f"m{n}", n) for n in range(5)])
    await messages.put_many([archived("m0", 0, conversation_id="c2")])
    await messages.change(changed(ConversationDeleted(conversation_id="c1"), 3))
    states = await messages.states([f"c1:m{n}" for n in range(5)])
    deleted = [
        isinstance(states[f"c1:m{n}"], DeletedMessage) for n in range(5)
    ]  # the order of `states` is the server's
    assert deleted == [True, True, True, False, False]
    assert await newest(messages, Selection("c1", None)) == ["m4", "m3"]
    assert await newest(messages, Selection("c2", None)) == ["m0"]


async def conversations(store: MessageArchive, user_id: str, tenant_id: str | None, limit: int = 100) -> list[str]:
    """Read all pages."""
    found: list[str] = []
    while page := await store.conversations_of(user_id, tenant_id, found[-1] if found else None, limit):
        assert len(page) <= limit
        found += page
    return found


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_users_conversations_are_paged_once_each(messages: MessageArchive, limit: int) -> None:
    names = sorted(["b", "a", "ü", "z/1", "💬", "{}"], key=str.encode)
    for offset, name in enumerate(names * 2):
        await messages.put_many([archived(f"m{offset}", offset, conversation_id=name)])
    assert await conversations(messages, "u1", None, limit) == names


async def test_user_is_matched_exactly_within_the_tenant(messages: MessageArchive) -> None:
    users = {"a": ("u1", None), "b": ("u1", "t1"), "c": ("u1", "T1"), "d": ("U1", None), "e": ("u11", None)}
    users |= {"f": ("u1 ", None), "g": ("u", "t1")}
    for offset, (conversation, (user_id, tenant_id)) in enumerate(users.items()):
        fields = {"user_id": user_id, "tenant_id": tenant_id}
        await messages.put_many([archived("m1", offset, conversation_id=conversation, **fields)])
    assert await conversations(messages, "u1", None) == ["a"]
    assert await conversations(messages, "u1", "t1") == ["b"]
    assert await conversations(messages, "nobody", None) == []


async def test_participants_are_found_and_deleted_authors_are_not(messages: MessageArchive) -> None:
    await messages.put_many([archived(), archived("m2", 1, user_id="u2"), archived("m3", 2, role="assistant")])
    assert await newest(messages, Selection("c1", None, user_id="u1")) == ["m3", "m1"]
    assert (await messages.count(Selection("c1", None, user_id="u2"))).messages == 1
    assert await conversations(messages, "u2", None) == ["c1"]
    await messages.change(changed(delete("m2"), 7))
    assert await conversations(messages, "u2", None) == []
    assert await newest(messages, Selection("c1", None, user_id="u2")) == []


async def test_messages_expire_oldest_first_with_their_labels(messages: MessageArchive) -> None:
    said = [archived(f"m{n}", n, sent_at=NOON + timedelta(minutes=9 - n)) for n in range(4)]
    await messages.put_many(said)
    await messages.put_many([archived("m0", 0, tenant_id="t1", sent_at=NOON + timedelta(minutes=9))])
    await messages.assign("c1:1", said)
    await messages.change(changed(MessageDeleted(id="m3", conversation_id="c1"), 9))
    later = NOON + timedelta(minutes=8, seconds=30)
    assert [await messages.expire(later, 1) for _ in range(3)] == [1, 1, 0]
    assert await newest(messages, Selection("c1", None)) == ["m0"]
    assert (await refs(messages)).keys() == {"c1:m0", "c1:m0:t1", "c1:m3"}, "tombstones stay"
    assert await messages.expire(NOON + timedelta(days=1), 100) == 2


async def test_messages_are_read_from_a_position(messages: MessageArchive) -> None:
    sent = [NOON, NOON, NOON + timedelta(minutes=1)]
    archived = [ArchivedMessage(a_message(f"m{n}", sent_at=at), 0, n) for n, at in enumerate(sent)]
    await messages.put_many(archived)
    found = []
    before = None
    while page := [one async for one in messages.newest(Selection("c1", None, before=before))]:
        found.append(page[0].message.id)
        before = page[0].offset
    assert found == ["m2", "m1", "m0"]


async def test_expired_message_of_an_agents_episode_leaves_nothing(messages: MessageArchive) -> None:
    again = archived(agent_id="x")
    await messages.put_many([again])
    await messages.assign("c1/x:1", [again])
    assert await messages.expire(NOON + timedelta(days=1), 1) == 1
    await messages.assign("c1/x:1", [], ["c1:m1"])
    await messages.put_many([again])
    assert await newest(messages, Selection("c1", None, "x", unsummarised=True)) == ["m1"]


@pytest.mark.parametrize("hostile", IDS)
async def test_message_ids_are_treated_as_data(messages: MessageArchive, hostile: str) -> None:
    innocent, key = archived(), message_key(hostile, hostile)
    sent = ArchivedMessage(a_message(hostile, hostile, user_id=hostile), 0, 1)
    await messages.put_many([innocent])
    assert await messages.get_many([hostile, key]) == {}
    assert await newest(messages, Selection(hostile, None)) == []
    await messages.put_many([sent])
    await messages.assign(hostile, [sent])
    assert await newest(messages, Selection(hostile, None)) == [hostile]
    assert await messages.get_many(["c1:m1", key]) == {"c1:m1": innocent, key: sent}


def assignment(from_user_id: str = "u1", user_id: str = "u2", tenant_id: str | None = None) -> ConversationAssigned:
    return ConversationAssigned(conversation_id="c1", tenant_id=tenant_id, from_user_id=from_user_id, user_id=user_id)


async def users(messages: MessageArchive, conversation_id: str = "c1") -> list[str]:
    return [one.message.user_id async for one in messages.newest(Selection(conversation_id, None))][::-1]


async def test_assigned_messages_belong_to_the_other_user(messages: MessageArchive) -> None:
    await messages.put_many([archived(), archived("m2", 1, user_id="eve"), archived("m3", 2, skip_summarization=True)])
    await messages.put_many([archived("m1", 0, conversation_id="c2"), archived("m9", 0, tenant_id="t2")])
    await messages.change(changed(assignment(), 7))
    await messages.put_many([archived("m4", 8), archived("m4", 9, content="New."), archived("m1", 0)])
    assert await users(messages) == ["u2", "eve", "u2", "u2"]
    assert (await messages.states(["c1:m4"]))["c1:m4"].message.content == "New."  # type: ignore[union-attr]
    assert await users(messages, "c2") == ["u1"]
    assert await messages.conversations_of("u1", None, None, 9) == ["c2"]
    assert await messages.conversations_of("u1", "t2", None, 9) == ["c1"]
    assert await messages.owners(["c1"]) == {"c1": ("u2", None)}


async def test_late_assignment_does_not_undo_a_later_one(messages: MessageArchive) -> None:
    await messages.put_many([archived(), archived("m2", 1, user_id="u2")])
    for offset, one in ((7, assignment()), (8, assignment("u2", "u1")), (7, assignment()), (8, assignment("u2", "u1"))):
        await messages.change(changed(one, offset))
    await messages.put_many([archived("m3", 9), archived("m4", 10, user_id="u2")])
    assert await users(messages) == ["u1", "u1", "u1", "u1"]


@pytest.mark.parametrize("is_behind", [False, True], ids=["archived before", "archived after"])
async def test_second_guest_takes_nothing_from_the_first(messages: MessageArchive, is_behind: bool) -> None:
    said = [archived("m1", 1), archived("m2", 3), archived("m3", 5)]
    if not is_behind:
        await messages.put_many(said[:1])
    await messages.change(changed(assignment("u1", "ann"), 2))
    if not is_behind:
        await messages.put_many(said[1:2])
    await messages.change(changed(assignment("u1", "bob"), 4))
    await messages.put_many(said)
    await messages.change(changed(assignment("u1", "ann"), 2))
    await messages.change(changed(assignment("u1", "bob"), 4))
    assert await users(messages) == ["ann", "ann", "bob"]


async def test_taker_keeps_what_another_gives_to_the_giver(messages: MessageArchive) -> None:
    await messages.put_many([archived("m1", 0), archived("m2", 1, user_id="eve")])
    for offset, one in ((2, assignment("u1", "ann")), (3, assignment("eve", "u1")), (2, assignment("u1", "ann"))):
        await messages.change(changed(one, offset))
    await messages.put_many([archived("m3", 0, user_id="eve"), archived("m4", 4), archived("m5", 1)])
    assert sorted(await users(messages)) == ["ann", "ann", "u1", "u1", "u1"]


async def test_forgotten_taker_ends_no_assignment_endlessly(messages: MessageArchive) -> None:
    await messages.put_many([archived("m1", 0)])
    await messages.change(changed(assignment(), 7))
    await messages.forget_user("u2", None)
    await messages.put_many([archived("m2", 1)])
    await messages.change(changed(assignment(), 7))
    assert await users(messages) == ["u2", "u1"]


async def test_deleted_conversation_forgets_its_assignments(messages: MessageArchive) -> None:
    await messages.put_many([archived()])
    await messages.change(changed(assignment(), 7))
    await messages.change(changed(ConversationDeleted(conversation_id="c1"), 8))
    await messages.change(changed(assignment(), 7))
    await messages.put_many([archived("m2", 9)])
    assert await users(messages) == ["u1"]


async def test_forgotten_user_gets_no_later_messages(messages: MessageArchive) -> None:
    await messages.change(changed(assignment(), 7))
    await messages.forget_user("u2", None)
    await messages.change(changed(assignment(), 7))
    await messages.put_many([archived()])
    assert await users(messages) == ["u1"]
    assert "u2" not in str(await messages.records.read_all("assignments"))


@pytest.mark.parametrize("tenant_id", [None, "t1", "t:1"])
async def test_forgotten_user_stays_in_other_tenants(messages: MessageArchive, tenant_id: str | None) -> None:
    tenants, names = [None, "t1", "t:1"], ["c1", "c:1", "c%3A1/a"]
    for name in names:
        for tenant in tenants:
            for offset, user in enumerate(("u2", "u3")):
                given = assignment(f"guest{offset}", user, tenant).model_copy(update={"conversation_id": name})
                await messages.change(changed(given, offset))
    await messages.forget_user("u2", tenant_id)
    for name in names:
        for tenant in tenants:
            kept = [*(await messages.present_users(name, tenant)).names.values()]
            assert kept == (["u3"] if tenant == tenant_id else ["u2", "u3"])
