"""A damaged row puts its conversation in quarantine; the partition goes on, and the row stays as it is."""

import pytest
from structlog.testing import capture_logs

from afterword.streams.errors import StateUnreadable
from afterword.streams.segmenter.state import Scope, body_key, deadline_of, decode_state, prefix
from tests.unit.segmenter.chat import DEAD_LETTERS, Chat, closed, flush, limits, say, says

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

    def test_old_id_with_a_missing_row_stops_nobody(self):
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
