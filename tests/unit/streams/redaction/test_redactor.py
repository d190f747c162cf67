"""What is found in a text, what is not, and that redacted text contains nothing to find."""

import json
import re
import time
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import Field, StringConstraints, ValidationError

from afterword.schemas import (
    ConversationDeleted,
    ConversationFlush,
    InputEvent,
    MessageCreated,
    MessageDeleted,
    MessageEdited,
)
from afterword.schemas.base import Model
from afterword.schemas.dead_letters import DEAD_LETTER_PREFIX, dead_letter, read_dead_letter
from afterword.streams.redactor import IDS, RecordRedaction, Redactor, folded, merged
from afterword.streams.settings import Redaction
from afterword_text.redaction import MOST_SCANNED, Span
from tests.rows import few_by_day, with_rows
from tests.samples import a_message
from tests.unit.segmenter.chat import Sent

REAL = Redaction(phone_regions="DE,US,GB").redactor()
ALL = Redaction(patterns={"TICKET": r"T-\d+", "LINE": "forget.*"}).redactor()

MARK = re.compile(r"⟦(\w+)\|([^⟧]*)⟧")


def texts_of(name: str) -> Iterator[tuple[str, str]]:
    """Yield each line of a file as a text, and as it is right when it is redacted."""
    for line in Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("# "):
            said = json.loads(f'"{line}"')
            yield MARK.sub(r"\2", said), MARK.sub(lambda mark: f"[{mark[1].upper()}]", said)


RANDOM = "q7Rm" + "WtZ3kx9L" + "pV0nB5yH" + "2sQdJ8cF" + "4gTe"
"""Invented random text, as in keys and tokens."""
EXACT = [
    *texts_of("entities.txt"),
    ("https://chat.example/hooks/q7rm4wtz3kx9l2pv", "https://chat.example/hooks/[URL_SECRET]"),
    ("export DB_PASSWORD='q7rm4wtz3'", "export DB_PASSWORD='[API_KEY]'"),
    ("https://joe:s3cret@db.example.com/x", "https://[URL_SECRET]@db.example.com/x"),
    ("curl -u joe:s3cret https://x.example", "curl -u [URL_SECRET] https://x.example"),
    ("curl --user 'joe:secret' x.example", "curl --user '[URL_SECRET]' x.example"),
    ("curl -u :s3cret --user joe:'s3cret' x.example", "curl -u [URL_SECRET] --user [URL_SECRET]' x.example"),
    ("mysql -u root -pTr0ub4dor shop", "mysql -u root -p[URL_SECRET] shop"),
    ("postgres://joe:p@ssw0rd@db.example.com/x", "postgres://[URL_SECRET]@db.example.com/x"),
    (f"git+https://{RANDOM}@git.example/x.git", "git+https://[URL_SECRET]@git.example/x.git"),
    (f"https://x.example/a.pdf?rlkey={RANDOM}&dl=0", "https://x.example/a.pdf?rlkey=[URL_SECRET]&dl=0"),
    (f"https://x.example/ical/joe/private-{RANDOM}/a.ics", "https://x.example/ical/joe/private-[URL_SECRET]/a.ics"),
    ("https://x.example/a?token=abcd1234&page=2", "https://x.example/a?token=[URL_SECRET]&page=2"),
    ("ghp_" + "a1B2" * 9, "[API_KEY]"),
    ("6283185307:" + "AAFq" + "m7Z_" * 7 + "x-H", "[API_KEY]"),
    ("MzE0MTU5MjY1MzU4OTc5MzIz." + "GqX7bT." + "m3Kd" * 9, "[API_KEY]"),
    ("ntn_" + "a1B2" * 11, "[API_KEY]"),
    ("figd_" + RANDOM, "[API_KEY]"),
    ("dp.pt." + RANDOM, "[API_KEY]"),
    ("a_service_of_2031-" + RANDOM.lower() + ".", "[API_KEY]."),
    ("AKID" + RANDOM, "[API_KEY]"),
    ("dckr_pat_" + "9raIsyf-YwJEL_d10kW-" * 2 + "gSrz", "[API_KEY]"),
    ("sbp_" + "9524998a" * 5, "[API_KEY]"),
    ("Password: hunter2, mein Passwort ist 83920174", "Password: [API_KEY], mein Passwort ist [API_KEY]"),
    ("mi clave es perro1234, passordet er sommer24x", "mi clave es [API_KEY], passordet er [API_KEY]"),
    ("PGPASSWORD=geheimnis psql", "PGPASSWORD=[API_KEY] psql"),
    ("Server=db;User Id=sa;Password=Geheimnis;Encrypt=yes", "Server=db;User Id=sa;Password=[URL_SECRET];Encrypt=yes"),
    ("-H 'Authorization: 5eb4223e-5008-46e5-be67-c7b8f2732305'", "-H 'Authorization: [API_KEY]'"),
    ("Authorization: Token 3fea6af1349166ea", "Authorization: Token [API_KEY]"),
    ("dapi" + "5e8a" * 8, "[API_KEY]"),
    ("my api key is 9f8e7d6c5b4a", "my api key is [API_KEY]"),
    ("密码是abc12345", "密码是[API_KEY]"),
    ("the password for the guests' network is hunter2x9, ok", "the password for the guests' network is [API_KEY], ok"),
    ("мой пароль — qwerty987", "мой пароль — [API_KEY]"),
    ("lösenordet är sommar24x; pwd=hunter2x9", "lösenordet är [API_KEY]; pwd=[API_KEY]"),
    ("deepgram key " + "5e8a" * 8, "deepgram key [API_KEY]"),
    ("sha256~" + RANDOM * 2, "[API_KEY]"),
    ("IQoJb3JpZ2luX2Vj" + "+a" + ("/" + RANDOM) * 4, "[API_KEY]"),
    ("sdk-123e4567-e89b-12d3-a456-426614174000", "[API_KEY]"),
    ("https%3A%2F%2Fx.example%2F%3Ftoken%3Dabcd1234", "https%3A%2F%2Fx.example%2F%3Ftoken%3D[URL_SECRET]"),
    ("-----BEGIN " + "RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- ok", "[API_KEY] ok"),
    *(
        (text, text)
        for text in ("sha256:" + "e3b0c442" * 8, "https://docs.example/document/d/1B" + "xiMVs0XRA5nFMd" * 3)
    ),
]


