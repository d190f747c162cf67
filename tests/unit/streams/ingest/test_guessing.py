"""The first guess of a mapping."""

from typing import Any

import orjson
import pytest

from afterword.streams.ingest.guessing import NOTHING, guess, toml_of
from afterword.streams.ingest.previews import format_of
from afterword.streams.ingest.registry import open_registry
from afterword.streams.ingest.sources import context, parse_sources
from afterword.streams.settings import RegistrySettings
from tests.unit.streams.ingest.records import Foreign, map_record

RECORDS = 24


def about(value: Any, key: str | None = None, headers: dict[str, str] | None = None) -> dict[str, Any]:
    return {"key": key, "value": value, "headers": headers or {}, "topic": "chat", "partition": 0, "offset": 0} | {
        "timestamp": 1_790_000_000_000
    }


def flat(n: int) -> dict[str, Any]:
    return about(
        {
            "message_id": f"m{n}",
            "conversation": f"c{n % 3}",
            "user": f"u{n % 3}",
            "sender": "customer" if n % 2 else "bot",
            "channel_name": "web chat",
            "text": f"Where is my order number {n}?",
            "created_at": f"2026-11-02T09:15:{n:02d}Z",
        }
    )


def nested(n: int) -> dict[str, Any]:
    value: dict[str, Any] = {"event": {"uuid": f"{n:08x}"}, "thread": {"id": f"t{n % 4}"}, "ts": 1_790_000_000_000 + n}
    if n % 5 == 0:
        return about({**value, "kind": "typing"}, headers={"tenant": "acme"})
    parts = [{"type": "text", "text": f"Where is order {n}?"}, {"type": "image_url", "image_url": {"url": "x"}}]
    said = {"author": {"role": "human" if n % 2 else "assistant"}, "body": {"parts": parts}}
    return about({**value, **said, "customer": {"id": 100 + n % 4}, "kind": "message"}, headers={"tenant": "acme"})


def keyed(n: int) -> dict[str, Any]:
    said = {"direction": "in" if n % 2 else "out", "body": f"Where is order {n}?", "time": 1_790_000_000 + n}
    return about({"id": n, "session_id": f"s{n // 6}", **said}, key=f"customer-{n // 6}")


EXPECTED = {
    flat: {
        "id": "value.message_id",
        "conversation_id": "value.conversation",
        "user_id": "value.user",
        "role": {"path": "value.sender", "values": {"bot": "assistant", "customer": "user"}},
        "content": "value.text",
        "sent_at": "value.created_at",
    },
    nested: {
        "id": "value.event.uuid",
        "conversation_id": "value.thread.id",
        "user_id": "value.customer.id",
        "tenant_id": "headers.tenant",
        "role": "value.author.role",
        "content": "value.body.parts",
        "sent_at": {"path": "value.ts", "unit": "ms"},
    },
    keyed: {
        "id": "value.id",
        "conversation_id": "value.session_id",
        "user_id": "key",
        "role": {"path": "value.direction", "values": {"in": "user", "out": "assistant"}},
        "content": "value.body",
        "sent_at": {"path": "value.time", "unit": "s"},
    },
}


@pytest.mark.parametrize("shape", EXPECTED)
def test_names_types_and_cardinality_identify_the_fields(shape: Any) -> None:
    found = guess([shape(n) for n in range(RECORDS)])
    assert (found.fields, found.missing) == (EXPECTED[shape], [])
    assert found.source.get("skip") == ("value.kind != 'message'" if shape is nested else None)
    assert ("skip" in found.notes) == (shape is nested)  # edits and deletions were not seen


@pytest.mark.parametrize("shape", EXPECTED)
def test_guessed_mapping_maps_all_records(shape: Any) -> None:
    records = [shape(n) for n in range(RECORDS)]
    [source] = parse_sources(toml_of("chat", "json", guess(records)), "")
    for n, record in enumerate(records):
        headers = tuple((name, said.encode()) for name, said in record["headers"].items())
        foreign = Foreign(key=record["key"] and record["key"].encode(), headers=headers, offset=n)
        assert len(map_record(source, foreign, record["value"])) == (shape is not nested or n % 5 != 0)


