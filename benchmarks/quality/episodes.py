"""An episode of nothing but texts, for what reads no more of it."""

from collections.abc import Iterable
from datetime import UTC, datetime

from afterword.schemas import EpisodeClosed, EpisodeMessage, EpisodeMetrics, Source, fingerprint
from afterword.schemas.ids import episode_id

AT = datetime(2025, 1, 1, 12, tzinfo=UTC)


def an_episode(contents: Iterable[str], roles: Iterable[str] | None = None) -> EpisodeClosed:
    """All by the user, unless roles are given."""
    texts = list(contents)
    spoken = list(roles) if roles else ["user"] * len(texts)
    messages = tuple(
        EpisodeMessage.model_validate({"id": f"m{n}", "role": role, "content": text, "sent_at": AT, "user_id": "u"})
        for n, (role, text) in enumerate(zip(spoken, texts, strict=True))
    )
    return EpisodeClosed(
        episode_id=episode_id("c", 1),
        revision=1,
        conversation_id="c",
        user_id="u",
        ordinal=1,
        close_reason="flush",
        fingerprint=fingerprint(messages),
        started_at=AT,
        ended_at=AT,
        closed_at=AT,
        messages=messages,
        message_count=len(messages),
        turn_count=len(messages),
        token_count=0,
        metrics=EpisodeMetrics(),
        source=Source(topic="messages", partition=0, first_offset=0, last_offset=len(messages) - 1),
    )
