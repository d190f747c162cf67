"""The AsyncAPI document, its schemas and examples agree with the code, with the last release and with a registry."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from afterword.operating.contract import (
    EVENTS,
    EXAMPLES,
    RegistryRefused,
    document,
    documents,
    event_schema,
    event_schemas,
    example,
    register,
    subjects,
)
from afterword.schemas import EpisodeClosed, InvalidRecord, MessageCreated, SummaryCreated, decode_input, fingerprint
from afterword.schemas.messages import INPUT_TYPES
from afterword.schemas.records import CE_TYPE, OWNER
from afterword.streams.settings import Kafka
from afterword.streams.telemetry.tracing import TRACEPARENT
from tests.compatibility import breaking_changes
from tests.endpoints import serving
from tests.rows import with_rows
from tests.samples import a_closed_episode, a_message, a_summary

GENERATED = Path(__file__).parents[5] / "schemas" / "generated"
VALIDATORS = {
    name: Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    for name, schema in event_schemas().items()
}
ODD_VALUES = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3) | st.sampled_from(([], [1], {}, "x" * 257))
)


def taken(event_type: str, event: dict[str, Any]) -> bool:
    """Return whether the decoder of `messages` accepts the event."""
    key = str(event.get("conversation_id")).encode()
    try:
        decode_input(key, orjson.dumps(event), [("ce_type", event_type.encode())], 0)
    except InvalidRecord:
        return False
    return True


def test_schema_files_match_the_models() -> None:
    stale = [name for name, found in documents(Kafka()).items() if (GENERATED / name).read_bytes() != found]
    assert stale == [], "stale: make docs"


@pytest.mark.parametrize("event_type", VALIDATORS)
def test_each_schema_is_valid_in_its_dialect(event_type: str) -> None:
    Draft202012Validator.check_schema(VALIDATORS[event_type].schema)
    assert VALIDATORS[event_type].schema["$schema"] == Draft202012Validator.META_SCHEMA["$id"]


@pytest.mark.parametrize("event", EVENTS)
def test_each_example_is_valid_and_loses_nothing(event: str) -> None:
    shown = example(event)
    VALIDATORS[event].validate(shown)
    assert shown == merged(shown, EXAMPLES[event]), "afterword/operating/examples.json"


def merged(whole: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Merge `part` into `whole`, in nested objects too."""
    return whole | {key: merged(whole[key], value) if isinstance(value, dict) else value for key, value in part.items()}


def test_examples_are_consistent() -> None:
    episode = EpisodeClosed.model_validate_json(orjson.dumps(EXAMPLES["episode.closed"]))
    assert fingerprint(episode.messages) == episode.fingerprint
    assert episode.message_count == len(episode.messages)
    assert taken("message.created", EXAMPLES["message.created"])
    for event in INPUT_TYPES:
        assert taken(event, EXAMPLES[event])


@pytest.mark.parametrize(
    ("event_type", "written"),
    [("message.created", a_message()), ("episode.closed", a_closed_episode()), ("summary.created", a_summary())],
)
def test_events_we_write_are_valid(event_type: str, written: MessageCreated | EpisodeClosed | SummaryCreated) -> None:
    VALIDATORS[event_type].validate(orjson.loads(written.to_json()))


@given(st.sampled_from([*INPUT_TYPES]), st.data())
def test_schema_and_model_accept_the_same_events(event_type: str, data: st.DataObject) -> None:
    schema = VALIDATORS[event_type].schema
    event = copy.deepcopy(EXAMPLES[event_type])
    field = data.draw(st.sampled_from(sorted({*schema["properties"], "unknown"} - {"type"})))
    if data.draw(st.booleans()):
        event[field] = data.draw(ODD_VALUES)
    else:
        event.pop(field, None)
    assert taken(event_type, event) == VALIDATORS[event_type].is_valid(event), event


@pytest.mark.parametrize("field", ["conversation_id", "messages", "fingerprint", "started_at"])
def test_event_without_a_required_field_is_invalid(field: str) -> None:
    event = {name: value for name, value in EXAMPLES["episode.closed"].items() if name != field}
    assert not VALIDATORS["episode.closed"].is_valid(event)


@pytest.mark.parametrize("event", sorted(EVENTS.keys() - INPUT_TYPES.keys()))
def test_events_we_write_always_have_every_field(event: str) -> None:
    schema = VALIDATORS[event].schema
    assert sorted(schema["required"]) == sorted(schema["properties"])


def test_fields_carry_the_models_descriptions() -> None:
    assert "Event time" in VALIDATORS["message.created"].schema["properties"]["sent_at"]["description"]
    assert isinstance(VALIDATORS["summary.created"].schema["properties"]["title"], dict)


DOCUMENT = document(Kafka())


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*map(references, node.values()))
    return set().union(*map(references, node)) if isinstance(node, list) else set()


