"""What records become."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import InvalidRecord, MessageCreated, MessageDeleted, MessageEdited, decode_input
from afterword.schemas.headers import header
from afterword.streams.ingest.sources import Fields, map_items
from tests.unit.segmenter.chat import Chat, Sent, flush
from tests.unit.streams.ingest.records import FIELDS, VALUE, Foreign, events, map_record, source


def message(of: Any, value: Any, record: Foreign | None = None) -> MessageCreated:
    [event] = events(of, value, record)
    assert isinstance(event, MessageCreated)
    return event


def problem(of: Any, value: Any, record: Foreign | None = None) -> str:
    with pytest.raises(InvalidRecord) as failed:
        map_record(of, record or Foreign(), value)
    return failed.value.detail


def test_flat_record_is_a_message_under_its_conversation() -> None:
    found = message(source(), VALUE)
    assert (found.id, found.conversation_id, found.user_id, found.role) == ("m1", "c1", "u1", "user")
    assert found.content == "Where is my order?"
    assert found.sent_at == datetime.fromtimestamp(1_790_000_000, UTC)  # the record's


def test_every_field_of_a_message_can_be_mapped() -> None:
    assert Fields.model_fields.keys() == MessageCreated.model_fields.keys()
    found = message(
        source(FIELDS + 'author = "value.name"\nagent_id = "value.bot"\nreply_to = "value.parent"'),
        {**VALUE, "name": "Dana", "bot": 7, "parent": 6},
    )
    assert (found.author, found.agent_id, found.reply_to) == ("Dana", "7", "6")


def test_parts_of_an_answer_follow_each_other() -> None:
    """Otherwise the last part would replace the others."""
    parts = [{"type": "text", "text": "I look."}, {"type": "tool_result", "content": "4"}]
    parts.append({"type": "text", "text": "Four."})
    value = {**VALUE, "role": "assistant", "text": parts, "parent": "q"}
    messages = events(source(FIELDS + 'reply_to = "value.parent"'), value)
    found = [(each.id, each.reply_to) for each in messages if isinstance(each, MessageCreated)]
    assert found == [("m1", "q"), ("m1.2", "m1"), ("m1.3", "m1.2")]


def test_numbers_are_ids_and_record_parts_can_be_mapped() -> None:
    fields = FIELDS.replace('"value.id"', "\"join('-', [topic, to_string(partition), to_string(offset)])\"")
    fields = fields.replace('"value.user"', '"key"') + 'tenant_id = "headers.tenant"\nagent_id = "value.absent"\n'
    found = message(source(fields), {**VALUE, "thread": 12}, Foreign(key=b"dana", headers=(("tenant", b"acme"),)))
    assert (found.id, found.conversation_id, found.user_id) == ("chat-1-7", "12", "dana")
    assert (found.tenant_id, found.agent_id) == ("acme", None)


def test_second_answer_to_a_message_can_replace_the_first() -> None:
    path = "value.role == 'assistant' && value.reply_to && join('-', ['answer', value.reply_to]) || value.id"
    of, chat = source(FIELDS.replace("value.id", path)), Chat()
    answers = [("a1", "q1", "Take the bus."), ("a2", "q1", "Take the tram."), ("a3", None, "Anything else?")]
    values = [{**VALUE, "id": one, "role": "assistant", "reply_to": to, "text": text} for one, to, text in answers]
    for value in ({**VALUE, "id": "q1"}, *values):
        chat.process([Sent(one.conversation_id.encode(), one.value) for one in map_record(of, Foreign(), value)])
    [episode] = chat.hear(flush("c1"))
    assert [(said.id, said.content) for said in episode.messages] == [
        ("q1", "Where is my order?"),
        ("answer-q1", "Take the tram."),
        ("a3", "Anything else?"),
    ]


@pytest.mark.parametrize(
    ("given_role", "role"), [("bot", "assistant"), ("human", "user"), ("AI", "assistant"), (True, "tool"), (1, "user")]
)
def test_roles_follow_the_table_and_usual_names(given_role: Any, role: str) -> None:
    values = '{ bot = "assistant", true = "tool", 1 = "user" }'
    fields = FIELDS.replace('role = "value.role"', f'role = {{ path = "value.role", values = {values} }}')
    assert message(source(fields), {**VALUE, "role": given_role}).role == role


TIMES = [
    ("iso", "2026-09-21T14:13:20Z"),
    ("iso", "2026-09-21T16:13:20+02:00"),
    ("iso", "2026-09-21 14:13:20"),
    ("s", 1_790_000_000),
    ("s", "1790000000.0"),
    ("ms", 1_790_000_000_000),
    ("us", 1_790_000_000_000_000),
    ("ns", 1_790_000_000_000_000_000),
]


@pytest.mark.parametrize(("unit", "at"), TIMES)
def test_times_of_every_unit_are_read(unit: str, at: Any) -> None:
    fields = FIELDS + f'sent_at = {{ path = "value.at", unit = "{unit}" }}'
    assert message(source(fields), {**VALUE, "at": at}).sent_at == datetime.fromtimestamp(1_790_000_000, UTC)


@pytest.mark.parametrize(
    ("unit", "at"), [("s", 1_790_000_000_000), ("ms", 1_790_000_000), ("iso", 5), ("s", "x"), ("s", True)]
)
def test_time_of_another_unit_is_named(unit: str, at: Any) -> None:
    fields = FIELDS + f'sent_at = {{ path = "value.at", unit = "{unit}" }}'
    assert "map.sent_at = value.at: no time" in problem(source(fields), {**VALUE, "at": at})


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"id": None}, "map.id = value.id: finds nothing"),
        ({"id": 1.5}, "map.id = value.id: neither a text nor a whole number"),
        ({"thread": True}, "map.conversation_id = value.thread: neither"),
        ({"role": "clerk"}, "map.role = value.role: a value that role.values does not have"),
        ({"text": None}, "map.content = value.text: finds nothing"),
        ({"text": 5}, "map.content = value.text: neither text, parts nor a message"),
        ({"meta": {"at": b"clerk"}}, "a field is bytes, is nested too deeply"),
        ({"id": "x" * 300}, "id: String should have at most 256 characters"),
    ],
)
def test_unmapped_record_names_the_expression_without_the_value(changed: Any, named: str) -> None:
    with pytest.raises(InvalidRecord) as failed:
        map_record(source(FIELDS + 'metadata = "value.meta"\n'), Foreign(), {**VALUE, **changed})
    assert failed.value.detail.startswith(named)
    assert failed.value.error_type == ("schema_violation" if named.startswith("id: ") else "unmapped")
    assert "clerk" not in str(failed.value)


def test_failing_expression_names_itself_only() -> None:
    fields = FIELDS.replace('"value.text"', '"join(value.text, value.parts)"')
    found = problem(source(fields), {**VALUE, "parts": "secret"})
    assert found.startswith("content = join(value.text, value.parts): ")
    assert "secret" not in problem(source(fields), {**VALUE, "parts": "secret"})


@pytest.mark.parametrize(
    ("above", "value"),
    [
        ("skip = 'value.stamped > `0`'", {"stamped": "2026-03-05T09:15:00Z"}),
        ("skip = 'value.parts[?n > `3`]'", {"parts": [{"n": 5}, {"n": "6"}]}),
        ("skip = 'value.n <= value.text'", {"n": 1}),
    ],
)
def test_text_compared_with_a_number_is_unmapped(above: str, value: Any) -> None:
    found = problem(source(above=above), {**VALUE, **value})
    assert found.startswith("skip = value.")
    assert found.endswith(": a text cannot be compared with a number (TypeError)")


@pytest.mark.parametrize(
    ("form", "key", "user"),
    [
        ("text", b"dana", "dana"),
        ("json", b'"dana"', "dana"),
        ("int32", b"\0\0\0\xc8", "200"),
        ("int64", b"\xff" * 8, "-1"),
        ("uuid", bytes(range(16)), "00010203-0405-0607-0809-0a0b0c0d0e0f"),
        ("bytes", b"\xc8\0", "c800"),
    ],
)
def test_key_is_read_as_its_format_says(form: str, key: bytes, user: str) -> None:
    of = source(FIELDS.replace('"value.user"', '"key"'), above=f'key_format = "{form}"')
    assert message(of, VALUE, Foreign(key=key)).user_id == user


@pytest.mark.parametrize(
    ("form", "key"),
    [("text", b"\xc8"), ("text", b"\0\0\0\x05"), ("json", b"dana"), ("int64", b"\0\0\0\x05"), ("uuid", b"dana")],
)
def test_key_of_another_format_is_refused_and_named(form: str, key: bytes) -> None:
    above = f'key_format = "{form}"'
    for expression in ("key", "to_string(key)", "value.absent || key"):
        of = source(FIELDS.replace('"value.user"', f'"{expression}"'), above=above)
        assert problem(of, VALUE, Foreign(key=key)) == (
            f"key: {len(key)} bytes that are not {form}: say how it is written with key_format"
        )
    assert message(source(above=above), VALUE, Foreign(key=key)).user_id == "u1"


def test_binary_header_is_refused_and_named() -> None:
    record = Foreign(headers=(("tenant", b"\0\xc8"), ("team", b"blue")))
    assert "not text" in problem(source(FIELDS + 'tenant_id = "headers.tenant"\n'), VALUE, record)
    assert message(source(FIELDS + 'tenant_id = "headers.team"\n'), VALUE, record).tenant_id == "blue"


ITEMS = (
    FIELDS.replace("value.", "item.")
    .replace("item.thread", "value.thread")
    .replace('"item.id"', "\"join(':', [to_string(offset), to_string(index)])\"")
)


def test_each_item_of_a_list_is_mapped_alone() -> None:
    of = source(ITEMS, above='foreach = "value.events"')
    good = {"user": "u1", "role": "user", "text": "Where is my order?"}
    made, invalid = map_items(of, Foreign(), {"thread": "c1", "events": [good, {**good, "role": "clerk"}, good]})
    assert [orjson.loads(one.value)["id"] for one in made] == ["7:0", "7:2"]
    assert invalid is not None
    assert invalid.detail == "item 1: map.role = item.role: a value that role.values does not have"
    assert map_items(of, Foreign(), {"thread": "c1"}) == ([], None)
    assert "no list" in problem(of, {"events": "x"})
    assert "more than 1000 items" in problem(of, {"events": [0] * 1001})


PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "connect-a-topic.md"


def test_documented_expression_makes_messages_of_spans() -> None:
    [expression] = re.findall(r"```text\n(value\.resourceSpans.*?)```", PAGE.read_text(), re.S)
    fields = """
        id = "join(':', [item.id, to_string(index)])"
        conversation_id = "item.of"
        user_id = "item.user"
        role = "item.said.role"
        content = "item.said.parts"
        sent_at = { path = "item.at", unit = "ns" }
    """
    of = source(fields, f'foreach = """{expression}"""\nskip = "!(item.said)"')

    def parts(role: str, *texts: str) -> str:
        said = [{"role": role, "parts": [{"type": "text", "content": text}]} for text in texts]
        return orjson.dumps(said).decode()

    def span(name: str, **attributes: str) -> dict[str, Any]:
        names = {"of": "gen_ai.conversation.id", "user": "enduser.id"}
        names |= {"heard": "gen_ai.input.messages", "said": "gen_ai.output.messages"}
        given = [{"key": names[key], "value": {"stringValue": value}} for key, value in attributes.items()]
        return {"spanId": name, "endTimeUnixNano": "1790000000000000000", "attributes": given}

    chat = {
        "of": "c4",
        "user": "dana",
        "heard": parts("user", "Hi.", "Where is it?"),
        "said": parts("assistant", "Here."),
    }
    spans = [span("a", **chat), span("b"), span("c", **chat | {"of": "c5"})]
    made = events(of, {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})
    assert [(one.id, one.conversation_id, one.content) for one in made if isinstance(one, MessageCreated)] == [
        *(("a:0", "c4", "Where is it?"), ("a:1", "c4", "Here.")),
        *(("c:4", "c5", "Where is it?"), ("c:5", "c5", "Here.")),
    ]


EDITS = "[sources.edits]\nwhen = \"value.kind == 'edit'\"\n"


def test_edit_of_unknown_message_creates_it_if_told() -> None:
    edit = {**VALUE, "kind": "edit", "text": "Where is it?"}
    created, edited = events(source(below=EDITS + "creates = true"), edit)
    assert isinstance(created, MessageCreated)
    assert isinstance(edited, MessageEdited)
    assert created.content == edited.content == "Where is it?"


@pytest.mark.parametrize("placeholder", ["__debezium_unavailable_value", "__gone__"])
@pytest.mark.parametrize("creates", ["true", "false"])
def test_placeholder_never_replaces_a_text(placeholder: str, creates: str) -> None:
    of = source(FIELDS + 'metadata = "value.meta"\n', f'unavailable = "{placeholder}"', f"{EDITS}creates = {creates}")
    edit = {**VALUE, "kind": "edit", "text": placeholder, "meta": placeholder}
    assert events(of, edit) == []
    [changed] = events(of, {**edit, "meta": {"page": 3}})
    assert isinstance(changed, MessageEdited)
    assert changed.changes == {"metadata": {"page": 3}}
    assert "the text is not in the record" in problem(of, {**edit, "kind": "new"})


@pytest.mark.parametrize("value", [None, {"schema": {}, "payload": None}])
def test_null_is_a_named_deletion_and_tombstone_is_skipped(value: Any) -> None:
    with pytest.raises(InvalidRecord) as failed:
        map_record(source(), Foreign(b"null"), value)
    assert failed.value.error_type == "incomplete_deletion"
    assert map_record(source(), Foreign(None), None) == []


@pytest.mark.parametrize("tenant", ["acme", ""])
@pytest.mark.parametrize("thread", ["", 0, None, "c1"])
def test_made_up_row_deletes_nothing(thread: Any, tenant: str) -> None:
    fields = FIELDS.replace("value.", "value.before.") + 'tenant_id = "value.before.tenant"\n'
    of = source(fields, below="[sources.deletions]\nwhen = \"value.op == 'd'\"\n")
    value = {"op": "d", "after": None, "before": {"id": "m1", "thread": thread, "tenant": tenant}}
    if thread and tenant:
        [deletion] = events(of, value)
        assert isinstance(deletion, MessageDeleted)
    else:
        assert problem(of, value).endswith("is not in the record; set: ALTER TABLE … REPLICA IDENTITY FULL")


def test_parts_are_flattened_and_tool_output_is_separate() -> None:
    parts = [
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "name": "orders", "input": {}},
        {"type": "tool_result", "content": "shipped"},
    ]
    said, answered = events(source(), {**VALUE, "role": "assistant", "text": parts})
    assert isinstance(said, MessageCreated)
    assert isinstance(answered, MessageCreated)
    assert (said.content, said.tools, said.role) == ("Let me look.", ("orders",), "assistant")
    assert (answered.id, answered.content, answered.role) == ("m1.2", "shipped", "tool")


def test_whole_message_may_be_the_content() -> None:
    fields = FIELDS.replace('"value.text"', '"value.message"')
    call = {"id": "1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    whole = {"role": "assistant", "content": None, "tool_calls": [call]}
    found = message(source(fields), {**VALUE, "role": "assistant", "message": whole})
    assert (found.content, found.tools) == ("", ("find",))


def test_one_record_becomes_a_bounded_number_of_messages() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "tool_result", "content": "b"}] * 100
    assert "more than 100 messages" in problem(source(), {**VALUE, "text": parts})


def test_record_can_be_skipped() -> None:
    of = source(above="skip = \"value.kind != 'message'\"")
    assert events(of, {**VALUE, "kind": "typing"}) == []
    assert len(events(of, {**VALUE, "kind": "message"})) == 1


def test_record_can_edit_or_delete_an_earlier_message() -> None:
    below = "[sources.edits]\nwhen = \"value.kind == 'edit'\"\n[sources.deletions]\nwhen = \"value.kind == 'delete'\"\n"
    of = source(below=below)
    [edit] = events(of, {**VALUE, "kind": "edit", "text": "Where is it?"})
    assert isinstance(edit, MessageEdited)
    assert edit.changes == {"content": "Where is it?"}
    [deletion] = events(of, {"id": "m1", "thread": "c1", "kind": "delete"})
    assert isinstance(deletion, MessageDeleted)
    assert (deletion.id, deletion.conversation_id) == ("m1", "c1")


def test_extra_fields_and_traces_are_handed_on() -> None:
    fields = FIELDS + 'metadata = "value.meta"\ntools = "value.tools"\nsentiment = "value.mood"\n'
    record = Foreign(headers=(("traceparent", b"00-1-2-01"), ("other", b"x")))
    value = {**VALUE, "meta": {"page": 3}, "tools": ["a"], "mood": -1}
    found = message(source(fields), value, record)
    assert (found.metadata, found.tools, found.sentiment) == ({"page": 3}, ("a",), -1)
    [made] = map_record(source(fields), record, value)
    assert header(made.headers, "traceparent") == "00-1-2-01"
    assert header(made.headers, "other") is None
    assert header(made.headers, "ce_source") == "afterword/ingest"


def test_record_of_too_many_bytes_is_named() -> None:
    with pytest.raises(InvalidRecord, match="too_large"):
        map_record(source(), Foreign(), {**VALUE, "text": "x" * 800_000})


def test_messages_of_a_record_have_bounded_bytes_together() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "tool_result", "content": "b"}] * 5
    value = {**VALUE, "text": parts, "meta": {"page": "x" * 600_000}}
    with pytest.raises(InvalidRecord, match="too_large"):
        map_record(source(FIELDS + 'metadata = "value.meta"'), Foreign(), value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
RECORDS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("id", "thread", "user"), JSON | st.text(min_size=1, max_size=9) | st.integers()),
        "role": JSON | st.sampled_from(["user", "bot", "system", "tool"]),
        "text": JSON | st.text(),
        "meta": JSON,
        "at": JSON | st.integers(0, 4_000_000_000),
        "kind": st.sampled_from(["edit", "delete", "skip", "message"]),
    },
)


@given(value=RECORDS | JSON, key=st.none() | st.binary(max_size=9), timestamp=st.integers(-1, 2**62))
def test_any_record_gives_valid_messages_or_a_reason(value: Any, key: bytes | None, timestamp: int) -> None:
    below = "[sources.edits]\nwhen = \"value.kind == 'edit'\"\n[sources.deletions]\nwhen = \"value.kind == 'delete'\"\n"
    fields = FIELDS + 'metadata = "value.meta"\nsent_at = { path = "value.at", unit = "s" }\n'
    of = source(fields, "skip = \"value.kind == 'skip'\"", below)
    record = Foreign(key=key, timestamp=timestamp)
    try:
        made = map_record(of, record, value)
    except InvalidRecord:
        return
    again = map_record(of, record, value)
    assert made == again
    for one in made:
        event = decode_input(one.conversation_id.encode(), one.value, one.headers, 0)
        assert event.conversation_id == one.conversation_id
        if isinstance(event, MessageCreated) and isinstance(value["text"], str):
            assert event.content == value["text"]
            assert orjson.loads(one.value)["id"] == event.id
