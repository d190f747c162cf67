"""Edits and deletions in the segmenter, one at a time; the properties try them at random."""

from dataclasses import replace

import pytest

from afterword.schemas.records import CE_ID, CE_TYPE, header
from afterword.streams.segmenter.agent import PIECE
from afterword.streams.segmenter.state import Scope, body_key, prefix
from tests.unit.segmenter.chat import (
    Chat,
    amendments,
    assign,
    claimed,
    delete,
    delete_conversation,
    edit,
    episodes,
    flush,
    ids,
    limits,
    say,
    says,
)


def test_pending_message_closes_as_edited() -> None:
    chat = Chat()
    chat.process(says("a", "b"))
    chat.process([edit("a", content="new", sentiment=0.5, flows=["f"])])
    [episode] = chat.hear(flush())
    assert (ids(episode), episode.messages[0].content, episode.token_count) == ("a b", "new", 4)
    assert [message.changed for message in episode.messages] == [2, None]
    assert (episode.metrics.average_sentiment, episode.metrics.flows_activated) == (0.5, ("f",))


def test_edit_without_effect_leaves_a_pending_message_unchanged() -> None:
    chat = Chat()
    chat.process([say("a", "The gate code is 7719.", flows=["gate"])])
    for fields in ({"content": "The gate code is 7719."}, {"flows": ["gate"], "metadata": {"status": "read"}}):
        assert chat.process([edit("a", **fields)]).amendments == 1
    [episode] = chat.hear(flush())
    assert [(message.content, message.changed) for message in episode.messages] == [("The gate code is 7719.", None)]


def test_shortened_edit_has_no_effect_again() -> None:
    chat = Chat()
    long = edit("a", content="x" * 500_000)
    chat.process([say("a"), long, edit("a", flows=["f" * 350_000]), long])
    [episode] = chat.hear(flush())
    assert [message.changed for message in episode.messages] == [2]


@pytest.mark.parametrize("scope", ["conversation", "agent"])
def test_change_counts_as_large_as_the_pending_messages(scope: str) -> None:
    """Each change reads everything pending: 4,000 deletions among 990 messages blocked the event loop for half a
    minute."""
    chat = Chat(limits(max_episode_size=500, scope=scope))
    chat.process([say(f"m{n}", "x" * 1000, agent_id="a") for n in range(400)])
    assert chat.process([delete(f"m{n}") for n in range(20)], PIECE).done == 1
    assert chat.process([delete(f"n{n}", conversation_id="d") for n in range(20)], PIECE).done == 20


def test_edit_does_not_move_boundaries() -> None:
    chat = Chat()
    chat.process([say("a"), say("b", is_continuation=False), say("c")])
    chat.process([delete("b")])
    assert [ids(episode) for episode in chat.hear(flush())] == ["a", "c"]


def test_nothing_is_due_once_all_pending_messages_are_deleted() -> None:
    chat = Chat()
    chat.process(says("a", "b"))
    chat.process([delete("a"), delete("b")])
    assert chat.due() == []
    assert chat.wait(1000) == []
    assert [ids(episode) for episode in chat.hear(say("c"), flush())] == ["c"]


def test_emptied_episode_takes_no_ordinal() -> None:
    chat = Chat()
    chat.process([say("a"), say("b", is_continuation=False), say("c", is_continuation=False)])
    chat.process([delete("b")])
    assert [(ids(episode), episode.ordinal) for episode in chat.hear(flush())] == [("a", 1), ("c", 2)]


def test_change_of_a_closed_message_names_its_known_episode() -> None:
    chat = Chat(limits(overlap=1))
    chat.process([*says("a", "b"), flush()])
    outcome = chat.process([edit("b", content="new"), delete("a", reason="private")])
    known, forgotten = amendments(outcome.outgoing)
    assert (known.message_id, known.change, known.episode_id, known.offset, known.partition) == (
        "b", "edited", "c:1", 3, 3,
    )  # fmt: skip
    assert (forgotten.message_id, forgotten.change, forgotten.episode_id) == ("a", "deleted", None)
    assert forgotten.reason == "private"
    assert header(outcome.outgoing[0].headers, CE_TYPE) == "episode.amended"
    assert header(outcome.outgoing[0].headers, CE_ID) == "c:amended:3:3"
    assert known.fields == {"content": "new"}


def test_repeats_and_edits_after_a_deletion_change_nothing() -> None:
    chat = Chat()
    chat.process(says("a", "b"))
    chat.process([delete("a")])
    before = dict(chat.conversations), dict(chat.messages)
    outcome = chat.process([delete("a"), edit("a", content="back"), edit("a", skip_summarization=False)])
    assert (outcome.amendments, outcome.outgoing) == (3, [])
    assert (chat.conversations, chat.messages) == before
    assert chat.process([say("a")]).duplicates == 1, "its id is not used again"


def test_deleted_conversation_begins_anew_with_continued_ordinals() -> None:
    chat = Chat(limits(overlap=2))
    chat.process([*says("a", "b"), flush(), say("c", metadata={"afterword": {"max_episode_size": 2}})])
    outcome = chat.process([delete_conversation()])
    [event] = amendments(outcome.outgoing)
    assert (event.message_id, event.change) == (None, "deleted")
    assert chat.process([say("c")]).duplicates == 1
    [episode] = chat.hear(*says("d", "e", "f"), flush())
    assert (ids(episode), episode.ordinal, episode.overlap) == ("d e f", 2, ())


def test_deletion_works_on_damaged_rows() -> None:
    chat = Chat()
    chat.process(says("a", "b"))
    chat.messages[body_key(prefix(Scope("c")), 0)] = b"damaged"
    outcome = chat.process([delete_conversation()])
    assert outcome.dead_letters == {}
    assert [ids(episode) for episode in chat.hear(say("d"), flush())] == ["d"]


