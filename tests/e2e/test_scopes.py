"""Both scopes at once: two deployments with ids, topics and stores of their own, which read the same messages."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from afterword.streams.settings import Settings
from tests.e2e.deployment import deployed

pytestmark = pytest.mark.nightly

QUICK: dict[str, Any] = {"partitions": 2, "session_timeout_seconds": 6}
TRIGGER = {"any": [{"messages": 8}, {"all": [{"turns": 3}, {"text_bytes": 200}]}]}
SPEAKERS = [(None, "user"), ("planner", "assistant"), ("planner", "tool"), ("coder", "user"), ("coder", "assistant")]


def of_agents(whole: Settings, make_settings: Callable[..., Settings], directory: Path) -> Settings:
    """Return settings of a second deployment that reads the same messages, with its own names and stores."""
    return make_settings(
        kafka={**QUICK, "messages_topic": whole.kafka.messages_topic, "prefix": f"{whole.kafka.prefix}agents."},
        sqlite={"path": directory / "agents.sqlite"},
        episodes={"scope": "agent", "trigger": TRIGGER},
    )


def talk(part: int) -> Iterator[bytes]:
    for n in range(25 * part, 25 * (part + 1)):
        agent, role = SPEAKERS[n % len(SPEAKERS)]
        for conversation in ("one", "two", "three"):
            yield orjson.dumps(
                {
                    "id": f"m{n}",
                    "conversation_id": conversation,
                    "user_id": "ann",
                    "agent_id": agent,
                    "role": role,
                    "content": f"What was said as number {n} in conversation {conversation}.",
                    "sent_at": f"2026-01-01T12:{n:02}:00Z",
                }
            )


async def test_conversation_and_agent_deployments_share_the_messages(
    make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    whole = make_settings(kafka=QUICK)
    apart = of_agents(whole, make_settings, tmp_path / "agents")
    async with deployed(whole, tmp_path / "whole") as conversations, deployed(apart, tmp_path / "agents") as agents:
        for deployment in (conversations, agents):
            deployment.start("segmenter")
            deployment.start("summarizer")
            deployment.start("archiver")
        await conversations.produce(talk(0))
        agents.kill("segmenter")
        agents.lose_state("segmenter")
        await conversations.produce(talk(1))
        agents.start("segmenter")
        lines = [*talk(0), *talk(1)]
        for deployment in (conversations, agents):
            report = await deployment.audit()
            assert report.clean, "\n".join(report.lines())
            assert report.messages["in_an_episode"] == len(lines)
            assert report.notes == []
        assert {e.agent_id for e in await conversations.episodes()} == {None}
        assert {e.agent_id for e in await agents.episodes()} == {"planner", "coder"}
