"""The real workers with a broker that requires a password over TLS, and with ids that look like code or commands."""

import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import orjson
import pytest
import pytest_asyncio
from pydantic import SecretStr

from afterword.streams.roles import ALWAYS_RUN
from afterword.streams.settings import Settings
from tests.e2e.deployment import Deployment, deployed
from tests.endpoints import CLIENT_ID, CLIENT_SECRET, TokenEndpoint
from tests.nasty_texts import IDS
from tests.waiting import until


def hostile_lines() -> Iterator[bytes]:
    """Return lines that use each id for a conversation, a message, a user and an agent."""
    for conversation in IDS:
        for number, message in enumerate(IDS):
            yield orjson.dumps(
                {
                    "id": message,
                    "conversation_id": conversation,
                    "user_id": message,
                    "agent_id": message,
                    "role": "user" if number % 2 == 0 else "assistant",
                    "content": f"Message {number}.",
                    "metadata": {"$where": "sleep(1000)", "a.b": message, "$set": {"user_id": "mallory"}},
                }
            )


@pytest_asyncio.fixture
async def deployment(secured: Callable[..., Settings], tmp_path: Path) -> AsyncIterator[Deployment]:
    settings = secured(kafka={"partitions": 2}, drain_seconds=10)
    async with deployed(settings, tmp_path / "deployment") as ready:
        yield ready


@pytest.mark.nightly
async def test_whole_path_works_over_tls_with_hostile_ids(deployment: Deployment, tmp_path: Path) -> None:
    for role in ALWAYS_RUN:
        deployment.start(role)
    produced = await deployment.produce(hostile_lines())
    assert produced.messages == len(IDS) ** 2
    report = await deployment.audit()
    assert report.clean, list(report.lines())
    assert report.messages["in_an_episode"] == report.messages["archived"] == produced.messages
    assert report.summaries["announced"] == report.episodes["total"] == report.summaries["stored"]
    assert {episode.conversation_id for episode in await deployment.episodes()} == set(IDS)
    assert {name: await deployment.stop(name) for name in ALWAYS_RUN} == dict.fromkeys(ALWAYS_RUN, 0)
    directories = {path.name for path in deployment.state("segmenter").rglob("*") if path.is_dir()}
    topic = re.escape(deployment.settings.kafka.messages_topic)
    assert all(re.fullmatch(rf"v\d+|tables|{topic}-\d+", name) for name in directories), directories
    assert list(tmp_path.parent.rglob("*escaped*")) == []


@pytest.mark.nightly
@pytest.mark.parametrize("role", ALWAYS_RUN)
async def test_worker_with_a_wrong_password_ends_with_one_line(deployment: Deployment, role: str) -> None:
    kafka = deployment.settings.kafka.model_copy(update={"password": SecretStr("canary-7")})
    deployment.settings = deployment.settings.model_copy(update={"kafka": kafka})
    deployment.start(role)
    worker = deployment.workers[role]
    await until(lambda: not worker.running)
    assert worker.returncode == 1
    *_, last = deployment.logs(role).splitlines()
    assert last.startswith(
        f"afterword: Kafka at {kafka.bootstrap_servers} rejected the connection: authentication fails: "
    )
    assert "canary-7" not in deployment.logs(role)
    assert "Traceback" not in deployment.logs(role)


@pytest.mark.nightly
async def test_segmenter_works_with_tokens(
    secured: Callable[..., Settings], tokens: TokenEndpoint, tmp_path: Path
) -> None:
    token = {"oauth_token_endpoint": tokens.url, "oauth_client_id": CLIENT_ID, "oauth_client_secret": CLIENT_SECRET}
    by_token = {"sasl_mechanism": "OAUTHBEARER", "username": None, "password": None, **token}
    settings = secured(kafka={"partitions": 2, **by_token})
    lines = [b'{"id":"d","dialogue":"user: Hello.[NEWLINE]assistant: Hello."}']
    async with deployed(settings, tmp_path) as deployment:
        deployment.start("segmenter")
        await deployment.produce(lines)
        await until(deployment.episodes)
        assert await deployment.stop("segmenter") == 0