@pytest.mark.parametrize(("text", "expected"), EXACT)
def test_exactly_the_entities_become_their_names(text: str, expected: str) -> None:
    assert ALL.redacted(text) == expected


def test_only_configured_entities_and_countries_are_found() -> None:
    assert Redaction(phone_regions="FR").redactor().redacted("(415) 555-2671") == "(415) 555-2671"
    only = Redaction(entities="email, ip").redactor()
    assert only.redacted("a@b.de 203.0.113.7 +49 30 1234567") == "[EMAIL] [IP] +49 30 1234567"


PIECES = st.sampled_from(
    [text for text, _ in EXACT] + ["[EMAIL]", "[PHONE_1]", "[", "]", " ", "\n", "+", "0", "@", ".", "://", "a"]
)
TEXTS = st.lists(PIECES | st.text(max_size=6), max_size=8).map("".join)


@given(TEXTS)
def test_redacted_text_contains_no_entities(text: str) -> None:
    once = ALL.redacted(text)
    assert ALL.redacted(once) == once


@given(TEXTS)
def test_spans_are_ordered_disjoint_and_within_the_text(text: str) -> None:
    at = 0
    for span in ALL.spans(text):
        assert at <= span.start < span.end <= len(text)
        at = span.end


def test_text_built_to_hide_an_entity_is_redacted_whole() -> None:
    nested = Redactor([], {"A": "xa|^a", "B": "^b"}).redacted
    assert nested("ababababab") == "[REDACTED]"
    assert nested("abc") == "[A][B]c"


