"""JSON Schema 2020-12 of each event, from the models that decode and encode it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter

from afterword.schemas import ConversationFlush, EpisodeClosed, MessageCreated, SummaryCreated
from afterword.schemas.base import Model
from afterword.schemas.episodes import EPISODE_CLOSED
from afterword.schemas.messages import CONVERSATION_FLUSH, MESSAGE_CREATED
from afterword.schemas.summaries import SUMMARY_CREATED

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]
Direction = Literal["input", "output"]


@dataclass(frozen=True)
class Event:
    """`name`: its CloudEvents type. `direction`: whether others write it, or read it."""

    name: str
    model: type[Model]
    direction: Direction


EVENTS = (
    Event(MESSAGE_CREATED, MessageCreated, "input"),
    Event(CONVERSATION_FLUSH, ConversationFlush, "input"),
    Event(EPISODE_CLOSED, EpisodeClosed, "output"),
    Event(SUMMARY_CREATED, SummaryCreated, "output"),
)
"""`episode.closed` is read by our own summarizer too, which also takes what older segmenters wrote."""

TYPE_FIELD: Schema = {
    "type": "string",
    "description": "The event's type, where no ce_type header says it; message.created when neither does.",
}


def event_schemas() -> dict[str, Schema]:
    """By event type; each stands alone."""
    return {event.name: event_schema(event) for event in EVENTS}


def event_schema(event: Event, ref_template: str = "#/$defs/{model}") -> Schema:
    """`ref_template`: where the models that it is made of will be found."""
    mode: Literal["validation", "serialization"] = "validation" if event.direction == "input" else "serialization"
    schema = TypeAdapter(event.model).json_schema(mode=mode, ref_template=ref_template)
    if event.direction == "input":
        schema["properties"] = {**schema["properties"], "type": TYPE_FIELD}
    return {"$schema": DIALECT, **untitled(schema), "title": event.name}


def untitled(node: Any) -> Any:
    """Without the titles of single fields, which only repeat their names."""
    if isinstance(node, Mapping):
        kept = {key: value for key, value in node.items() if key != "title" or not isinstance(value, str)}
        return {key: untitled(value) for key, value in kept.items()}
    return [untitled(child) for child in node] if isinstance(node, list) else node
