"""Episodes and facts of the golden set, read from its file."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from typing import Any, Literal, get_args

import orjson

from afterword.schemas import EpisodeClosed, EpisodeMessage, EpisodeMetrics, Source, fingerprint
from afterword.schemas.ids import episode_id

FactKind = Literal["who", "what", "when", "decision", "open"]
KINDS: tuple[FactKind, ...] = get_args(FactKind)
STARTED_AT = datetime(2025, 1, 1, 12, tzinfo=UTC)
SECONDS_A_TURN = 10
USER_ID = "golden"


@dataclass(frozen=True)
class Fact:
    """A thing that a summary has to say."""

    kind: FactKind
    text: str
    needs: tuple[tuple[str, ...], ...]
    """Things that are said, each with the ways to say it, of which one suffices."""


@dataclass(frozen=True)
class GoldenEpisode:
    name: str
    episode: EpisodeClosed
    facts: tuple[Fact, ...]


def golden_episodes() -> list[GoldenEpisode]:
    """Read the set, always in the same order."""
    lines = files(__package__).joinpath("episodes.jsonl").read_bytes().splitlines()
    return [_read(orjson.loads(line)) for line in lines]


def _read(row: dict[str, Any]) -> GoldenEpisode:
    facts = tuple(Fact(f["kind"], f["fact"], tuple(map(tuple, f["needs"]))) for f in row["facts"])
    return GoldenEpisode(row["id"], episode_of_turns(row["id"], row["turns"]), facts)


def episode_of_turns(name: str, turns: Iterable[tuple[str, str]]) -> EpisodeClosed:
    """Return the one episode of a conversation of this name, of pairs of a role and a text."""
    messages = tuple(
        EpisodeMessage.model_validate(
            {
                "id": f"{name}-{n}",
                "role": role,
                "content": content,
                "sent_at": STARTED_AT + timedelta(seconds=SECONDS_A_TURN * n),
                "user_id": USER_ID,
            }
        )
        for n, (role, content) in enumerate(turns)
    )
    return EpisodeClosed(
        episode_id=episode_id(name, 1),
        revision=1,
        conversation_id=name,
        user_id=USER_ID,
        ordinal=1,
        close_reason="flush",
        fingerprint=fingerprint(messages),
        started_at=messages[0].sent_at,
        ended_at=messages[-1].sent_at,
        closed_at=messages[-1].sent_at,
        messages=messages,
        message_count=len(messages),
        turn_count=len(messages),
        token_count=0,
        metrics=EpisodeMetrics(),
        source=Source(topic="messages", partition=0, first_offset=0, last_offset=len(messages) - 1),
    )
