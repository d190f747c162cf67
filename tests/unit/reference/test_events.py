import re
from pathlib import Path

import pytest

from afterword.operating.topics import wanted_topics
from afterword.streams.settings import Settings
from afterword.writing.contract import EVENTS, EventType, event_schema
from tools.reference.events import INTERNAL, reference

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "events.md"
TEXT = PAGE.read_text()


def section(heading: str) -> str:
    return re.split(r"^##+ ", TEXT.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.M)[0]


def test_the_page_is_what_the_contract_says() -> None:
    assert reference(Settings.model_construct()) == TEXT, "docs/reference/events.md is stale: make docs"


@pytest.mark.parametrize(
    "event", [event for event in EVENTS if event.name not in INTERNAL], ids=lambda event: event.name
)
def test_every_field_of_an_event_and_of_its_parts_says_what_it_is_for(event: EventType) -> None:
    schema = event_schema(event)
    found = {event.name: schema, **schema.get("$defs", {})}
    unexplained = [
        f"{name}.{field}"
        for name, part in found.items()
        for field, of in part["properties"].items()
        if not of.get("description")
    ]
    assert unexplained == []
    assert all(f"| `{field}` |" in section(name) for name, part in found.items() for field in part["properties"])


def test_every_topic_but_the_changelogs_is_there() -> None:
    topics = {topic.name for topic in wanted_topics(Settings()) if not topic.name.endswith("-changelog")}
    assert {row.split("`")[1] for row in section("Topics").splitlines() if row.startswith("| `")} == topics
