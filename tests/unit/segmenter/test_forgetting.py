"""A silent conversation is forgotten except for what keeps its ids unique; the property tests try it at random."""

import pytest
from structlog.testing import capture_logs

from afterword.streams.segmenter.state import (
    Scope,
    State,
    body_key,
    deadline_of,
    decode_state,
    encode_state,
    prefix,
    scope_key,
)
from faust_eos.database import IdleSince
from tests.unit.segmenter.chat import (
    Chat,
    amendments,
    delete,
    delete_conversation,
    edit,
    flush,
    ids,
    limits,
    say,
    says,
)

DAY = 86_400
FORGET = 30 * DAY
UUID = "0b6f0c0e-6e1f-5d7b-9a5c-3f1b6c1d2e4f"
STUB_BYTES = 64
"""Key and value in both tables, of a conversation whose id is a UUID; as in the changelog, without a record's frame."""


def forgotten(*records, **changed) -> Chat:
    """Return a chat whose records were closed, followed by 30 days of silence."""
    chat = Chat(limits(**changed))
    chat.process([*(records or says("a", "b")), flush()])
    chat.wait(FORGET)
    return chat


WHOLE = Scope("c")


def state_of(chat: Chat, scope: Scope = WHOLE) -> State:
    return decode_state(chat.conversations[scope_key(scope)])


def test_forgotten_conversation_keeps_its_ordinal_and_tenant() -> None:
    chat = forgotten(say("a", tenant_id="t"), say("b", tenant_id="t"), flush(tenant_id="t"), overlap=1)
    assert chat.messages == {}
    assert state_of(chat) == State("t", last_ordinal=1)
    assert chat.due() == []
    assert chat.process([say("c")]).dead_letters == {"tenant_mismatch": 1}


def test_conversation_is_forgotten_after_its_silence_only() -> None:
    chat = Chat()
    chat.process([*says("a", "b"), flush()])
    chat.wait(FORGET - 1)
    assert chat.messages
    chat.tick([b"c"])
    assert chat.messages
    chat.now_ms += 1000
    chat.tick(chat.due())
    assert (chat.messages, state_of(chat).is_stub) == ({}, True)


def test_forgotten_conversation_resets_clocks_and_overrides() -> None:
    own = {"afterword": {"max_episode_size": 2}}
    chat = forgotten(say("a", metadata=own, at=10_000), trigger={"seconds": 100})
    assert state_of(chat).overrides == ""
    assert chat.hear(*says("b", "d", "e"), say("f", at=99)) == []
    [episode] = chat.hear(say("g", at=100))
    assert ids(episode) == "b d e f g"


def test_changes_of_forgotten_messages_are_handed_on() -> None:
    chat = forgotten(overlap=2)
    outcome = chat.process([edit("b", content="x"), delete("a"), delete_conversation()])
    assert [(event.message_id, event.episode_id) for event in amendments(outcome.outgoing)] == [
        ("b", None), ("a", None), (None, None),
    ]  # fmt: skip
    assert state_of(chat) == State(None, last_ordinal=1), "nothing of it is kept again"


@pytest.mark.parametrize("agents", [False, True])
def test_stub_takes_at_most_64_bytes(agents: bool) -> None:
    chat = Chat(limits(scope="agent" if agents else "conversation"))
    said = [say(f"m{n}", conversation_id=UUID, tenant_id="acme") for n in range(500)]
    end = flush(UUID, tenant_id="acme")
    for n in range(0, 500, 5):
        chat.process([*said[n : n + 5], end])
    assert sum(len(key) + len(row) for key, row in chat.messages.items()) > 500 * STUB_BYTES
    chat.wait(FORGET)
    assert chat.messages == {}
    assert max(len(key) + len(row) for key, row in chat.conversations.items()) <= STUB_BYTES


def test_undated_row_is_forgotten_30_days_later() -> None:
    chat = Chat()
    chat.process([*says("a", "b"), flush()])
    row = chat.conversations[b"c"]
    chat.conversations[b"c"] = bytes(8) + row[8:]
    assert chat.due() == [b"c"]
    chat.tick([b"c"])
    assert (chat.due(), chat.conversations[b"c"]) == ([], row)
    chat.wait(FORGET)
    assert chat.messages == {}


def test_damaged_rows_are_forgotten_with_the_others() -> None:
    chat = Chat(limits(overlap=2))
    chat.process([*says("a", "b", "d"), flush()])
    chat.messages[body_key(prefix(Scope("c")), 2)] = b"damaged"
    del chat.messages[body_key(prefix(Scope("c")), 0)]
    chat.wait(FORGET)
    assert state_of(chat) == State(None, last_ordinal=1)
    assert [ids(episode) for episode in chat.hear(say("e"), flush())] == ["e"]


class TestAgents:
    def test_conversation_is_kept_while_an_agent_is_active(self) -> None:
        chat = Chat(limits(scope="agent", overlap=1, forget_after_days=1, idle_seconds=3 * DAY))
        chat.process([say("a", agent_id="x")])
        chat.wait(2 * DAY)
        assert state_of(chat).agents == ["x"]
        assert [ids(episode) for episode in chat.wait(DAY)] == ["a"]
        chat.wait(DAY)
        assert state_of(chat).is_stub

    def test_damaged_agent_part_delays_forgetting(self) -> None:
        chat = Chat(limits(scope="agent", overlap=1))
        chat.process([say("a", agent_id="x"), flush()])
        chat.conversations[scope_key(Scope("c", "x"))] = b"damaged"
        chat.now_ms += FORGET * 1000
        with capture_logs() as logs:
            chat.tick(chat.due())
        assert [entry["event"] for entry in logs] == ["conversation_quarantined"]
        assert chat.due() == []
        assert state_of(chat).agents == ["x"]


def test_silent_row_says_since_when() -> None:
    assert deadline_of(encode_state(State(None, next_seq=1, first_pending=1, silent_ms=5))) == IdleSince(5)
