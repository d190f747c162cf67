from datetime import timedelta

import pytest

from afterword.schemas import InvalidRecord
from tests.dialogues import FIRST_SENT_AT, expand

DIALOGUE = "user: Hello[NEWLINE]agent: Yes: what?[NEWLINE][BOUNDARY][NEWLINE]user: Another thing[NEWLINE]bot: Fine"


def test_a_turn_becomes_a_message_with_an_id_of_its_own():
    messages = expand("d", DIALOGUE)
    assert [m.id for m in messages] == ["d-1", "d-2", "d-3", "d-4"]
    assert [m.content for m in messages] == ["Hello", "Yes: what?", "Another thing", "Fine"]
    assert {(m.conversation_id, m.user_id) for m in messages} == {("d", "d-user")}


def test_whoever_is_not_the_user_is_the_assistant():
    assert [m.role for m in expand("d", DIALOGUE)] == ["user", "assistant", "user", "assistant"]


def test_a_boundary_breaks_the_continuation_and_the_first_message_has_none():
    assert [m.is_continuation for m in expand("d", DIALOGUE)] == [None, True, False, True]


def test_times_are_fixed_so_that_a_replay_is_the_same():
    sent_at = [m.sent_at for m in expand("d", DIALOGUE)]
    assert sent_at == [FIRST_SENT_AT + timedelta(seconds=10 * n) for n in range(4)]
    assert expand("d", DIALOGUE) == expand("d", DIALOGUE)


@pytest.mark.parametrize("dialogue", ["", "[BOUNDARY]", "[NEWLINE]", "user: a[NEWLINE]no speaker here"])
def test_a_dialogue_without_turns_or_speakers_is_refused_without_its_text(dialogue):
    with pytest.raises(InvalidRecord) as raised:
        expand("d", dialogue)
    assert raised.value.error_type == "invalid_dialogue"
    assert "no speaker here" not in str(raised.value)
