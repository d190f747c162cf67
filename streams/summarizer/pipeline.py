"""The pipeline of a closed episode: summarise, store, index, publish.

Every step is idempotent. The first stored summary wins: a later attempt, or a second worker, takes it and repeats the
steps after it, so a crash between any two steps leaves nothing undone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

from afterword.schemas import Compression, EpisodeClosed, SummaryCreated
from afterword.schemas.base import utc_milliseconds
from afterword.schemas.ids import event_id, message_key
from afterword.streams.errors import EpisodeConflict, ProviderError
from afterword.streams.stores.episodes import EpisodeStore, StoredEpisode, scope_of, stored_episode
from afterword.streams.stores.index import EpisodeIndex, raw_text, summary_text
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.summarizer.embedders import Embedder
from afterword.streams.summarizer.rolling import History, SummaryRules, next_row, read_history
from afterword.streams.summarizer.steps import PUBLISH, StepRunner
from afterword.streams.summarizer.summarizer import Summarizer
from afterword.streams.summarizer.summary import Summary, SummaryRequest, is_replaceable
from afterword.streams.tokens import count_tokens

Publish = Callable[[SummaryCreated], Awaitable[None]]
"""Send an event; returns after the broker's acknowledgement."""
Clock = Callable[[], datetime]


def now() -> datetime:
    return datetime.now(UTC)


class Pipeline:
    """Processes many episodes at a time, those of one conversation in order."""

    def __init__(
        self,
        *,
        episodes: EpisodeStore,
        messages: MessageArchive,
        index: EpisodeIndex,
        summarizer: Summarizer,
        embedder: Embedder | None,
        publish: Publish,
        steps: StepRunner,
        rules: SummaryRules,
        clock: Clock = now,
    ) -> None:
        self._episodes = episodes
        self._messages = messages
        self._index = index
        self._summarizer = summarizer
        self._embedder = embedder
        self._publish = publish
        self._retry_until_success = steps.retry_until_success
        self._rules = rules
        self._clock = clock

    async def process(self, episode: EpisodeClosed) -> SummaryCreated:
        """Summarise and store the episode and publish its summary; every step is retried until it succeeds.

        Raises: EpisodeConflict.
        """
        # concurrently: most episodes are new and need both
        stored, history = await asyncio.gather(self._find(episode), self._read_history(episode))
        while stored is None or stored.summary.made_from < episode.revision:
            answer = await self._summarize(history.request)
            stored = await self._add(history, answer, stored)
            if stored.summary.made_from < episode.revision:  # another writer has taken the summary's revision
                history = await self._read_history(episode)
        return await self._finish(episode, stored, history)

    async def replace_fallback(self, episode: EpisodeClosed) -> None:
        """Replace the episode's fallback by the LLM's summary; does nothing if there is no such fallback any more.

        Raises: ProviderError, and nothing has changed; EpisodeConflict.
        """
        stored = await self._find(episode)
        if stored is None or stored.summary.made_from != episode.revision:  # erased, or closed anew
            return
        history = None
        if is_replaceable(stored.summary.quality):
            history = await self._read_history(episode)
            answer = await self._retry_until_success("summarize", lambda: self._answer_or_error(history.request))
            stored = await self._add(history, written_by_llm(answer), stored)
        await self._finish(episode, stored, history)

    async def _read_history(self, episode: EpisodeClosed) -> History:
        return await self._retry_until_success("find", lambda: read_history(self._episodes, episode, self._rules))

    async def _summarize(self, request: SummaryRequest) -> Summary:
        return await self._retry_until_success("summarize", lambda: self._summarizer.summarize(request))

    async def _answer_or_error(self, request: SummaryRequest) -> Summary | ProviderError:
        """Return the error instead of raising it: this step is not retried here, but by a later record."""
        try:
            return await self._summarizer.summarize_without_fallback(request)
        except ProviderError as error:
            return error

    async def _find(self, episode: EpisodeClosed) -> StoredEpisode | None:
        return await self._retry_until_success("find", lambda: self._episodes.find(episode.episode_id))

    async def _add(self, history: History, answer: Summary, before: StoredEpisode | None) -> StoredEpisode:
        """Store the summary unless another one was first; returns the one that is stored."""
        summary = summary_created(history.episode, answer, self._clock(), before.summary if before else None)
        made = stored_episode(history.episode, history.completed(summary))
        return await self._retry_until_success("store_episode", lambda: self._episodes.add(made))

    async def _finish(self, episode: EpisodeClosed, stored: StoredEpisode, history: History | None) -> SummaryCreated:
        """Store everything else and publish. `history`: of the conversation, if it was just read."""
        check_same(episode, stored)
        if stored.summary.made_from == episode.revision:  # else a later one is stored, and its texts stay
            await self._store_the_rest(stored.summary, episode, history)
        await self._retry_until_success(PUBLISH, lambda: self._publish(stored.summary))
        return stored.summary

    async def _store_the_rest(self, summary: SummaryCreated, episode: EpisodeClosed, history: History | None) -> None:
        """Write concurrently: each write is fenced by its own version and reads none of the others."""
        keys = [message_key(summary.conversation_id, message_id) for message_id in summary.message_ids]
        await together(
            self._retry_until_success("store_rolling", lambda: self._store_rolling(summary, history)),
            self._retry_until_success("store_conversation", lambda: self._episodes.advance(summary)),
            self._retry_until_success("store_messages", lambda: self._messages.assign(summary.episode_id, keys)),
            self._store_point(summary, raw_text(message.content for message in episode.messages)),
        )

    async def _store_rolling(self, summary: SummaryCreated, history: History | None) -> None:
        scope = scope_of(summary)
        # the row that was read for the summary is most likely still the latest; if not, nothing is written
        latest = history.latest_row if history else await self._episodes.latest_row(scope)
        while row := next_row(latest, summary, self._rules.rolling_max_tokens):
            if await self._episodes.put_row(row, after=latest):
                return
            latest = await self._episodes.latest_row(scope)

    async def _store_point(self, summary: SummaryCreated, text: str) -> None:
        embedder, dense = self._embedder, None
        if embedder:
            dense = await self._retry_until_success("embed", lambda: embedder.embed(summary_text(summary)))
        await self._retry_until_success("index", lambda: self._index.put(summary, text, dense))