def target(reference: str) -> Any:
    found: Any = DOCUMENT
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return found


def test_every_reference_has_its_target() -> None:
    found = references(DOCUMENT)
    assert found
    for reference in found:
        assert target(reference)


def test_channels_have_the_configured_names_and_partitions() -> None:
    found = document(Kafka(messages_topic="chat", partitions=3))["channels"]
    assert found["messages"]["address"] == "chat"
    assert found["messages"]["bindings"]["kafka"]["partitions"] == 3
    assert found["messagesDeadLetters"]["address"] == "chat.dlq"


@with_rows
def test_operations_match_what_afterword_does(operation: str, action: str, topic: str) -> None:
    found = DOCUMENT["operations"][operation]
    assert found["action"] == action
    assert target(found["channel"]["$ref"])["address"] == topic


def test_messages_have_key_headers_and_an_example() -> None:
    for name in ("message.created", "summary.created"):
        message = DOCUMENT["components"]["messages"][name]
        assert message["bindings"]["kafka"]["key"]["minLength"] == 1
        assert {CE_TYPE, OWNER, TRACEPARENT} <= message["headers"]["properties"].keys()
        assert message["examples"]


def test_no_definition_is_unused() -> None:
    assert b"$defs" not in orjson.dumps(DOCUMENT)


RELEASED = Path(__file__).parents[5] / "schemas" / "released"
OLD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "maxLength": 9},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/Part"}},
    },
    "required": ["id"],
    "$defs": {"Part": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
}


def test_narrowing_breaks_old_producers_and_widening_old_subscribers() -> None:
    narrower = copy.deepcopy(OLD)
    narrower["properties"]["id"]["maxLength"] = 8
    assert breaking_changes(OLD, narrower, "input") == [".id: maxLength is narrower"]
    assert breaking_changes(narrower, OLD, "output") == [".id: maxLength is narrower"]
    assert breaking_changes(narrower, OLD, "input") == []


@pytest.mark.parametrize("direction", ["input", "output"])
def test_removed_field_breaks_producers_and_subscribers(direction: Any) -> None:
    removed = copy.deepcopy(OLD)
    removed["$defs"]["Part"] = {"type": "object", "properties": {}}
    assert ".parts.n: removed" in breaking_changes(OLD, removed, direction)


@pytest.mark.parametrize("event", EVENTS)
def test_schema_stays_compatible_with_the_last_release(event: str) -> None:
    last = max(RELEASED.iterdir(), key=lambda path: [int(part) for part in path.name.split(".")])
    file = last / f"{event}.schema.json"
    if not file.exists():  # it is new since then
        return
    released = orjson.loads(file.read_bytes())
    assert breaking_changes(released, event_schema(event), "input" if event in INPUT_TYPES else "output") == []


PAGE = Path(__file__).parents[5] / "docs" / "how-to" / "current-state.md"
KAFKA = Kafka()


async def test_each_topics_values_are_registered_as_json_schema() -> None:
    taken: dict[str, Any] = {}

    async def take(request: web.Request) -> web.Response:
        body = await request.json()
        assert body["schemaType"] == "JSON"
        assert request.headers["authorization"].startswith("Basic ")
        taken[request.match_info["subject"]] = json.loads(body["schema"])
        return web.json_response({"id": len(taken)})

    async with serving(take, "POST", "/subjects/{subject}/versions") as url:
        ids = await register(url.replace("http://", "http://user:secret@"), KAFKA)
    assert taken == subjects(KAFKA)
    assert list(ids.values()) == list(range(1, len(taken) + 1))
    assert taken["afterword.episodes-value"] == taken["summary.created-value"] == event_schemas()["summary.created"]
    assert {"messages-message.created", "episode.closed-episode.closed"} < taken.keys()


@pytest.mark.parametrize(("status", "body"), [(409, '{"message": "incompatible"}'), (200, "no JSON"), (200, "{}")])
async def test_refusing_registry_is_named_with_the_subject(status: int, body: str) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    async with serving(refuse, "POST", "/subjects/{subject}/versions") as url:
        with pytest.raises(RegistryRefused, match=r"messages-message\.created"):
            await register(url, KAFKA)


async def test_absent_registry_is_named() -> None:
    with pytest.raises(RegistryRefused, match="ConnectError"):
        await register("http://127.0.0.1:1", KAFKA)


def test_documented_sink_accepts_the_schemas_fields() -> None:
    found = re.search(r"```json\n(.*?)```", PAGE.read_text(), re.S)
    assert found is not None
    config = json.loads(found[1])["config"]
    assert config["topics"] == KAFKA.current_episodes_topic
    assert config["consumer.override.isolation.level"] == "read_committed"
    assert config["behavior.on.null.values"] == "delete"
    fields = config["transforms.fields.include"].split(",")
    schema = event_schemas()["summary.created"]["properties"]
    assert set(fields) <= schema.keys()
    assert "episode_id" in fields
