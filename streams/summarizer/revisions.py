"""The parts that every revision of an episode has, the first one included: the steps to make it, and its event."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

from afterword.schemas import Compression, EpisodeClosed, SummaryCreated, SummaryDeleted
from afterword.schemas.base import utc_milliseconds
from afterword.schemas.episodes import Change
from afterword.schemas.ids import event_id, message_key, revision_of
from afterword.streams.errors import ProviderError
from afterword.streams.stores.coalescing import Coalesced
from afterword.streams.stores.episodes import DeletedEpisode, EpisodeStore, EpisodeVersion, StoredEpisode, scope_of
from afterword.streams.stores.index import EpisodeIndex
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.stores.replies import ReplyCache
from afterword.streams.summarizer.current import MessageState
from afterword.streams.summarizer.embedders import Embedder, embed_messages
from afterword.streams.summarizer.rolling import History, SummaryRules, read_current_history, read_history
from afterword.streams.summarizer.steps import PUBLISH, StepRunner
from afterword.streams.summarizer.summarizer import Summarizer
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from afterword.streams.tokens import count_tokens

Episode = StoredEpisode | DeletedEpisode
Ask = Callable[[SummaryRequest], Awaitable[Summary]]
Publish = Callable[[SummaryCreated | SummaryDeleted], Awaitable[None]]
"""Send an event; returns after the broker's acknowledgement."""
Clock = Callable[[], datetime]
ReadMessages = Callable[[Sequence[str]], Awaitable[dict[str, MessageState]]]


def now() -> datetime:
    return datetime.now(UTC)


class Revisions:
    """Reads, asks, indexes and announces; every step is retried until it succeeds."""

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
        replies: ReplyCache,
        clock: Clock = now,
    ) -> None:
        self._episodes = episodes
        self._messages = messages
        # these are read for every episode, of which many are in flight
        self._read_changed = Coalesced(messages.changed)
        self._read_versions = Coalesced(episodes.versions)
        self._index = index
        self._summarizer = summarizer
        self._embedder = embedder
        self._publish = publish
        self._retry_until_success = steps.retry_until_success
        self._rules = rules
        self._replies = replies
        self._clock = clock

    async def _read_history(self, episode: EpisodeClosed) -> History:
        return await self._retry_until_success("find", lambda: read_history(self._episodes, episode, self._rules))

    async def _current_history(self, closed: EpisodeClosed) -> History:
        return await self._retry_until_success(
            "find", lambda: read_current_history(self._episodes, closed, self._rules)
        )

    async def _read_messages(
        self, read: ReadMessages, of: EpisodeClosed | SummaryCreated, ids: Iterable[str]
    ) -> dict[str, MessageState]:
        """Read these messages of the episode's conversation and tenant; returns those that were found, by id."""
        keys = {message_key(of.conversation_id, one, of.tenant_id): one for one in ids}
        found = await self._retry_until_success("find", lambda: read(list(keys)))
        return {keys[key]: state for key, state in found.items()}

    async def _read_now(self, event_ids: Iterable[str]) -> dict[str, EpisodeVersion]:
        """Read the versions of the episodes of these summaries, by the event ids of the summaries."""
        names = {one: revision_of(one)[0] for one in event_ids}
        if not names:
            return {}
        found = await self._retry_until_success("find", lambda: self._read_versions([*names.values()]))
        return {one: found[name] for one, name in names.items() if name in found}

    async def _ask(self, request: SummaryRequest) -> Summary:
        return await self._retry_until_success("summarize", lambda: self._summarizer.summarize(request))

    async def _ask_without_fallback(self, request: SummaryRequest) -> Summary:
        """Ask the LLM once. Raises: ProviderError, also if no LLM is configured any more."""

        async def answer() -> Summary | ProviderError:
            try:
                return await self._summarizer.summarize_without_fallback(request)
            except ProviderError as error:  # returned: it is not retried here, but by a later record
                return error

        found = await self._retry_until_success("summarize", answer)
        if isinstance(found, ProviderError):
            raise found
        if found.quality.source != "llm":
            raise ProviderError(problem="there is none")
        return found

    async def _forget_replies(self, episode: Episode, ordinal: int) -> None:
        """Forget what an LLM has said of this and later episodes: prompts have what came before."""
        scope = scope_of(episode.event)
        await self._retry_until_success("forget_replies", lambda: self._replies.forget(scope, ordinal))

    async def _put_point(self, summary: SummaryCreated, texts: Mapping[str, str]) -> None:
        """Index the summary, with the contents of its core messages by their ids."""
        embedder, vectors = self._embedder, None
        if embedder:
            vectors = await self._retry_until_success("embed", lambda: embed_messages(embedder, texts))
        await self._retry_until_success("index", lambda: self._index.put(summary, texts, vectors))

    async def _remove_point(self, deletion: SummaryDeleted) -> None:
        await self._retry_until_success("index", lambda: self._index.remove(deletion.episode_id, deletion.revision))

    async def _announce(self, episode: Episode) -> None:
        await self._retry_until_success(PUBLISH, lambda: self._publish(episode.event))


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
    return Compression(tokens_before=before, tokens_after=after, ratio=ratio, events_before=episode.message_count)


def summary_deleted(
    episode: EpisodeClosed | SummaryCreated,
    revision: int,
    supersedes: str | None,
    reason: Change | Literal["expired"],
    deleted_at: datetime,
) -> SummaryDeleted:
    """Build the event of an episode's end. `supersedes`: the event id of its last summary."""
    return SummaryDeleted(
        event_id=event_id(episode.episode_id, revision),
        episode_id=episode.episode_id,
        revision=revision,
        supersedes=supersedes,
        reason=reason,
        conversation_id=episode.conversation_id,
        agent_id=episode.agent_id,
        tenant_id=episode.tenant_id,
        ordinal=episode.ordinal,
        deleted_at=utc_milliseconds(deleted_at),
    )