async def together(*steps: Coroutine[Any, Any, None]) -> None:
    """Run all steps, each in a task. The first error cancels the others, and is raised when they have ended.

    Not a task group, which counts a cancelled step as done.
    """
    tasks = [asyncio.ensure_future(step) for step in steps]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def check_same(episode: EpisodeClosed, stored: StoredEpisode) -> None:
    """Raises: EpisodeConflict if the same revision is stored for other messages."""
    if stored.summary.made_from == episode.revision and stored.fingerprint != episode.fingerprint:
        raise EpisodeConflict(episode_id=episode.episode_id, revision=episode.revision)


def written_by_llm(answer: Summary | ProviderError) -> Summary:
    """Return the LLM's summary. Raises: ProviderError, also if no LLM is configured any more."""
    if isinstance(answer, ProviderError):
        raise answer
    if answer.quality.source != "llm":
        raise ProviderError(problem="there is none")
    return answer


def summary_created(
    episode: EpisodeClosed, answer: Summary, created_at: datetime, before: SummaryCreated | None = None
) -> SummaryCreated:
    """Build the event of an episode and its summary, which replaces the one `before`.

    Tokens are counted by our tokenizer, not as the provider bills them.
    """
    revision = episode.revision if before is None else max(episode.revision, before.revision + 1)
    return SummaryCreated(
        event_id=event_id(episode.episode_id, revision),
        revision=revision,
        episode_revision=episode.revision if episode.revision != revision else None,
        supersedes=before.event_id if before else None,
        **{name: getattr(episode, name) for name in COPIED},
        title=answer.title,
        short_summary=answer.short_summary,
        long_summary=answer.long_summary,
        rolling_summary=answer.rolling_summary,
        message_ids=tuple(message.id for message in episode.messages),
        quality=answer.quality,
        model=answer.model,
        prompt_version=answer.prompt_version,
        usage=answer.usage,
        compression=compression(episode, count_tokens(answer.long_summary)),
        created_at=utc_milliseconds(created_at),
    )


COPIED = tuple((SummaryCreated.model_fields.keys() & EpisodeClosed.model_fields.keys()) - {"revision"})


def compression(episode: EpisodeClosed, after: int) -> Compression:
    """Compare the core messages with the long summary, in tokens and number. The ratio is 0 for no text at all."""
    before = episode.token_count
    ratio = 1 - after / before if before else 0.0
    return Compression(
        tokens_before=before, tokens_after=after, ratio=ratio, events_before=episode.message_count, events_after=1
    )
