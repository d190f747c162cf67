"""One closed episode, to the end: summarised, stored, indexed, announced.

Every step may be repeated. What is stored first decides: a later attempt, or a second worker, takes the stored summary
and goes through the steps after it again, so that a crash between any two of them leaves nothing undone.
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
from afterword.streams.summarizer.patience import Patience
from afterword.streams.summarizer.providers.base import Provider, Summary, SummaryRequest
from afterword.streams.summarizer.providers.fallback import is_mendable
from afterword.streams.summarizer.rolling import next_row
from afterword.streams.summarizer.so_far import Rules, SoFar, read_so_far
from afterword.streams.tokens import count_tokens

Publish = Callable[[SummaryCreated], Awaitable[None]]
"""Returns after the broker has acknowledged the event."""
Clock = Callable[[], datetime]


def now() -> datetime:
    return datetime.now(UTC)


class Pipeline:
    """May process several episodes at a time, those of one conversation one after another.

    `provider` always comes up with a summary in the end, a fallback's perhaps; `llm` is the same without its fallback.
    """

    def __init__(
        self,
        *,
        episodes: EpisodeStore,
        messages: MessageArchive,
        index: EpisodeIndex,
        provider: Provider,
        llm: Provider,
        embedder: Embedder | None,
        publish: Publish,
        patience: Patience,
        rules: Rules,
        clock: Clock = now,
    ) -> None:
        self._episodes = episodes
        self._messages = messages
        self._index = index
        self._provider = provider
        self._llm = llm
        self._embedder = embedder
        self._publish = publish
        self._until_done = patience.until_done
        self._rules = rules
        self._clock = clock

    async def process(self, episode: EpisodeClosed) -> SummaryCreated:
        """Returns when the episode is stored everywhere and its summary announced; waits for whatever is away.

        Raises: EpisodeConflict.
        """
        # at once: most episodes are new, and then both are needed
        stored, so_far = await asyncio.gather(self._find(episode), self._so_far(episode))
        while stored is None or stored.summary.made_from < episode.revision:
            answer = await self._answer(so_far.request)
            stored = await self._add(so_far, answer, stored)
            if stored.summary.made_from < episode.revision:  # another writer has taken the summary's revision
                so_far = await self._so_far(episode)
        return await self._finish(episode, stored, so_far)

    async def mend(self, episode: EpisodeClosed) -> None:
        """Replaces the episode's fallback by what the LLM writes; drops the episode if that is not to be done any more.

        Raises: ProviderError, when nothing has changed; EpisodeConflict.
        """
        stored = await self._find(episode)
        if stored is None or stored.summary.made_from != episode.revision:  # erased, or closed anew
            return
        so_far = None
        if is_mendable(stored.summary.quality):
            so_far = await self._so_far(episode)
            answer = await self._until_done("summarize", lambda: self._answer_or_error(so_far.request))
            stored = await self._add(so_far, written_by_llm(answer), stored)
        await self._finish(episode, stored, so_far)

    async def _so_far(self, episode: EpisodeClosed) -> SoFar:
        return await self._until_done("find", lambda: read_so_far(self._episodes, episode, self._rules))

    async def _answer(self, request: SummaryRequest) -> Summary:
        return await self._until_done("summarize", lambda: self._provider.summarize(request))

    async def _answer_or_error(self, request: SummaryRequest) -> Summary | ProviderError:
        """The error as a result: it is not waited for, as everything else is."""
        try:
            return await self._llm.summarize(request)
        except ProviderError as error:
            return error

    async def _find(self, episode: EpisodeClosed) -> StoredEpisode | None:
        return await self._until_done("find", lambda: self._episodes.find(episode.episode_id))

    async def _add(self, so_far: SoFar, answer: Summary, before: StoredEpisode | None) -> StoredEpisode:
        """Returns what is stored afterwards."""
        summary = summary_created(so_far.episode, answer, self._clock(), before.summary if before else None)
        made = stored_episode(so_far.episode, so_far.completed(summary))
        return await self._until_done("store_episode", lambda: self._episodes.add(made))

    async def _finish(self, episode: EpisodeClosed, stored: StoredEpisode, so_far: SoFar | None) -> SummaryCreated:
        """`so_far`: what was read of the conversation a moment ago, if it was."""
        check_same(episode, stored)
        if stored.summary.made_from == episode.revision:  # else a later one has been here, and its texts stay
            await self._store_the_rest(stored.summary, episode, so_far)
        await self._until_done("publish", lambda: self._publish(stored.summary))
        return stored.summary

    async def _store_the_rest(self, summary: SummaryCreated, episode: EpisodeClosed, so_far: SoFar | None) -> None:
        """At once: each is fenced by its own version and looks at none of the others."""
        keys = [message_key(summary.conversation_id, message_id) for message_id in summary.message_ids]
        await together(
            self._until_done("store_rolling", lambda: self._store_rolling(summary, so_far)),
            self._until_done("store_conversation", lambda: self._episodes.advance(summary)),
            self._until_done("store_messages", lambda: self._messages.assign(summary.episode_id, keys)),
            self._store_point(summary, raw_text(message.content for message in episode.messages)),
        )

    async def _store_rolling(self, summary: SummaryCreated, so_far: SoFar | None) -> None:
        scope = scope_of(summary)
        # the row that was read for the summary is most likely still the latest; where it is not, nothing is written
        latest = so_far.latest_row if so_far else await self._episodes.latest_row(scope)
        while row := next_row(latest, summary, self._rules.rolling_max_tokens):
            if await self._episodes.put_row(row, after=latest):
                return
            latest = await self._episodes.latest_row(scope)

    async def _store_point(self, summary: SummaryCreated, text: str) -> None:
        embedder, dense = self._embedder, None
        if embedder:
            dense = await self._until_done("embed", lambda: embedder.embed(summary_text(summary)))
        await self._until_done("index", lambda: self._index.put(summary, text, dense))


async def together(*steps: Coroutine[Any, Any, None]) -> None:
    """All steps, each in a task. The first error ends the others, and is raised when they have ended.

    No task group: it takes a step that was cancelled for one that is done.
    """
    tasks = [asyncio.ensure_future(step) for step in steps]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def check_same(episode: EpisodeClosed, stored: StoredEpisode) -> None:
    """Raises: EpisodeConflict if the same revision is stored of other messages."""
    if stored.summary.made_from == episode.revision and stored.fingerprint != episode.fingerprint:
        raise EpisodeConflict(episode_id=episode.episode_id, revision=episode.revision)


def written_by_llm(answer: Summary | ProviderError) -> Summary:
    """Raises: the ProviderError, or one where no LLM is configured any more."""
    if isinstance(answer, ProviderError):
        raise answer
    if answer.quality.source != "llm":
        raise ProviderError(problem="there is none")
    return answer


def summary_created(
    episode: EpisodeClosed, answer: Summary, created_at: datetime, before: SummaryCreated | None = None
) -> SummaryCreated:
    """The event of an episode and its summary, which replaces the one `before`.

    Tokens are counted as everywhere, not as the provider bills them.
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
    """Tokens and number of the core messages, and of the long summary. What has no text at all is not compressed."""
    before = episode.token_count
    ratio = 1 - after / before if before else 0.0
    return Compression(
        tokens_before=before, tokens_after=after, ratio=ratio, events_before=episode.message_count, events_after=1
    )
