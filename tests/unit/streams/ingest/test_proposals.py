"""What `afterword init` and `afterword source try` say of a topic's records."""

import gzip
from typing import Any

import orjson
import pytest
from aiokafka import ConsumerRecord

from afterword.streams.errors import ConfigurationError
from afterword.streams.ingest.previews import Proposal, checked, proposal
from afterword.streams.ingest.registry import RegistryUnavailable
from afterword.streams.settings import RegistrySettings, Settings
from tests.schema_registry import Registry, framed

TEXTS = ("Where is my kite?", "It is in the shed.", "Since when?", "Since Monday, I think.")


def record(offset: int, value: Any, headers: tuple[tuple[str, bytes], ...] = ()) -> ConsumerRecord:
    data = value if isinstance(value, bytes) else orjson.dumps(value)
    return ConsumerRecord("chat", 0, offset, 1_790_000_000_000, 0, None, data, None, 0, 0, headers)


def said(n: int, **changed: Any) -> dict[str, Any]:
    value = {"id": n, "thread": f"t{n // 2}", "user": f"u{n // 2}", "role": ("human", "ai")[n % 2]}
    return {**value, "text": TEXTS[n % 4], "sent_at": f"2026-03-04T10:00:0{n}Z", **changed}


async def of(*values: Any) -> Proposal:
    return await proposal(Settings(), "chat", None, [record(n, value) for n, value in enumerate(values)])


async def test_examples_come_from_different_conversations() -> None:
    found = await of(*map(said, range(8)))
    fields = {name: shown for name, *shown in found.fields}
    assert fields["conversation_id"][1] == ["t0", "t1", "t2"]
    assert fields["user_id"] == ["value.user", ["u0", "u1", "u2"], 4]
    assert fields["content"][1] == [TEXTS[0], TEXTS[2], TEXTS[0]]


async def test_missing_field_is_named_in_table_and_file() -> None:
    found = await of(*(said(n, user="shop") for n in range(8)))
    assert ("user_id", "not found") in [(name, expression) for name, expression, *_ in found.fields]
    assert 'user_id = "`null`"  # not found' in found.toml
    assert checked(found.previews).problems.total() == 8


async def test_check_counts_roles_repeats_edits_and_times() -> None:
    found = await of(*map(said, range(4)), said(0), said(1, text="It is in the old shed."))
    counts = checked(found.previews)
    assert (counts.roles, counts.repeats, counts.edits) == ({"user": 2, "assistant": 2}, 1, 1)
    assert counts.people == {"t0": {"u0"}, "t1": {"u1"}}
    assert counts.times == ["2026-03-04T10:00:00.000Z", "2026-03-04T10:00:03.000Z"]
    assert counts.doubts == []


async def test_check_doubts_one_user_in_several_conversations() -> None:
    found = await of(*map(said, range(8)))
    for preview in found.previews:
        event = {**orjson.loads(preview.becomes[0].value), "user_id": "shop"}
        preview.becomes[:] = [preview.becomes[0]._replace(value=orjson.dumps(event))]  # type: ignore[index]
    assert checked(found.previews).doubts == ["all conversations have the same user"]


async def test_failing_schema_is_named_and_others_are_mapped() -> None:
    names = ("id", "thread", "user", "role", "text")
    schema = {"type": "record", "name": "Chat", "fields": [{"name": name, "type": "string"} for name in names]}
    async with Registry() as registry:
        good, bad = registry.add(schema), registry.add(schema)
        registry.fails.add(bad)
        values = [said(n, id=str(n)) for n in range(8)]
        records = [record(n, framed(bad if n in (2, 7) else good, schema, value)) for n, value in enumerate(values)]
        settings = Settings(registry=RegistrySettings(url=registry.url))
        found = await proposal(settings, "chat", None, records)
    assert (found.guess.missing, sum(bool(one.becomes) for one in found.previews)) == ([], 6)
    [problem] = {one.problem for one in found.previews if one.problem}
    assert f"does not give schema {bad}: it answers with 500" in problem


async def test_absent_registry_is_an_error_of_all_records() -> None:
    async with Registry() as registry:
        registry.is_away = True
        settings = Settings(registry=RegistrySettings(url=registry.url))
        for form in (None, "avro"):
            with pytest.raises(RegistryUnavailable, match="503"):
                await proposal(settings, "chat", form, [record(0, b"\0\0\0\0\1" + BARE)])


BARE = bytes.fromhex("066d2d3106742d31")


@pytest.mark.parametrize(
    ("value", "headers", "named"),
    [
        (BARE, (("apicurio.value.contentId", bytes(8)),), "AFTERWORD_REGISTRY__URL"),
        (b"not JSON", (), "not JSON"),
        (gzip.compress(b"{}", mtime=0), (), "gzip"),
    ],
)
async def test_unreadable_topic_gets_no_mapping(value: bytes, headers: Any, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        await proposal(Settings(), "chat", None, [record(n, value, headers) for n in range(3)])