def test_missing_field_is_named_and_the_file_loads() -> None:
    for records in ([], [about(5)], [about({"a": n, "b c": {"d'": "x"}}) for n in range(5)], [about(None)]):
        found = guess(records)
        assert "content" in found.missing
        [source] = parse_sources(toml_of('a "topic"', "json", found), "")
        assert source.topics == ('a "topic"',)


@pytest.mark.parametrize(
    ("field", "values", "guessed"),
    [
        ("is_bot", [True, False], {"true": "assistant", "false": "user"}),
        ("fromCustomer", [False, True], {"true": "user", "false": "assistant"}),
        ("is_bot", [True], None),
        ("opted_in", [True, False], None),
    ],
)
def test_flag_named_for_a_role_tells_the_role(field: str, values: list[bool], guessed: Any) -> None:
    records = [flat(n) for n in range(RECORDS)]
    for n, record in enumerate(records):
        del record["value"]["sender"]
        record["value"][field] = values[n % len(values)]
    found = guess(records)
    assert found.fields["role"] == ({"path": f"value.{field}", "values": guessed} if guessed else NOTHING)


def test_binary_key_is_not_guessed_as_the_user() -> None:
    records = [context(Foreign(key=bytes([200, n % 3])), flat(n)["value"]) for n in range(RECORDS)]
    assert guess(records).fields["user_id"] == "value.user"
    for record in records:
        del record["value"]["user"]
    assert guess(records).missing == ["user_id"]


def test_json_in_a_string_is_read() -> None:
    records = [about({"payload": orjson.dumps(flat(n)["value"]).decode()}) for n in range(RECORDS)]
    found = guess(records)
    assert found.fields["content"] == "from_json(value.payload).text"
    [source] = parse_sources(toml_of("chat", "json", found), "")
    assert b"Where is my order number 3?" in map_record(source, Foreign(), records[3]["value"])[0].value


def test_constant_key_is_not_guessed_as_the_user() -> None:
    records = [flat(n) | {"key": "chat"} for n in range(RECORDS)]
    records[3]["value"]["user"] = "somebody else"
    assert guess(records).fields["user_id"] == "value.user"
    for n, record in enumerate(records):
        del record["value"]["user"]
        record["value"]["client_version"] = f"v{n % 2}"
    assert guess(records).missing == ["user_id"]


@pytest.mark.parametrize("texts", [["我的订单在哪里?", "马上就到。"], ["hi", "ok", "thanks"]])
def test_texts_without_spaces_are_found(texts: list[str]) -> None:
    records = [flat(n) for n in range(RECORDS)]
    for n, record in enumerate(records):
        del record["value"]["channel_name"]
        record["value"]["text"] = texts[n % len(texts)]
    assert guess(records).fields["content"] == "value.text"


def test_time_missing_in_some_messages_comes_from_records() -> None:
    records = [flat(n) for n in range(RECORDS)]
    del records[4]["value"]["created_at"]
    assert "sent_at" not in guess(records).fields


def test_names_that_jmespath_would_misread_are_quoted() -> None:
    records = [about({"message-id": f"m{n}", "thread id": f"t{n % 2}", 'body"': f"one two {n}"}) for n in range(5)]
    found = guess(records)
    assert found.fields["id"] == 'value."message-id"'
    assert found.fields["conversation_id"] == 'value."thread id"'
    [source] = parse_sources(toml_of("chat", "json", found), "")
    assert source.map.content.find(records[2]) == "one two 2"


@pytest.mark.parametrize(
    ("values", "form"),
    [
        ([b'{"a": 1}', None], "json"),
        ([b'\0\0\0\0\x01{"a": 1}', b"\0\0\0\0\x02[]"], "json-schema"),
        ([b"\0\0\0\0\x01\x02a", b'\0\0\0\0\x01{"a"'], "avro"),
        ([], "json"),
        ([b"\0\0\0\0\x01\x02a", b'{"a": 1}'], "json"),
    ],
)
async def test_first_bytes_tell_the_format(values: list[bytes | None], form: str) -> None:
    async with open_registry(RegistrySettings()) as registry:
        assert await format_of(registry, [(value, ()) for value in values if value]) == form
