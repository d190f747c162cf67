"""Importing a history on the real processes: again, and after it was killed, and each message is in one episode."""

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from afterword import MessageCreated, Producer
from afterword.schemas import EpisodeClosed
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.roles import ALWAYS_RUN
from afterword.streams.settings import Settings
from afterword.writing.importing.run import ArchiveBehind, until_archived
from tests.e2e.deployment import WAIT_SECONDS, Deployment, environment_of

pytestmark = pytest.mark.nightly

BEGAN = datetime(2024, 5, 1, tzinfo=UTC).timestamp()
CONVERSATIONS, MESSAGES = 12, 120
MINUTES_OF_SILENCE = 30
"""Silence after every tenth message, so that ten messages are an episode."""


def history() -> list[dict[str, Any]]:
    return [conversation(number, MESSAGES) for number in range(CONVERSATIONS)]


def conversation(number: int, length: int) -> dict[str, Any]:
    """Return a conversation of ChatGPT's export with one branch."""
    nodes: dict[str, Any] = {"root": {"id": "root", "parent": None, "message": None}}
    parent = "root"
    for n in range(length):
        node = f"{number}-{n}"
        said = {
            "id": node,
            "author": {"role": ("user", "assistant")[n % 2]},
            "create_time": BEGAN + number * 86_400 + n * 10 + n // 10 * MINUTES_OF_SILENCE * 60,
            "content": {"content_type": "text", "parts": [f"Lake {n} of trip {number} was cold and clear."]},
        }
        nodes[node] = {"id": node, "parent": parent, "message": said}
        parent = node
    return {"conversation_id": f"trip-{number}", "mapping": nodes, "current_node": parent}


def command(deployment: Deployment, file: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "afterword", "import", "chatgpt", str(file), "--user", "ann", "--json", *options],
        env=environment_of(deployment.settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def run(deployment: Deployment, file: Path, *options: str) -> dict[str, Any]:
    process = command(deployment, file, *options)
    out, errors = await asyncio.to_thread(process.communicate)
    assert process.returncode == 0, errors
    return json.loads(out) if out else {}


async def killed_underway(deployment: Deployment, file: Path, least: int, *options: str) -> None:
    """Kill an import in the middle of a batch, once it has sent at least this many records."""
    async with open_log(deployment.settings.kafka) as log:
        topic = deployment.settings.kafka.messages_topic
        before = sum((await log.ends(topic)).values())
        process = command(deployment, file, *options)
        deadline = time.monotonic() + WAIT_SECONDS
        while sum((await log.ends(topic)).values()) < before + least:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "the import has not come far enough in time"
            await asyncio.sleep(0.02)
    process.kill()
    await asyncio.to_thread(process.communicate)


async def send_one(settings: Settings) -> None:
    """Send a message that was not imported."""
    message = MessageCreated(id="live", conversation_id="live", user_id="bob", role="user", content="Good morning")
    async with Producer.from_settings(settings) as producer:
        await producer.send(message)
        await producer.flush("live")


def messages_in(episodes: list[EpisodeClosed]) -> Counter[str]:
    """Return how often each imported message is in an episode."""
    return Counter(message.id for episode in episodes for message in episode.messages if message.user_id == "ann")


async def test_killed_and_repeated_import_stores_each_message_once(deployment: Deployment, tmp_path: Path) -> None:
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps(history()))
    await send_one(deployment.settings)
    with pytest.raises(ArchiveBehind, match="2 records"):
        await until_archived(deployment.settings.kafka, seconds=0)
    for role in ALWAYS_RUN:
        deployment.start(role)
    # slow enough to be seen and killed in time on a busy machine
    await killed_underway(deployment, file, 1, "--rate", "100")
    await killed_underway(deployment, file, 500, "--rate", "100")
    finished = await run(deployment, file)
    assert finished["read"] == finished["sent"] + finished["duplicates"] == CONVERSATIONS * MESSAGES
    assert 500 < finished["duplicates"] < CONVERSATIONS * MESSAGES
    assert (await run(deployment, file))["duplicates"] == CONVERSATIONS * MESSAGES

    report = await deployment.audit()
    assert report.clean, list(report.lines())
    episodes = await deployment.episodes()
    assert messages_in(episodes) == Counter(f"{n}-{m}" for n in range(CONVERSATIONS) for m in range(MESSAGES))
    assert {episode.started_at.year for episode in episodes if episode.user_id == "ann"} == {2024}

    later = tmp_path / "later.json"  # the export of another day: a conversation has gone on, and one is new
    later.write_text(json.dumps([conversation(0, MESSAGES + 4), *history()[1:], conversation(CONVERSATIONS, 6)]))
    again = await run(deployment, later)
    assert (again["sent"], again["duplicates"], again["flushes"]) == (10, CONVERSATIONS * MESSAGES, 2)
    report = await deployment.audit()
    assert report.clean, list(report.lines())
    found = messages_in(await deployment.episodes())
    assert max(found.values()) == 1
    assert found.total() == CONVERSATIONS * MESSAGES + 10
    for role in ALWAYS_RUN:
        await deployment.stop(role)
