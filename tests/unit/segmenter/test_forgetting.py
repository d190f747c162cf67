"""Conversations that are forgotten after their silence, and those whose state is damaged."""

import pytest
from structlog.testing import capture_logs

from afterword.streams.errors import StateUnreadable
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
    DEAD_LETTERS,
    Chat,
    amendments,
    closed,
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


FIRST = body_key(prefix(Scope("c")), 0)
STATE = {
    "empty": lambda row: b"",
    "cut off": lambda row: row[:20],
    "of no version": lambda row: row[:8] + b"\xff" + row[9:],
    "not JSON": lambda row: row[:-1],
    "no fields": lambda row: row[:10] + b"[]",
    "more fields": lambda row: row[:-1] + b"," + b",".join([b"0"] * 9) + b"]",
    "an object": lambda row: row[:10] + b"{}",
    "a text for a number": lambda row: row.replace(b"[null,0,", b'[null,"0",'),
    "a text for a counter": lambda row: row.replace(b",2,2,1,0]]", b',2,"2",1,0]]'),
}
BODY = {
    "empty": lambda row: b"",
    "missing": None,
    "stripped": lambda row: row[:16],
    "of no version": lambda row: row[:16] + b"\xff" + row[17:],
    "cut off": lambda row: row[:20],
    "another seal": lambda row: row[:29] + b"\x7f" + row[30:],
    "another continuation": lambda row: row[:31] + b"\x7f" + row[32:],
    "a longer trace": lambda row: row[:32] + b"\xff" + row[33:],
    "not JSON": lambda row: row[:-1],
    "another message": lambda row: row[:33] + b"{}",
}


def damaged(table: str, key: bytes, damage, **changed: object) -> Chat:
    chat = Chat(limits(**changed))
    chat.process([*says("a", "b"), say("x", conversation_id="other")])
    rows = getattr(chat, table)
    if damage is None:
        del rows[key]
    else:
        assert damage(rows[key]) != rows[key]
        rows[key] = damage(rows[key])
    return chat


def of_conversation(chat: Chat) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
    mine = {k: v for k, v in chat.messages.items() if k.startswith(prefix(Scope("c")))}
    return {k: v for k, v in chat.conversations.items() if k == b"c"}, mine


class TestRecords:
    @pytest.mark.parametrize("damage", STATE.values(), ids=STATE)
    def test_damaged_conversations_messages_are_dead_lettered_alone(self, damage):
        chat = damaged("conversations", b"c", damage)
        before = of_conversation(chat)
        outcome = chat.process([say("m"), say("y", conversation_id="other"), flush(), flush("other")])
        assert outcome.dead_letters == {"state_unreadable": 2}
        assert (outcome.messages, outcome.episodes) == (1, {"flush": 1})
        assert of_conversation(chat) == before

    @pytest.mark.parametrize("damage", BODY.values(), ids=BODY)
    def test_messages_needing_a_damaged_one_are_dead_lettered(self, damage):
        chat = damaged("messages", FIRST, damage, trigger=3)
        before = of_conversation(chat)
        outcome = chat.process([say("m"), say("n"), flush(), say("y", conversation_id="other")])
        assert outcome.dead_letters == {"state_unreadable": 3}
        assert (outcome.messages, outcome.flushes) == (1, 0)
        assert of_conversation(chat) == before

    def test_quarantined_record_is_replayed_once_its_row_is_restored(self):
        chat = damaged("messages", FIRST, None, trigger=3)
        original = Chat(limits())
        original.process(says("a", "b"))
        assert chat.process([say("m")]).dead_letters == {"state_unreadable": 1}
        chat.messages[FIRST] = original.messages[FIRST]
        assert closed(chat.hear(say("m"))) == [("a b m", "trigger")]

    def test_dead_letter_is_the_record_itself(self):
        record = say("m")
        chat = damaged("conversations", b"c", STATE["not JSON"])
        (letter,) = chat.process([record]).outgoing
        assert (letter.topic, letter.key, letter.value) == (DEAD_LETTERS, record.key, record.value)

    def test_damage_is_logged_as_an_error_without_content(self):
        chat = damaged("messages", FIRST, BODY["another message"])
        with capture_logs() as logs:
            chat.process([flush(), flush()])
        errors = [entry for entry in logs if entry["log_level"] == "error"]
        assert [entry["event"] for entry in errors] == ["conversation_quarantined"]
        assert errors[0]["error_type"] == "state_unreadable"

    def test_missing_row_of_an_old_id_blocks_no_message(self):
        chat = Chat(limits(trigger=1, dedupe_window=2))
        chat.process(says("a", "b"))
        del chat.messages[FIRST]
        assert chat.process(says("d", "e")).messages == 2


class TestTicks:
    @pytest.mark.parametrize("damage", STATE.values(), ids=STATE)
    def test_damaged_state_is_never_due(self, damage):
        chat = damaged("conversations", b"c", damage)
        assert deadline_of(chat.conversations[b"c"]) is None
        chat.now_ms += 10**9
        before = of_conversation(chat)
        with capture_logs() as logs:
            chat.tick([b"c"])
        assert [entry["event"] for entry in logs] == ["conversation_quarantined"]
        assert of_conversation(chat) == before

    @pytest.mark.parametrize("damage", STATE.values(), ids=STATE)
    def test_agents_messages_close_despite_its_conversations_damage(self, damage):
        chat = Chat(limits(scope="agent"))
        chat.process([say("a", agent_id="x"), say("b", agent_id="x")])
        chat.conversations[b"c"] = damage(chat.conversations[b"c"])
        assert [[m.id for m in e.messages] for e in chat.wait(10**6)] == [["a", "b"]]

    @pytest.mark.parametrize("damage", BODY.values(), ids=BODY)
    def test_conversation_that_cannot_close_is_due_once(self, damage):
        chat = damaged("messages", FIRST, damage)
        before = of_conversation(chat)[1]
        assert len(chat.wait(10**6)) == 1
        assert chat.due() == []
        assert of_conversation(chat)[1] == before
        assert decode_state(chat.conversations[b"c"]).pending_messages == 2


class TestConfiguration:
    @pytest.mark.parametrize("version", [9, 31])
    def test_row_of_a_later_release_stops_the_worker(self, version):
        chat = Chat()
        chat.process([say("a")])
        row = chat.conversations[b"c"]
        chat.conversations[b"c"] = row[:8] + bytes((version,)) + row[9:]
        with pytest.raises(StateUnreadable, match="only a later release can read"):
            chat.process([say("b")])
        assert deadline_of(chat.conversations[b"c"])
