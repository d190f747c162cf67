"""What records become: each line of `mappings.jsonl` is a record, a source, and what the one becomes by the other."""

import json
import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import InvalidRecord, MessageCreated, decode_input
from afterword.schemas.records import header
from afterword.streams.ingest.sources import Fields, Source, map_items
from tests.unit.segmenter.chat import Chat, Sent, flush
from tests.unit.streams.ingest.records import FIELDS, VALUE, Foreign, data_of, events, map_record, source


def message(of: Any, value: Any, record: Foreign | None = None) -> MessageCreated:
    [event] = events(of, value, record)
    assert isinstance(event, MessageCreated)
    return event


def problem(of: Any, value: Any, record: Foreign | None = None) -> str:
    with pytest.raises(InvalidRecord) as failed:
        map_record(of, record or Foreign(), value)
    return failed.value.detail


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


ROWS = [json.loads(line) for line in Path(__file__).with_name("mappings.jsonl").read_text().splitlines()]
MAP = {"id": "value.id", "conversation_id": "value.thread", "user_id": "value.user"}
MAP |= {"role": "value.role", "content": "value.text"}


@pytest.mark.parametrize("row", ROWS, ids=[row["kind"] for row in ROWS])
def test_record_becomes_what_its_row_says(row: Any) -> None:
    fields = {**MAP, **row["source"].get("map", {})}
    of = Source.model_validate({"topics": ["chat"], **row["source"], "map": fields})
    headers = tuple((name, data_of(value) or b"") for name, value in row.get("headers", {}).items())
    record = Foreign(None if row.get("is_tombstone") else b"", data_of(row.get("key")), headers)
    try:
        made, invalid = map_items(of, record, row["value"])
    except InvalidRecord as error:
        made, invalid = [], error
    becomes = []
    for one, expected in zip(made, row["becomes"], strict=True):
        event = {
            "type": (header(one.headers, "ce_type") or "").removeprefix("message."),
            **json.loads(one.value or b""),
        }
        becomes.append({name: event.get(name) for name in expected})
    assert (becomes, str(invalid or "")) == (row["becomes"], row.get("problem", ""))


def test_unencodable_or_too_large_records_are_named() -> None:
    of = source(FIELDS + 'metadata = "value.meta"\n')
    parts = [{"type": "text", "text": "a"}, {"type": "tool_result", "content": "b"}]
    assert "a field is bytes" in problem(of, {**VALUE, "meta": b"x"})
    assert "more than 1000 items" in problem(source(above='foreach = "value.items"'), {"items": [0] * 1001})
    assert "more than 100 messages" in problem(of, {**VALUE, "text": parts * 100})
    assert "its messages have more than" in problem(of, {**VALUE, "text": parts * 5, "meta": {"page": "x" * 600_000}})
    assert "800" in problem(of, {**VALUE, "text": "x" * 800_000})


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


def test_traces_are_handed_on_without_other_headers() -> None:
    [made] = map_record(source(), Foreign(headers=(("traceparent", b"00-1-2-01"), ("other", b"x"))), VALUE)
    found = [header(made.headers, name) for name in ("traceparent", "other", "ce_source")]
    assert found == ["00-1-2-01", None, "afterword/ingest"]


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
