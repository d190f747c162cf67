"""From messages to `episode.closed`."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from math import fsum
from typing import NamedTuple

from afterword.schemas import (
    CloseReason,
    EpisodeClosed,
    EpisodeMessage,
    EpisodeMetrics,
    MessageCreated,
    Source,
    fingerprint,
)
from afterword.schemas.ids import episode_id
from afterword.streams.segmenter.bodies import Body
from afterword.streams.segmenter.keys import Scope

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
CARRIED = set(EpisodeMessage.model_fields)


class Closed(NamedTuple):
    """An episode that is over, as rows."""

    scope: Scope
    tenant_id: str | None
    ordinal: int
    reason: CloseReason
    core: Sequence[Body]
    overlap: Sequence[Body]


def milliseconds(moment: datetime) -> int:
    """Since 1970."""
    return (moment - EPOCH) // MILLISECOND


def moment(ms: int) -> datetime:
    """`ms`: milliseconds since 1970."""
    return EPOCH + ms * MILLISECOND


def carried(message: MessageCreated) -> bytes:
    """JSON of a message as its episode carries it. Decoding has filled in `sent_at`."""
    return message.model_dump_json(include=CARRIED).encode()


def build(closed: Closed, topic: str, partition: int, now_ms: int) -> EpisodeClosed:
    """The event. `topic` and `partition`: where the core messages were read; `now_ms`: milliseconds since 1970."""
    core = messages(closed.core)
    return EpisodeClosed(
        episode_id=episode_id(closed.scope.conversation_id, closed.ordinal, closed.scope.named_agent),
        revision=1,
        conversation_id=closed.scope.conversation_id,
        user_id=user_of(core),
        agent_id=closed.scope.named_agent,
        tenant_id=closed.tenant_id,
        ordinal=closed.ordinal,
        close_reason=closed.reason,
        fingerprint=fingerprint(core),
        started_at=core[0].sent_at,
        ended_at=core[-1].sent_at,
        closed_at=moment(now_ms),
        messages=core,
        overlap=messages(closed.overlap),
        message_count=len(core),
        turn_count=turns(core),
        token_count=sum(body.tokens for body in closed.core),
        metrics=metrics(core),
        source=Source(
            topic=topic,
            partition=partition,
            first_offset=closed.core[0].offset,
            last_offset=closed.core[-1].offset,
        ),
    )


def messages(bodies: Iterable[Body]) -> tuple[EpisodeMessage, ...]:
    return tuple(EpisodeMessage.model_validate_json(body.json) for body in bodies)


def user_of(core: Sequence[EpisodeMessage]) -> str:
    """Of the first `user` message, or of the first message when no user speaks."""
    return next((m.user_id for m in core if m.role == "user"), core[0].user_id)


def turns(core: Sequence[EpisodeMessage]) -> int:
    """A turn is a user message and all up to the next; what comes before the first user message is one as well."""
    return sum(1 for m in core if m.role == "user") + (core[0].role != "user")


def metrics(core: Sequence[EpisodeMessage]) -> EpisodeMetrics:
    sentiments = [m.sentiment for m in core if m.sentiment is not None]
    mean = fsum(sentiments) / len(sentiments) if sentiments else None
    return EpisodeMetrics(
        flows_activated=unique(m.flows for m in core),
        tools_invoked=unique(m.tools for m in core),
        average_sentiment=mean,
        sentiment_variance=None if mean is None else variance(sentiments, mean),
    )


def unique(lists: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """In order of first use."""
    return tuple(dict.fromkeys(chain.from_iterable(lists)))


def variance(numbers: Sequence[float], mean: float) -> float:
    """The population's."""
    return fsum((n - mean) ** 2 for n in numbers) / len(numbers)
