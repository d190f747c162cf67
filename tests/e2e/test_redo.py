"""A new prompt on the real processes: stored summaries are made anew, once each, whatever is killed meanwhile."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from afterword import MessageCreated, Producer, SummaryCreated, SummarySubscriber
from afterword.streams.roles import ALWAYS_RUN
from afterword.streams.settings import Settings
from afterword.streams.summarizer.providers import maker_of
from tests.e2e.deployment import Deployment, afterword, deployed
from tests.openai_server import MODEL, LlmServer
from tests.waiting import until

pytestmark = pytest.mark.nightly

CONVERSATIONS, EPISODES = 3, 5
PROMPT = "Tell what was cancelled, and why, in {language}.\n{conversation_text}"
TENANT = "acme"
REDO = ("summaries", "redo", "--yes", "--json")


@pytest.fixture
def settings(make_settings: Callable[..., Settings], llm_server: LlmServer) -> Settings:
    return make_settings(
        kafka={"partitions": 2, "session_timeout_seconds": 6},
        llm={"provider": "openai", "model": MODEL, "base_url": f"{llm_server.url}/v1"},
        retry={"first_delay_seconds": 0.5},
        drain_seconds=5,
    )


@pytest_asyncio.fixture
async def deployment(settings: Settings, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with deployed(settings, tmp_path, static=True) as ready:
        for role in ALWAYS_RUN:
            ready.start(role)
        yield ready


@pytest_asyncio.fixture
async def events(deployment: Deployment) -> AsyncIterator[list[SummaryCreated]]:
    """Yield every announced event as it arrives, including repeats."""
    found: list[SummaryCreated] = []

    async def read() -> None:
        async with SummarySubscriber.from_settings(deployment.settings, group_id="reader") as subscriber:
            async for event in subscriber:
                found.append(event)  # noqa: PERF401 – each is seen as it comes

    reading = asyncio.create_task(read())
    yield found
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


async def converse(settings: Settings) -> None:
    async with Producer.from_settings(settings) as producer:
        for conversation in range(CONVERSATIONS):
            for ordinal in range(EPISODES):
                said = ("Please cancel order 4711.", "It is cancelled. The refund takes three days.")
                for turn, content in enumerate(said):
                    message = MessageCreated(
                        id=f"{ordinal}-{turn}",
                        conversation_id=f"c{conversation}",
                        user_id="ann",
                        tenant_id=TENANT,
                        role="assistant" if turn else "user",
                        content=content,
                    )
                    await producer.send(message)
                await producer.flush(f"c{conversation}", tenant_id=TENANT)


async def to_be_redone(settings: Settings) -> int:
    """Return how many summaries another run would redo."""
    code, planned, _ = await afterword(settings, *REDO, "--dry-run")
    assert code == 0
    return int(json.loads(planned)["summaries"])


def revisions(events: list[SummaryCreated]) -> dict[str, int]:
    return {event.episode_id: event.revision for event in events}


async def test_redo_applies_a_new_prompt_to_everything_stored(
    deployment: Deployment, events: list[SummaryCreated], tmp_path: Path
) -> None:
    total = CONVERSATIONS * EPISODES
    await converse(deployment.settings)

    async def announced(number: int, revision: int) -> bool:
        return sum(found >= revision for found in revisions(events).values()) >= number

    await until(lambda: announced(total, 1))
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(PROMPT)
    new = deployment.settings.model_copy(
        update={"summarizer": deployment.settings.summarizer.model_copy(update={"prompt_file": prompt})}
    )
    assert await to_be_redone(new) == total

    deployment.kill("summarizer")
    deployment.workers.pop("summarizer")
    deployment.settings = new
    deployment.start("summarizer")
    code, out, _ = await afterword(new, *REDO, "--limit", "4")
    assert (code, json.loads(out)["waiting"]) == (0, 4)
    await until(lambda: announced(2, 2))
    deployment.kill("summarizer")
    deployment.workers.pop("summarizer")
    code, out, _ = await afterword(new, *REDO)
    found = json.loads(out)
    assert (code, found["waiting"]) == (0, found["summaries"])
    assert found["summaries"]
    deployment.start("summarizer")
    async with Producer.from_settings(new) as producer:  # a change among them
        await producer.edit("c1", "0-0", tenant_id=TENANT, content="Please cancel order 4711 now.")

    async def is_all_new() -> bool:
        latest = {event.episode_id: event for event in sorted(events, key=lambda event: event.revision)}
        return all((event.model, event.prompt_version) == maker_of(new) for event in latest.values())

    await until(is_all_new)
    report = await deployment.audit()
    assert report.clean, list(report.lines())
    assert not any("still" in note for note in report.notes), "requests are no episodes that wait for a summary"
    by_id = {event.event_id: event for event in events}
    assert all(f"{event.episode_id}:{event.revision - 1}" in by_id for event in events if event.revision > 1)
    reasons = {event.reason for event in events if event.revision > 1}
    assert reasons <= {"redone", "edited"}
    assert "redone" in reasons
    assert await to_be_redone(new) == 0
