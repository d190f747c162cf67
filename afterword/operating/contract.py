"""Describes the events for other languages: JSON Schema 2020-12 for each event, and AsyncAPI 3.1 for the topics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import version
from typing import Any, Literal
from urllib.parse import quote

import httpx
import orjson
from pydantic import TypeAdapter

from afterword.operating.topics import TABLE
from afterword.schemas.base import Model
from afterword.schemas.messages import INPUT_TYPES
from afterword.schemas.records import CLOSED_TYPES
from afterword.schemas.summaries import ANNOUNCED
from afterword.streams.errors import AfterwordError
from afterword.streams.settings import Kafka

REGISTRY_JSON = "application/vnd.schemaregistry.v1+json"
REGISTRY_SECONDS = 20.0
REGISTRY_TEXT = 200
"""How much of a registry's answer is shown."""


class RegistryRefused(AfterwordError):
    """the registry rejected the schema of {subject}: {problem}"""


DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]
EVENTS: Mapping[str, type[Model]] = {
    **INPUT_TYPES,
    **CLOSED_TYPES,
    **{name: model for model, (name, _) in ANNOUNCED.items()},
}
"""The models of all events by CloudEvents type. Others write those of INPUT_TYPES, and Afterword the rest."""

TYPE_FIELD: Schema = {
    "type": "string",
    "description": "Type of the event if there is no ce_type header; message.created if there is neither.",
}


def event_schemas() -> dict[str, Schema]:
    """Return the complete schema of each event, by event type."""
    return {name: event_schema(name) for name in EVENTS}


def event_schema(name: str, ref_template: str = "#/$defs/{model}") -> Schema:
    """Return the schema of one event. `ref_template` locates the models that it refers to."""
    is_input = name in INPUT_TYPES
    mode: Literal["validation", "serialization"] = "validation" if is_input else "serialization"
    schema = TypeAdapter(EVENTS[name]).json_schema(mode=mode, ref_template=ref_template)
    if is_input:
        schema["properties"] = {**schema["properties"], "type": TYPE_FIELD}
    return {"$schema": DIALECT, **untitled(schema), "title": name}


def untitled(node: Any) -> Any:
    """Remove the titles of fields, because they only repeat their names."""
    if isinstance(node, Mapping):
        kept = {key: value for key, value in node.items() if key != "title" or not isinstance(value, str)}
        return {key: untitled(value) for key, value in kept.items()}
    return [untitled(child) for child in node] if isinstance(node, list) else node


EXAMPLES: dict[str, dict[str, Any]] = orjson.loads((resources.files(__package__) / "examples.json").read_bytes())
"""An example of each event; those that Afterword writes may leave out fields with a default."""


def example(name: str) -> dict[str, Any]:
    """Return an example of an event as found on its topic. Events that Afterword writes have every field."""
    given = EXAMPLES[name]
    if name in INPUT_TYPES:
        return given
    written: dict[str, Any] = orjson.loads(EVENTS[name].model_validate_json(orjson.dumps(given)).to_json())
    return written


CLOUD_EVENT: Schema = TABLE["headers"]
DEAD_LETTER: Schema = {
    **TABLE["dead_letter"]["headers"],
    "required": [*TABLE["dead_letter"]["headers"]["properties"]],
}
CURRENT: Mapping[str, Mapping[str, str]] = TABLE["current"]
"""The messages of the compacted topics: the event whose schema and headers they have, and their key."""
BINDING = {"bindingVersion": "0.5.0"}
"""Version of the Kafka bindings for channels, operations and messages."""
COMPONENTS = "#/components/schemas/{model}"


@dataclass(frozen=True)
class Channel:
    """A topic with its event types. A dead-letter topic has none, because its values are the rejected bytes."""

    name: str
    topic: str
    description: str
    events: Sequence[str] = ()
    actions: Sequence[str] = ("send",)


def channels(kafka: Kafka) -> list[Channel]:
    """Return the topics as these settings name them."""
    written_by_others = {"messages": [*INPUT_TYPES]}
    return [
        Channel(
            name=row["name"],
            topic=row["topic"].format(kafka),
            description=row["description"].format(kafka),
            events=row.get("events") or written_by_others.get(row["name"], ()),
            actions=row.get("actions", ["send"]),
        )
        for row in TABLE["channels"]
    ]


