"""Whole topics, guessed and mapped by the guess alone.

Each line of `foreign_topics.jsonl` is a topic: its records (`hex:` begins bytes that are no text), which fields must
not be found in it, and what each record becomes.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import InvalidRecord
from afterword.streams.ingest.formats import read_json
from afterword.streams.ingest.guessing import Guess, guess, key_format_of, toml_of
from afterword.streams.ingest.sources import Source, context, map_items, parse_sources
from tests.unit.streams.ingest.records import Foreign, data_of

RECORDED = Path(__file__).parents[3] / "data" / "debezium" / "recorded.jsonl"
TABLES = {one["kind"]: one["records"] for one in map(json.loads, RECORDED.read_text().splitlines())}
TOPICS = [json.loads(line) for line in Path(__file__).with_name("foreign_topics.jsonl").read_text().splitlines()]


def guessed(given: Any) -> tuple[list[tuple[Foreign, Any]], str, Guess, Source]:
    """Return records with their values, the format of their keys, the guess, and its source."""
    records = []
    for offset, one in enumerate(given):
        headers = tuple((name, data_of(value) or b"") for name, value in one.get("headers", {}).items())
        value = data_of(one["value"])
        record = Foreign(value, data_of(one.get("key")), headers, "topic", 0, offset)
        records.append((record, None if value is None else read_json(value)))
    form = key_format_of([record.key for record, _ in records])
    found = guess([context(record, value, form) for record, value in records if record.value is not None], form)
    [source] = parse_sources(toml_of("topic", "json", found), "")
    return records, form, found, source


def outcomes(source: Any, records: Any) -> Iterator[str]:
    for record, value in records:
        try:
            made, invalid = map_items(source, record, value)
        except InvalidRecord as error:
            made, invalid = [], error
        for one in made:
            event = json.loads(one.value)
            kind = dict(one.headers)["ce_type"].decode().removeprefix("message.")
            names = ("tenant_id", "conversation_id", "user_id", "id", "role", "sent_at", "content")
            yield " ".join([kind, *(str(event[name]) for name in names if name in event)])
        if invalid:
            yield invalid.error_type
        elif not made:
            yield "skipped"


NAMES = """
id type op before after source data table database schema payload __deleted __op user_id conversation thread tenant role
text messages new edited_text created_at deleted_at is_active is_bot private string $oid odd-name events author key
event bot_id channel
"""
TEXTS = ["Where is it?", '{"id": 1}', "2026-03-04", "", "{", "__x", *"abud", "user", "bot", "deleted", "update"]
SCALARS = st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from(TEXTS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES.split()), inner, max_size=6),
    max_leaves=25,
)


@given(values=st.lists(VALUES, max_size=6), keys=st.lists(st.none() | st.binary(max_size=9), min_size=6, max_size=6))
def test_any_topic_gets_a_mapping_that_refuses_or_maps(values: list[Any], keys: list[bytes | None]) -> None:
    pairs = zip(values, keys, strict=False)
    given = [{"key": None if key is None else f"hex:{key.hex()}", "value": json.dumps(value)} for value, key in pairs]
    records, _, _, source = guessed(given)
    assert len(list(outcomes(source, records))) >= len(records)


@pytest.mark.parametrize("topic", TOPICS, ids=[topic["kind"] for topic in TOPICS])
def test_foreign_topic_is_mapped_by_the_guess_alone(topic: Any) -> None:
    records, _, found, source = guessed(topic["records"])
    assert list(found.missing) == topic["missing"]
    assert list(outcomes(source, records)) == topic["becomes"]
    assert ("REPLICA IDENTITY FULL" in found.notes.get("", "")) == topic["warns"]


@pytest.mark.parametrize("kind", TABLES)
def test_recorded_table_is_mapped_by_the_guess_alone(kind: str) -> None:
    records, form, found, source = guessed([{"key": key, "value": value} for key, value in TABLES[kind]])
    assert (form, list(found.missing)) == ("json", [])
    texts: dict[str, str] = {}
    for record, value in records:
        with suppress(InvalidRecord):
            for made in map_items(source, record, value).records:
                event = json.loads(made.value or b"{}")
                texts[event["id"]] = event.get("content", "deleted")
    are_deleted = kind not in ("default", "unwrapped") and "outbox" not in kind
    assert texts["1"] == ("deleted" if are_deleted else "Hello, my grey kettle leaks since Tuesday.")
    assert texts["4"] == "Where is the green lamp I ordered?"
    assert texts["101"].startswith("Then the seal is worn. A long answer follows.")
    assert {"1", "2", "3", "4", "5", "101"} <= texts.keys()


def test_missing_field_is_named_and_the_file_loads() -> None:
    for values in ([], [5], [{"a": n, "b c": {"d'": "x"}} for n in range(5)], [None]):
        found = guess([context(Foreign(), value) for value in values])
        assert "content" in found.missing
        [source] = parse_sources(toml_of('a "topic"', "json", found), "")
        assert source.topics == ('a "topic"',)


def test_binary_key_is_not_guessed_as_the_user() -> None:
    values = [
        {"id": n, "thread": f"t{n % 2}", "role": ("user", "bot")[n // 2 % 2], "text": f"no. {n}"} for n in range(8)
    ]
    records = [context(Foreign(key=bytes([200, n % 3])), value) for n, value in enumerate(values)]
    assert guess(records).missing == ["user_id"]
