"""One record to its end: whatever is not foreseen here stops the worker."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Protocol

import structlog
from structlog.contextvars import bound_contextvars

from afterword.schemas import InvalidRecord, decode_episode
from afterword.schemas.dead_letters import dead_letter
from afterword.schemas.headers import Headers
from afterword.streams.errors import EpisodeConflict, ProviderError
from afterword.streams.runtime import App
from afterword.streams.settings import Retry
from afterword.streams.summarizer.observer import Observer
from afterword.streams.summarizer.patience import Patience
from afterword.streams.summarizer.pipeline import Pipeline
from afterword.streams.summarizer.providers.fallback import is_mendable
from afterword.streams.summarizer.retries import Try, first_try, next_try, try_from

STAGE = "summarizer"

log = structlog.get_logger()


class RecordOutputs(Protocol):
    """Where a record goes that is not done with its summary; each returns after the broker's acknowledgement."""

    async def bury(self, key: bytes | None, value: bytes | None, headers: Headers) -> None: ...

    async def retry(self, record: Any, attempt: Try) -> None:
        """Puts the episode's own record on `episode.retry`."""
        ...


class Handling:
    """Of records of `episode.closed`, and of `episode.retry`."""

    def __init__(
        self,
        app: App,
        pipeline: Pipeline,
        outputs: RecordOutputs,
        patience: Patience,
        retry: Retry,
        observer: Observer = Observer(),  # noqa: B008 – does nothing, keeps nothing
    ) -> None:
        self._app = app
        self._pipeline = pipeline
        self._outputs = outputs
        self._patience = patience
        self._retry = retry
        self._observer = observer

    async def handle(self, event: Any) -> None:
        """Acknowledges the record when its summary is announced, and to be replaced if need be; or a dead letter."""
        await self._or_bury(event.value, self._summarize)
        event.ack()

    async def mend(self, event: Any) -> None:
        """Acknowledges the record when the LLM's summary is announced, or the next try is on the topic, or none is."""
        await self._or_bury(event.value, self._mend)
        event.ack()

    async def _summarize(self, record: Any) -> None:
        episode = decode_episode(record.key, record.value)
        with bound_contextvars(episode_id=episode.episode_id):
            summary = await self._pipeline.process(episode)
        # only now: whoever reads the replacement has been told of what it replaces
        if summary.made_from == episode.revision and is_mendable(summary.quality):
            await self._schedule(record, first_try(self._retry, self._now()))

    async def _mend(self, record: Any) -> None:
        episode, attempt = decode_episode(record.key, record.value), try_from(record.headers)
        told = {"stage": "retry", "episode_id": episode.episode_id, "attempt": attempt.number}
        try:
            with bound_contextvars(episode_id=episode.episode_id):
                await self._pipeline.mend(episode)
        except ProviderError as error:
            following = next_try(attempt, error, self._retry, self._now())
            await self._schedule(record, following)
            problem = {"error_type": error.error_type, "problem": str(error), "last": following is None}
            log.warning("fallback not replaced", **told, **problem)
        else:
            log.info("fallback replaced", **told)

    async def _schedule(self, record: Any, attempt: Try | None) -> None:
        if attempt is not None:
            await self._patience.until_done("retry", lambda: self._outputs.retry(record, attempt))

    async def _or_bury(self, record: Any, step: Callable[[Any], Awaitable[None]]) -> None:
        # whatever is logged until the record is done says of which one
        where = bound_contextvars(topic=record.topic, partition=record.partition, offset=record.offset)
        with where, self._observer.record(record):
            try:
                await step(record)
            except InvalidRecord as error:
                await self._bury(record, error.error_type, error.detail)
            except EpisodeConflict as error:
                await self._bury(record, error.error_type, str(error))

    async def _bury(self, record: Any, error_type: str, problem: str) -> None:
        log.warning("record refused", stage=STAGE, error_type=error_type, problem=problem)
        letter = dead_letter(
            record,
            stage=STAGE,
            error_type=error_type,
            message=problem,
            attempts=1,
            now_ms=self._app.engine.clock(),
        )
        await self._patience.until_done("dead_letter", lambda: self._outputs.bury(*letter))
        self._observer.buried(STAGE, error_type)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._app.engine.clock() / 1000, UTC)
