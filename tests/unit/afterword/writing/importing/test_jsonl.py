"""Our own JSON Lines → messages."""

from datetime import UTC, datetime

import orjson
import pytest

from afterword.writing.importing.formats import ImportOptions, ImportOutcome
from tests.unit.afterword.writing.importing.histories import messages_of, read_all, reasons

MESSAGE = {"id": "1", "conversation_id": "c", "user_id": "u", "role": "user", "content": "secret words"}

NONE = ImportOptions()


def read(*lines: bytes, options: ImportOptions = NONE) -> list[ImportOutcome]:
    return read_all("jsonl", {"a.jsonl": b"\n".join(lines)}, options)


def line(**changes: object) -> bytes:
    return orjson.dumps(MESSAGE | changes)


def test_message_is_read_as_written():
    [message] = messages_of(read(line(sent_at="2024-05-01T12:00:00+02:00", metadata={"a": 1}, agent_id="x")))
    assert (message.user_id, message.agent_id, message.metadata) == ("u", "x", {"a": 1})
    assert message.sent_at == datetime(2024, 5, 1, 10, tzinfo=UTC)


def test_exported_message_is_the_same_message():
    [message] = messages_of(read(line(sent_at="2024-05-01T12:00:00+02:00", metadata={"a": 1}, tools=["x"])))
    assert messages_of(read(orjson.dumps(message.model_dump(mode="json")))) == [message]


def test_options_supply_missing_fields_tenant_and_prefix():
    nameless = orjson.dumps({name: value for name, value in MESSAGE.items() if name != "user_id"})
    found = messages_of(read(line(), nameless, options=ImportOptions("ann", "acme", "old-")))
    assert [m.user_id for m in found] == ["u", "ann"]
    assert {(m.tenant_id, m.conversation_id) for m in found} == {("acme", "old-c")}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"secret", "not JSON at column 1"),
        (line(content="größe").decode().encode("latin-1"), "not UTF-8 at byte "),
        ('{"content": "secret"}'.encode("utf-16"), "not UTF-8 at byte 1"),
        (b'["secret"]', "schema_violation: not a JSON object"),
        (line(role="boss"), "schema_violation: role"),
        (line(conversation_id=7), "schema_violation: conversation_id: a string is required"),
        (line(type="message.edited"), "not a message"),
        (line(content="secret" * 200_000), "too_large"),
    ],
)
def test_bad_line_is_named_without_content_and_others_read(bad, reason):
    outcomes = read(line(), bad, b"", line(id="2"))
    assert [m.id for m in messages_of(outcomes)] == ["1", "2"]
    [rejected] = reasons(outcomes)
    assert rejected.startswith(f"a.jsonl:2: {reason}")
    assert "secret" not in rejected


def test_message_of_another_tenant_is_rejected():
    assert reasons(read(line(tenant_id="other"), options=ImportOptions("ann", "acme"))) == [
        "a.jsonl:1: its tenant is not the one given with --tenant"
    ]
