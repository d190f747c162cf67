"""The topics as an AsyncAPI 3.1 document, from the point of view of Afterword: it receives, and it sends."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from afterword.contract.examples import example
from afterword.contract.json_schemas import EVENTS, Event, Schema, event_schema
from afterword.schemas.dead_letters import DEAD_LETTER_PREFIX
from afterword.streams.settings import Kafka
from afterword.streams.telemetry.tracing import TRACEPARENT

BINDING = {"bindingVersion": "0.5.0"}
"""Of the Kafka bindings for channels, operations and messages."""
TEXT: Schema = {"type": "string"}
COMPONENTS = "#/components/schemas/{model}"

KEY: Schema = {"type": "string", "minLength": 1, "maxLength": 256, "description": "The conversation_id, in UTF-8."}
TIME: Schema = {"type": "string", "format": "date-time"}


def _said(description: str, schema: Schema = TEXT) -> Schema:
    return {**schema, "description": description}


CLOUD_EVENT: Schema = {
    "type": "object",
    "description": "CloudEvents 1.0, binary mode of the Kafka protocol binding.",
    "properties": {
        "ce_specversion": _said("Of CloudEvents.", {"const": "1.0"}),
        "ce_id": _said("Of the event: a repeat has the same."),
        "ce_type": _said("The type of the event."),
        "ce_source": _said("Who wrote it."),
        "ce_time": _said("Of the event.", TIME),
        "content-type": _said("Of the value.", {"const": "application/json"}),
        TRACEPARENT: _said("Of W3C Trace Context, where tracing is on."),
    },
}
DEAD_LETTER_FIELDS = {
    "topic": "Where the record was.",
    "partition": "Where the record was.",
    "offset": "Where the record was.",
    "stage": "What could not take it: segmenter or summarizer.",
    "type": "A stable snake_case name of what is wrong.",
    "message": "What is wrong, for people: one line without the record's content.",
    "timestamp": "When it was given up, in RFC 3339.",
    "attempts": "How often it was tried.",
}
DEAD_LETTER: Schema = {
    "type": "object",
    "description": "The original's headers, and these.",
    "properties": {f"{DEAD_LETTER_PREFIX}{field}": _said(what) for field, what in DEAD_LETTER_FIELDS.items()},
    "required": [f"{DEAD_LETTER_PREFIX}{field}" for field in DEAD_LETTER_FIELDS],
}


@dataclass(frozen=True)
class Channel:
    """A topic. `events`: their types; none on a topic of dead letters, whose values are what could not be taken."""

    name: str
    topic: str
    description: str
    events: Sequence[str]
    actions: Sequence[str]


def channels(kafka: Kafka) -> list[Channel]:
    inputs = [event.name for event in EVENTS if event.direction == "input"]
    dead = "Records of {} that could not be taken: key, value and headers untouched, and headers that say why."
    both = ("send", "receive")
    return [
        Channel("messages", kafka.messages_topic, "Chat messages; you produce them.", inputs, ["receive"]),
        Channel("episodes", kafka.episodes_topic, "Closed episodes; read them committed.", ["episode.closed"], both),
        Channel("summaries", kafka.summaries_topic, "What you subscribe to.", ["summary.created"], ["send"]),
        Channel("retries", kafka.retry_topic, "Episodes that an LLM is to summarise anew.", ["episode.closed"], both),
        *(
            Channel(f"{name}DeadLetters", kafka.dead_letters(topic), dead.format(topic), [], ["send"])
            for name, topic in (("messages", kafka.messages_topic), ("episodes", kafka.episodes_topic))
        ),
    ]


def document(kafka: Kafka) -> dict[str, Any]:
    """With the configured names of the topics, and the partitions that `topics create` gives them."""
    known = channels(kafka)
    return {
        "asyncapi": "3.1.0",
        "info": {
            "title": "Afterword",
            "version": version("afterword"),
            "description": "Long-term memory for chat assistants, from the Kafka topic their messages are on already.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {channel.name: _channel(channel, kafka) for channel in known},
        "operations": {
            f"{action}{channel.name[0].upper()}{channel.name[1:]}": _operation(channel, action)
            for channel in known
            for action in channel.actions
        },
        "components": {
            "messages": {event.name: _message(event) for event in EVENTS} | {"deadLetter": _dead_letter()},
            "schemas": _schemas(),
        },
    }


def _channel(channel: Channel, kafka: Kafka) -> dict[str, Any]:
    replicas = kafka.replication_factor
    return {
        "address": channel.topic,
        "description": channel.description,
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in channel.events or ["deadLetter"]},
        "bindings": {
            "kafka": {"topic": channel.topic, "partitions": kafka.partitions, "replicas": replicas, **BINDING}
        },
    }


def _operation(channel: Channel, action: str) -> dict[str, Any]:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel.name}"},
        "messages": [
            {"$ref": f"#/channels/{channel.name}/messages/{name}"} for name in channel.events or ["deadLetter"]
        ],
        "bindings": {"kafka": BINDING},
    }


def _message(event: Event) -> dict[str, Any]:
    return {
        "name": event.name,
        "title": event.name,
        "contentType": "application/json",
        "headers": CLOUD_EVENT,
        "payload": {"$ref": COMPONENTS.format(model=event.model.__name__)},
        "bindings": {"kafka": {"key": KEY, **BINDING}},
        "examples": [{"name": "one", "payload": example(event)}],
    }


def _dead_letter() -> dict[str, Any]:
    return {
        "name": "deadLetter",
        "title": "A record that could not be taken",
        "headers": DEAD_LETTER,
        "payload": {"description": "The original's bytes, whatever they are."},
        "bindings": {"kafka": BINDING},
    }


def _schemas() -> dict[str, Schema]:
    """Every model by its name, with references to the others in this document."""
    found: dict[str, Schema] = {}
    for event in EVENTS:
        schema = event_schema(event, COMPONENTS)
        found |= schema.pop("$defs", {})
        found[event.model.__name__] = {name: value for name, value in schema.items() if name != "$schema"}
    return dict(sorted(found.items()))
