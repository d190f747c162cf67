"""Schemas in a registry, and a sink's configuration that goes with them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from afterword.operating.contract import RegistryRefused, event_schemas, register, subjects
from afterword.streams.settings import Kafka
from tests.endpoints import serving

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
