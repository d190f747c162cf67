"""The pipeline of a closed episode: summarise, store, index, publish.

Every step is idempotent. The first stored summary wins: a later attempt, or a second worker, takes it and repeats the
steps after it, so a crash between any two steps leaves nothing undone.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime

from afterword.schemas import Compression, EpisodeClosed, SummaryCreated, SummaryDeleted
from afterword.schemas.base import utc_milliseconds
from afterword.schemas.ids import event_id, message_key
from afterword.streams.errors import EpisodeConflict, ProviderError
from afterword.streams.stores.episodes import (
    NEVER,
    DeletedEpisode,
    EpisodeStore,
    StoredEpisode,
    scope_of,
    stored_episode,
)
from afterword.streams.stores.index import EpisodeIndex, raw_text, summary_text
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.summarizer.current import Current, laid_over
from afterword.streams.summarizer.embedders import Embedder
from afterword.streams.summarizer.rolling import History, SummaryRules, next_row, read_history
from afterword.streams.summarizer.steps import PUBLISH, StepRunner
from afterword.streams.summarizer.summarizer import Summarizer
from afterword.streams.summarizer.summary import Summary, SummaryRequest, is_replaceable
from afterword.streams.together import together
from afterword.streams.tokens import count_tokens

Publish = Callable[[SummaryCreated | SummaryDeleted], Awaitable[None]]
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

    async def process(self, episode: EpisodeClosed) -> SummaryCreated | SummaryDeleted:
        """Summarise and store the episode and publish its summary; every step is retried until it succeeds.

        What the archive knows by then of edits and deletions is in the summary; an episode of which no message is left
        is deleted.

        Raises: EpisodeConflict.
        """
        # concurrently: most episodes are new and need both
        stored, history, current = await asyncio.gather(
            self._lookup(episode), self._read_history(episode), self._current(episode)
        )
        while isinstance(stored, StoredEpisode | None) and (stored is None or _is_older(stored, episode)):
            if current.episode is None:
                stored = await self._add_deleted(episode, current, stored)
                break
            history = replace(history, episode=current.episode)
            answer = await self._summarize(history.request)
            stored = await self._add(history, answer, stored, current)
            if isinstance(stored, StoredEpisode) and _is_older(stored, episode):
                history = await self._read_history(episode)  # another writer has taken the summary's revision
        return await self._finish(episode, stored, history, current)

    async def replace_fallback(self, episode: EpisodeClosed) -> None:
        """Replace the episode's fallback by the LLM's summary; does nothing if there is no such fallback any more.

        Raises: ProviderError, and nothing has changed; EpisodeConflict.
        """
        stored = await self._lookup(episode)
        if not isinstance(stored, StoredEpisode) or stored.summary.made_from != episode.revision:
            return  # erased, deleted, or closed anew
        # read after what is stored: a change that is not in it by then will have a revision of its own
        current, history = await self._current(episode), None
        found: StoredEpisode | DeletedEpisode = stored
        if is_replaceable(stored.summary.quality) and current.episode is not None:
            history = replace(await self._read_history(episode), episode=current.episode)
            request = history.request
            answer = await self._retry_until_success("summarize", lambda: self._answer_or_error(request))
            found = await self._add(history, written_by_llm(answer), stored, current)
        await self._finish(episode, found, history, current)

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

    async def _lookup(self, episode: EpisodeClosed) -> StoredEpisode | DeletedEpisode | None:
        return await self._retry_until_success("find", lambda: self._episodes.lookup(episode.episode_id))

    async def _current(self, episode: EpisodeClosed) -> Current:
        """Lay the changes that the archive knows over the episode."""
        messages = (*episode.messages, *episode.overlap)
        keys = {message_key(episode.conversation_id, one.id, episode.tenant_id): one.id for one in messages}
        states = await self._retry_until_success("find", lambda: self._messages.changed(list(keys)))
        return laid_over(episode, {keys[key]: state for key, state in states.items()})

    async def _add(
        self, history: History, answer: Summary, before: StoredEpisode | None, current: Current
    ) -> StoredEpisode | DeletedEpisode:
        """Store the summary unless another one was first; returns the one that is stored."""
        summary = summary_created(history.episode, answer, self._clock(), before.summary if before else None)
        as_of = max(history.as_of, before.as_of if before else NEVER)
        made = stored_episode(history.episode, history.completed(summary), current.changes, as_of)
        return await self._retry_until_success("store_episode", lambda: self._episodes.add(made))

    async def _add_deleted(
        self, episode: EpisodeClosed, current: Current, before: StoredEpisode | None
    ) -> StoredEpisode | DeletedEpisode:
        """Store that nothing is left of the episode."""
        revision = max(episode.revision, before.summary.revision + 1 if before else 1)
        deletion = SummaryDeleted(
            event_id=event_id(episode.episode_id, revision),
            episode_id=episode.episode_id,
            revision=revision,
            supersedes=before.summary.event_id if before else None,
            reason="deleted",
            conversation_id=episode.conversation_id,
            agent_id=episode.agent_id,
            tenant_id=episode.tenant_id,
            ordinal=episode.ordinal,
            deleted_at=utc_milliseconds(self._clock()),
        )
        gone = DeletedEpisode(deletion, current.changes, max(offset for _, offset in current.changes))
        return await self._retry_until_success("store_episode", lambda: self._episodes.remove(gone))

    async def _finish(
        self,
        episode: EpisodeClosed,
        stored: StoredEpisode | DeletedEpisode,
        history: History | None,
        current: Current,
    ) -> SummaryCreated | SummaryDeleted:
        """Store everything else and publish. `history`: of the conversation, if it was just read."""
        if isinstance(stored, DeletedEpisode):
            deletion = stored.deletion
            await self._retry_until_success("index", lambda: self._index.remove(deletion.episode_id, deletion.revision))
        else:
            check_same(episode, stored)
            if stored.summary.made_from == episode.revision:  # else a later one is stored, and its texts stay
                await self._store_the_rest(stored, current, history)
        await self._retry_until_success(PUBLISH, lambda: self._publish(stored.event))
        return stored.event

    async def _store_the_rest(self, stored: StoredEpisode, current: Current, history: History | None) -> None:
        """Write concurrently: each write is fenced by its own version and reads none of the others."""
        summary = stored.summary
        keys = [message_key(summary.conversation_id, one, summary.tenant_id) for one in summary.message_ids]
        living = current.episode.messages if current.episode else ()
        await together(
            self._retry_until_success("store_rolling", lambda: self._store_rolling(stored, history)),
            self._retry_until_success("store_conversation", lambda: self._episodes.advance(summary)),
            self._retry_until_success("store_messages", lambda: self._messages.assign(summary.episode_id, keys)),
            self._store_point(summary, raw_text(message.content for message in living)),
        )

    async def _store_rolling(self, stored: StoredEpisode, history: History | None) -> None:
        summary, scope = stored.summary, scope_of(stored.summary)
        # the row that was read for the summary is most likely still the latest; if not, nothing is written
        latest = history.latest_row if history else await self._episodes.latest_row(scope)
        while row := next_row(latest, summary, self._rules.rolling_max_tokens, stored.as_of):
            if await self._episodes.put_row(row, after=latest):
                return
            latest = await self._episodes.latest_row(scope)

    async def _store_point(self, summary: SummaryCreated, text: str) -> None:
        embedder, dense = self._embedder, None
        if embedder:
            dense = await self._retry_until_success("embed", lambda: embedder.embed(summary_text(summary)))
        await self._retry_until_success("index", lambda: self._index.put(summary, text, dense))


def _is_older(stored: StoredEpisode, episode: EpisodeClosed) -> bool:
    return stored.summary.made_from < episode.revision


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