NEARLY = (
    *("+44 20 7946 0958 ", "+1 202-555-0143 ", "(030) 1234567 ", "call 5551234 ", "0049 30 123456 ", "12345678 "),
    *("4000 ", "1234 5678 9012 ", "４１１１ ", "4111 1111 1111 1111 ", "DE89 3704 0044 0532 0130 00 ", "10.1.2.3 "),
    *(
        "2001:db8::1 ",
        "a@b.de ",
        "a(at)b(dot)de ",
        "https://a:b@c/?token=abcdefgh1 ",
        "token is abcdefgh12345678 ",
        "ﷺ",
    ),
    *("1 ", "41 ", "411 111/", "4 1_1-", "D E 8 9 ", "a @ ", "a@b . ", "a at b dot ", "a_at_", "a-at-b-dot-", "j o @ "),
    *("用户@", "用户@例子.", "@भारत.", "a.", "用."),
)
"""Units of texts that are full of entities, or of what only nearly is one."""


@pytest.mark.parametrize("unit", few_by_day(NEARLY))
def test_text_full_of_entities_does_not_block_the_loop(unit: str) -> None:
    """100,000 characters take at most 0.1 s of CPU time where a loop of a million steps takes 0.034, 700,000 less than
    one second; a busy machine adds some, to the loop too."""
    text = unit * (100_000 // len(unit))
    loops: list[float] = []
    while len(loops) < 5 and not (loops and loops[-1] < 3):
        loop = cpu_seconds(lambda: sum(n * n for n in range(1_000_000)))
        loops.append(cpu_seconds(lambda: REAL.redacted(text)) / loop)
    assert min(loops) < 6


def cpu_seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def test_every_character_folds_to_a_readable_equal() -> None:
    every = "".join(map(chr, range(0x20000)))
    found = folded(every)
    assert found.starts is not None
    assert len(found.starts) == len(found.text)
    unseen = set(every) - {every[start] for start in found.starts}
    assert {c for c in every if unicodedata.category(c) == "Cf"} <= unseen
    assert not any(c.isalnum() and unicodedata.category(c) != "Lo" for c in unseen)
    for character, start in zip(found.text, found.starts, strict=True):
        original = every[start]
        digit = unicodedata.decimal(original, None)
        same = original if "\ud800" <= original <= "\udfff" else unicodedata.normalize("NFKC", original)
        same = "-" if unicodedata.category(original) == "Pd" or original == "\u2212" else same
        assert character in ("\ufffd", original, same) if digit is None else character == str(digit)


def test_first_of_two_overlapping_entities_wins() -> None:
    first, others = (
        [Span(2, 4, "A"), Span(6, 8, "A")],
        [Span(3, 5, "B"), Span(0, 1, "B"), Span(4, 6, "B"), Span(7, 9, "B")],
    )
    assert merged(first, others) == [Span(0, 1, "B"), Span(2, 4, "A"), Span(4, 6, "B"), Span(6, 8, "A")]


def test_line_that_exceeds_a_patterns_time_is_redacted_onwards() -> None:
    line = "x" * 20_000
    own = Redactor([], {"X": "x.*y|x"})
    most = MOST_SCANNED // (len(line) + 1)
    assert own.redacted(f"a\n{line}\nb") == f"a\n{'[X]' * (most + 1)}\nb"


@with_rows
def test_setting_that_cannot_work_is_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Redaction.model_validate(wrong)


def test_disguised_entities_are_found() -> None:
    left = [text for text, right in texts_of("disguises.txt") if text != right != ALL.redacted(text)]
    assert len(left) <= 5, left


def test_disguised_text_without_entities_is_not_redacted() -> None:
    harmless = [text for text, right in texts_of("disguises.txt") if text == right]
    assert [*map(ALL.redacted, harmless)] == harmless


NEEDLE = "ann.needle@example.com"
CARD = 4111111111111111


@pytest.fixture
def redaction() -> RecordRedaction:
    found = Redaction(where="everywhere").of_records()
    assert found is not None
    return found


def test_incoming_messages_are_redacted_only_everywhere() -> None:
    assert Redaction(where="off").of_records() is Redaction(where="llm").of_records() is None


def test_all_texts_of_a_message_are_redacted(redaction: RecordRedaction) -> None:
    metadata = {"from": NEEDLE, "deep": [{NEEDLE: [f"to {NEEDLE}"]}], "card": CARD, "page": 7, "ok": True}
    found = redaction.event(a_message(content=f"I am {NEEDLE}", metadata=metadata, flows=(NEEDLE,), tools=("t",)))
    assert NEEDLE not in found.model_dump_json()
    assert found.content == "I am [EMAIL]"
    assert found.metadata == {
        "from": "[EMAIL]",
        "deep": [{"[EMAIL]": ["to [EMAIL]"]}],
        "card": "[CARD]",
        "page": 7,
        "ok": True,
    }
    assert (found.flows, found.tools) == (("[EMAIL]",), ("t",))


class Bounded(MessageCreated):
    """A message with every kind of text that a later one may have."""

    code: Annotated[str, StringConstraints(pattern=r"^[0-9 ]*$")] = ""
    kind: Literal["4111 1111 1111 1111"] | None = None
    labels: tuple[Annotated[str, StringConstraints(max_length=20)], ...] = ()
    notes: dict[Annotated[str, StringConstraints(max_length=20)], str] = Field(default_factory=dict)


CUT_PIECES = ("a@b.co ", "4111 1111 1111 1111", "::2 ", "+1 212 555 0123 ", "[EMAIL]", "xx ", "7", "Ä")


@pytest.mark.parametrize("event", [*get_args(InputEvent), Bounded], ids=lambda event: event.__name__)
@given(pieces=st.lists(st.sampled_from(CUT_PIECES), min_size=1, max_size=60), most=st.sampled_from([20, 256]))
@example(pieces=["a@b.co "] * 36, most=256)
@example(pieces=["4111 1111 1111 1111"], most=20)
def test_redacted_event_is_valid_in_every_field(event: type[Any], pieces: list[str], most: int) -> None:
    redaction = Redaction(where="everywhere").of_records()
    assert redaction is not None
    required = {"id": "m", "conversation_id": "c", "user_id": "u", "from_user_id": "v", "role": "user", "content": ""}
    text = "".join(pieces)[:most]
    for name in event.model_fields:
        for value in (text, (text,), {text: text}):
            try:
                given = event(**{**required, name: value})
            except ValidationError:
                continue  # a value of another type than the field's
            found = redaction.event(given)
            assert event.model_validate(found.model_dump()) == found
            assert redaction.event(found) == found


@with_rows
def test_text_is_cut_around_whole_placeholders(before: str, left: str, most: int) -> None:
    assert Redaction(where="everywhere").redactor().redacted(before, most) == left


def test_new_fields_are_redacted(redaction: RecordRedaction) -> None:
    class WithMore(MessageCreated):
        transcript: str = ""
        notes: dict[str, list[str]]

    later = WithMore(**a_message().model_dump(), transcript=f"said {NEEDLE}", notes={"of": [NEEDLE]})
    found = redaction.event(later)
    assert isinstance(found, WithMore)
    assert (found.transcript, found.notes) == ("said [EMAIL]", {"of": ["[EMAIL]"]})


@pytest.mark.parametrize("event", get_args(InputEvent), ids=lambda event: event.__name__)
def test_every_id_of_an_event_is_known(event: type[Model]) -> None:
    assert {name for name in event.model_fields if name == "id" or name.endswith("_id")} <= IDS


def test_ids_are_not_redacted(redaction: RecordRedaction) -> None:
    message = a_message(NEEDLE, user_id=NEEDLE, tenant_id=NEEDLE, agent_id=NEEDLE, content="x")
    assert redaction.event(message) is message


def test_redaction_keeps_an_edits_fields(redaction: RecordRedaction) -> None:
    edit = MessageEdited(id="m", conversation_id="c", content=f"now {NEEDLE}")
    assert redaction.event(edit).changes == {"content": "now [EMAIL]"}
    cleared = MessageEdited(id="m", conversation_id="c", sentiment=None)
    assert redaction.event(cleared).changes == {"sentiment": None}


@pytest.mark.parametrize(
    "event",
    [
        ConversationFlush(conversation_id="c", reason=NEEDLE),
        MessageDeleted(id="m", conversation_id="c", reason=NEEDLE),
        ConversationDeleted(conversation_id="c", reason=NEEDLE),
    ],
)
def test_reasons_are_redacted(
    redaction: RecordRedaction, event: ConversationFlush | MessageDeleted | ConversationDeleted
) -> None:
    assert redaction.event(event).reason == "[EMAIL]"


@pytest.fixture
def redacted(redaction: RecordRedaction) -> Callable[..., Sent]:
    """A record of the dead-letter topic, for a record with this value and these headers."""

    def make(value: bytes | None, *headers: tuple[str, bytes]) -> Sent:
        record = Sent(b"c", value, headers=headers)
        written = dead_letter(record, stage="segmenter", error_type="e", message="p", now_ms=0)
        key, left, said = redaction.dead_letter(*written)
        return Sent(key, left, headers=tuple((name, text or b"") for name, text in said), topic="messages.dlq")

    return make


def test_redacted_dead_letter_keeps_ids_and_can_be_replayed(redacted: Callable[..., Sent]) -> None:
    event = {"id": NEEDLE, "conversation_id": NEEDLE, "content": NEEDLE, "rolle": {"x": NEEDLE}}
    found = read_dead_letter(
        redacted(orjson.dumps(event), ("from", NEEDLE.encode()), ("raw", b"\xff" + NEEDLE.encode()))
    )
    assert orjson.loads(found.value or b"") == event | {"content": "[EMAIL]", "rolle": {"x": "[EMAIL]"}}
    assert found.headers == [("from", b"[EMAIL]"), ("raw", b"\xff[EMAIL]")]
    assert not found.truncated


@pytest.mark.parametrize(("before", "left"), [(36, "[EMAIL] " * 32), (50, "[EMAIL] " * 43)], ids=["valid", "too long"])
def test_author_in_a_dead_letter_is_as_valid_as_before(redacted: Callable[..., Sent], before: int, left: str) -> None:
    event = {"id": "m", "conversation_id": "c", "author": "a@b.co " * before}
    assert orjson.loads(redacted(orjson.dumps(event)).value or b"")["author"] == left


def test_structured_event_keeps_the_ids_in_its_data(redacted: Callable[..., Sent]) -> None:
    event = {"id": "1", "data": {"id": NEEDLE, "conversation_id": "c", "content": NEEDLE}}
    found = orjson.loads(redacted(orjson.dumps(event)).value or b"")
    assert found["data"] == {"id": NEEDLE, "conversation_id": "c", "content": "[EMAIL]"}


def test_bytes_without_entities_stay_unchanged(redacted: Callable[..., Sent]) -> None:
    assert redacted(b'{ "a":  1 }').value == b'{ "a":  1 }'
    assert redacted(None).value is None


@pytest.mark.parametrize(
    "value", [NEEDLE.encode(), b'{"content": "' + NEEDLE.encode(), b"[" * 100 + b"]" * 100, b"x" * 1_000_000]
)
def test_unreadable_value_is_omitted_and_described(redacted: Callable[..., Sent], value: bytes) -> None:
    written = redacted(value)
    assert written.value is None
    said = dict(written.headers)
    assert said[DEAD_LETTER_PREFIX + "value_bytes"] == str(len(value)).encode()
    assert len(written.headers) == len(said)
    assert len(said[DEAD_LETTER_PREFIX + "value_sha256"]) == 64
    assert read_dead_letter(written).truncated