def document(kafka: Kafka) -> dict[str, Any]:
    """Build the AsyncAPI document, from Afterword's point of view: what it receives and sends.

    Topics have their configured names, and the number of partitions that `topics create` gives them.
    """
    described, operations = {}, {}
    for channel in channels(kafka):
        names = channel.events or ["deadLetter"]
        partitions = {"partitions": kafka.partitions, "replicas": kafka.replication_factor}
        described[channel.name] = {
            "address": channel.topic,
            "description": channel.description,
            "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in names},
            "bindings": {"kafka": {"topic": channel.topic, **partitions, **BINDING}},
        }
        for action in channel.actions:
            operations[f"{action}{channel.name[0].upper()}{channel.name[1:]}"] = {
                "action": action,
                "channel": {"$ref": f"#/channels/{channel.name}"},
                "messages": [{"$ref": f"#/channels/{channel.name}/messages/{name}"} for name in names],
                "bindings": {"kafka": BINDING},
            }
    messages = {name: _message(name) for name in EVENTS}
    schemas: dict[str, Schema] = {}
    for name, model in EVENTS.items():
        schema = event_schema(name, COMPONENTS)
        schemas |= schema.pop("$defs", {})
        schemas[model.__name__] = {key: value for key, value in schema.items() if key != "$schema"}
    for name, current in CURRENT.items():
        bindings = {"kafka": {"key": {"type": "string", "description": current["key"]}, **BINDING}}
        title = f"What {current['event']} says"
        messages[name] = {**messages[current["event"]], "name": name, "title": title, "bindings": bindings}
    messages["deadLetter"] = {**TABLE["dead_letter"], "headers": DEAD_LETTER, "bindings": {"kafka": BINDING}}
    return {
        **TABLE["document"],
        "info": {**TABLE["document"]["info"], "version": version("afterword")},
        "channels": described,
        "operations": operations,
        "components": {"messages": messages, "schemas": dict(sorted(schemas.items()))},
    }


def _message(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "title": name,
        "contentType": "application/json",
        "headers": CLOUD_EVENT,
        "payload": {"$ref": COMPONENTS.format(model=EVENTS[name].__name__)},
        "bindings": {"kafka": {"key": TABLE["key"], **BINDING}},
        "examples": [{"name": "one", "payload": example(name)}],
    }


def subjects(kafka: Kafka) -> dict[str, Schema]:
    """Return the schemas by registry subject: `TOPIC-value`, or `TOPIC-EVENT` for a topic with several events."""
    schemas, by_subject = event_schemas(), {}
    for channel in channels(kafka):
        names = {name: CURRENT[name]["event"] if name in CURRENT else name for name in channel.events}
        for name in names.values():
            by_subject[f"{channel.topic}-{'value' if len(names) == 1 else name}"] = schemas[name]
    return by_subject


async def register(url: str, kafka: Kafka) -> dict[str, int]:
    """Register every subject as JSON Schema, and return the schemas' ids. Registered schemas keep their ids.

    Raises: RegistryRefused.
    """
    ids = {}
    async with httpx.AsyncClient(timeout=REGISTRY_SECONDS) as client:
        for subject, schema in subjects(kafka).items():
            body = orjson.dumps({"schemaType": "JSON", "schema": orjson.dumps(schema).decode()})
            address = f"{url.rstrip('/')}/subjects/{quote(subject, safe='')}/versions"
            try:
                response = await client.post(address, content=body, headers={"Content-Type": REGISTRY_JSON})
                response.raise_for_status()
                ids[subject] = int(orjson.loads(response.content)["id"])
            except httpx.HTTPStatusError as error:
                problem = f"{error.response.status_code} {error.response.text[:REGISTRY_TEXT]}"
                raise RegistryRefused(subject=subject, problem=problem) from None
            except (httpx.HTTPError, httpx.InvalidURL, orjson.JSONDecodeError, KeyError, TypeError) as error:
                raise RegistryRefused(subject=subject, problem=type(error).__name__) from None
    return ids


def documents(kafka: Kafka) -> dict[str, bytes]:
    """Return the contents of the exported files, by name."""
    schemas = {f"{event_type}.schema.json": schema for event_type, schema in event_schemas().items()}
    contents = {**schemas, "asyncapi.json": document(kafka)}
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    return {name: orjson.dumps(content, option=options) for name, content in contents.items()}
