"""With `everywhere`, nothing that the segmenter keeps or sends contains the original."""

from typing import Any

import pytest

from afterword.schemas import EpisodeClosed
from afterword.schemas.dead_letters import read_dead_letter
from afterword.streams.segmenter.processor import Outcome, Segmenter
from afterword.streams.settings import Episodes, Redaction
from afterword_text.tokens import count_tokens
from tests.unit.segmenter.chat import DEAD_LETTERS, EPISODES, NOON, Sent, closed_or_amended, edit, flush, say

NEEDLE = "ann.needle@example.com"
LOG = [
    say("1", f"I am {NEEDLE}", metadata={"mail": NEEDLE}),
    say("2", "Fine.", role="assistant", tools=[NEEDLE]),
    edit("2", content=f"Fine, {NEEDLE}."),
    say("3", "x", role=NEEDLE),
    Sent(b"c", NEEDLE.encode()),
    say("4", f"Also {NEEDLE}"),
    flush(reason=NEEDLE),
    edit("1", content=f"Late: {NEEDLE}"),
    say("5", f"Pending {NEEDLE}"),
]
Rows = dict[bytes, bytes]


def segmented(where: str) -> tuple[Outcome, Rows, Rows]:
    conversations: Rows = {}
    messages: Rows = {}
    redaction = Redaction.model_validate({"where": where}).of_records()
    segmenter = Segmenter(
        Episodes(), EPISODES, DEAD_LETTERS, conversations, messages, count_tokens, redaction=redaction
    )
    return segmenter.process(LOG, NOON), conversations, messages


def everything(where: str) -> bytes:
    outcome, *tables = segmented(where)
    rows = [part for table in tables for row in table.items() for part in row]
    return b"\n".join([*map(repr_of, outcome.outgoing), *rows])


def repr_of(outgoing: object) -> bytes:
    return repr(outgoing).encode()


def test_rows_events_and_dead_letters_are_redacted() -> None:
    assert NEEDLE.encode() in everything("off")
    assert NEEDLE.encode() not in everything("everywhere")


def test_text_around_a_redacted_value_stays() -> None:
    sent = [one for one in segmented("everywhere")[0].outgoing if one.topic == EPISODES]
    assert b"I am [EMAIL]" in (sent[0].value or b"")
    assert b"Fine, [EMAIL]." in (sent[0].value or b"")


def test_author_that_redaction_makes_too_long_is_cut() -> None:
    redaction = Redaction.model_validate({"where": "everywhere"}).of_records()
    segmenter = Segmenter(Episodes(), EPISODES, DEAD_LETTERS, {}, {}, count_tokens, redaction=redaction)
    outcome = segmenter.process([say("1", author="xxx " + "a@b.co " * 36), flush()], NOON)
    [episode] = closed_or_amended(outcome.outgoing)
    assert isinstance(episode, EpisodeClosed)
    assert episode.messages[0].author == "xxx " + "[EMAIL] " * 31


def test_replay_gives_the_same_bytes() -> None:
    assert segmented("everywhere")[0].outgoing == segmented("everywhere")[0].outgoing


@pytest.mark.parametrize("where", ["off", "everywhere"])
def test_redaction_changes_no_number_or_kind_of_dead_letters(where: str) -> None:
    dead = [one for one in segmented(where)[0].outgoing if one.topic == DEAD_LETTERS]
    found = [read_dead_letter(Sent(one.key, one.value, headers=tuple(one.headers))) for one in dead]  # type: ignore[arg-type]  # headers of ours have values
    assert [letter.error_type for letter in found] == ["schema_violation", "invalid_json"]


@pytest.mark.parametrize("said", [None, b"", b"\xff\xfe", NEEDLE.encode() + b"\xff"])
def test_dead_letter_keeps_binary_and_empty_headers(said: bytes | None) -> None:
    """Kafka accepts them; a segmenter that failed on one would fail at every start."""
    redaction = Redaction.model_validate({"where": "everywhere"}).of_records()
    segmenter = Segmenter(Episodes(), EPISODES, DEAD_LETTERS, {}, {}, count_tokens, redaction=redaction)
    headers: Any = (("mail", said),)
    [sent] = segmenter.process([Sent(b"c", b"{}", headers=headers)], NOON).outgoing
    assert dict(sent.headers)["mail"] == (said and said.replace(NEEDLE.encode(), b"[EMAIL]"))
