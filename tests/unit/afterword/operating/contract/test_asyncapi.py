from typing import Any

import orjson
import pytest

from afterword.operating.contract import document
from afterword.schemas.headers import CE_TYPE, OWNER
from afterword.streams.settings import Kafka
from afterword.streams.telemetry.tracing import TRACEPARENT

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


@pytest.mark.parametrize(
    ("operation", "action", "topic"),
    [
        ("receiveMessages", "receive", "messages"),
        ("sendEpisodes", "send", "episode.closed"),
        ("receiveEpisodes", "receive", "episode.closed"),
        ("sendSummaries", "send", "summary.created"),
        ("sendMessagesDeadLetters", "send", "messages.dlq"),
    ],
)
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