def test_episode_grown_by_edits_stays_one_and_is_marked() -> None:
    chat = Chat()
    chat.process(says(*"abcd"))
    for message_id in "abcd":
        chat.process([edit(message_id, content=f"{message_id}{'é' * 300_000}")])
    outcome = chat.process([flush()])
    [closed] = outcome.outgoing
    assert len(closed.value) < 1_000_000
    [episode] = episodes(outcome.outgoing)
    assert (ids(episode), episode.truncated) == ("a b c d", True)
    assert all(message.content.startswith(message.id) for message in episode.messages)


def test_names_without_characters_count_as_their_json() -> None:
    """A record that Kafka refuses stops the segmenter for good."""
    chat = Chat()
    chat.process(says(*"ab"))
    chat.process([edit(message_id, flows=[""] * 200_000) for message_id in "ab"])
    [closed] = chat.process([flush()]).outgoing
    assert len(closed.value) < 1_000_000


def test_message_row_grown_by_edits_is_shortened() -> None:
    """Each edit has an acceptable size, but all together exceed what a changelog accepts."""
    chat = Chat()
    chat.process(says("a"))
    chat.process([edit("a", content="é" * 300_000)])
    chat.process([edit("a", flows=["f" * 600_000])])
    chat.process([edit("a", tools=["t" * 600_000])])
    assert max(map(len, chat.messages.values())) < 900_000
    [episode] = chat.hear(flush())
    [message] = episode.messages
    assert (message.content, message.flows, message.tools) == ("é" * 300_000, (), ())
    assert (message.changed, episode.token_count) == (1, 300_000)


def test_edits_that_fill_the_state_close_sealed_episodes() -> None:
    chat = Chat()
    chat.process([say("a"), say("b", is_continuation=False), say("c")])
    big = "z" * 690_000
    assert chat.hear(edit("a", content=big), edit("b", content=big)) == []
    assert [ids(episode) for episode in chat.hear(edit("c", content=big))] == ["a"]


@pytest.mark.parametrize("timestamp", [-1, 2**60])
def test_deletion_ignores_its_records_time(timestamp: int) -> None:
    """The archiver applies it too, and both must agree."""
    chat = Chat()
    chat.hear(say("a"), flush())
    outcome = chat.process([replace(delete("a"), timestamp=timestamp)])
    [amended] = amendments(outcome.outgoing)
    assert (amended.message_id, amended.change, outcome.dead_letters) == ("a", "deleted", {})


def test_assignment_is_handed_on_and_changes_no_pending_message() -> None:
    """The summarizer knows whose messages belong to whom, so the state needs no ids of people who may be erased."""
    chat = Chat()
    chat.process([say("a"), flush(), say("b")])
    [amended] = amendments(chat.process([assign()]).outgoing)
    assert (amended.message_id, amended.change, amended.offset) == (None, "assigned", 3)
    assert amended.fields == {"from_user_id": "ann", "user_id": "bob"}
    assert [ids(episode) for episode in chat.hear(flush())] == ["b"]
    assert not any(b"ann" in row or b"bob" in row for row in chat.conversations.values())


def test_either_user_repeats_an_assigned_message_as_its_writer() -> None:
    """An answer that is streamed while a guest signs in begins as the guest's and ends as the user's."""
    chat = Chat()
    chat.process([say("q"), say("a", "The", role="assistant"), assign()])
    outcome = chat.process([say("q", user_id="bob"), say("a", "The key", role="assistant", user_id="bob"), say("q")])
    assert (outcome.duplicates, outcome.changed_repeats, outcome.dead_letters) == (2, 1, {})
    assert chat.process([say("q", user_id="eve")]).dead_letters == {"changed_repeat": 1}
    chat.process([assign("bob", "cleo"), assign("cleo", "ann")])
    assert chat.process(says("q", user_id="cleo")).duplicates == 1
    chat.process([assign("ann", "dora"), say("r"), assign("ann", "eve")])
    assert chat.process([*says("q", user_id="dora"), *says("r", user_id="dora")]).duplicates == 2
    [episode] = chat.hear(flush())
    assert [message.content for message in episode.messages] == ["x", "The key", "x"]


def test_assignment_of_another_tenant_is_rejected() -> None:
    chat = Chat()
    outcome = chat.process([say("a", tenant_id="t1"), assign(tenant_id="t2")])
    assert outcome.dead_letters == {"tenant_mismatch": 1}


@pytest.mark.parametrize("scope", ["conversation", "agent"])
def test_conversation_is_assigned_before_its_first_message(scope: str) -> None:
    chat = Chat(limits(scope=scope))
    assert len(amendments(chat.process([assign()]).outgoing)) == 1
    assert chat.process([say("a"), claimed(say("b", user_id="bob"), "bob"), claimed(say("c"), "ann")]).messages == 3
    assert chat.process([claimed(say("d", user_id="eve"), "eve")]).dead_letters == {"user_mismatch": 1}


@pytest.mark.parametrize("scope", ["conversation", "agent"])
def test_tenant_is_that_of_the_first_message_whatever_was_assigned(scope: str) -> None:
    chat = Chat(limits(scope=scope, forget_after_days=1))
    chat.process([assign(tenant_id="other")])
    for _ in range(3):  # it has no time of silence yet, then it is forgotten
        chat.wait(2 * 86_400)
    outcome = chat.process([say("a"), say("b", user_id="bob"), flush()])
    assert (outcome.messages, outcome.dead_letters) == (2, {})
    for _ in range(3):
        chat.wait(2 * 86_400)
    outcome = chat.process([assign(), say("c", tenant_id="other")])
    assert outcome.dead_letters == {"tenant_mismatch": 1}
