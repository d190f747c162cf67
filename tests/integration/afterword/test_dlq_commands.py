"""`afterword dlq` as somebody types it."""

import json

import pytest
from aiokafka import AIOKafkaProducer

from afterword.operating.topics import ensure_topics
from afterword.schemas.dead_letters import dead_letter
from afterword.streams.settings import Settings
from tests.conftest import MakeSettings
from tests.e2e.deployment import afterword
from tests.integration.afterword.test_dlq import Original


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    return make_settings(kafka={"partitions": 1})


async def add_dead_letter(settings: Settings, value: bytes) -> None:
    await ensure_topics(settings)
    original = Original(settings.kafka.messages_topic, 0, 0, b"c1", value, [])
    key, body, headers = dead_letter(original, stage="segmenter", error_type="invalid_json", message="no", now_ms=0)
    async with AIOKafkaProducer(bootstrap_servers=settings.kafka.bootstrap_servers) as producer:
        await producer.send_and_wait(
            settings.kafka.dead_letters(settings.kafka.messages_topic), body, key=key, headers=headers
        )


async def test_dead_letter_is_listed_shown_tried_and_replayed(settings: Settings) -> None:
    await add_dead_letter(settings, b"\x1b[2Jboo")
    code, out, _ = await afterword(settings, "dlq", "list", "--json")
    assert code == 0
    [row] = [json.loads(line) for line in out.splitlines()]
    assert (row["stage"], row["type"], row["conversation_id"]) == ("segmenter", "invalid_json", "c1")

    _, shown, _ = await afterword(settings, "dlq", "show", row["address"])
    assert "boo" in shown
    assert "\x1b" not in shown, "a terminal must not obey what somebody produced"
    _, raw, _ = await afterword(settings, "dlq", "show", row["address"], "--raw")
    assert raw == "\x1b[2Jboo"

    _, tried, _ = await afterword(settings, "dlq", "replay", "--dry-run")
    assert "1 would be replayed (invalid_json 1)" in tried
    _, asked, _ = await afterword(settings, "dlq", "replay", given="n\n")
    assert "1 replayed" not in asked
    _, done, _ = await afterword(settings, "dlq", "replay", "--yes")
    assert "1 replayed (invalid_json 1)" in done
    assert (await afterword(settings, "dlq", "list"))[1] == ""


async def test_wrong_argument_is_reported_in_one_place(settings: Settings) -> None:
    await ensure_topics(settings)
    assert "neither an RFC 3339 time nor" in (await afterword(settings, "dlq", "list", "--since", "yesterday"))[2]
    assert "is not one of" in (await afterword(settings, "dlq", "list", "--topic", "messages"))[2]
    code, _, problem = await afterword(settings, "dlq", "show", "nowhere/0/0")
    assert (code, problem) == (1, "afterword: no dead letter at nowhere/0/0\n")
