"""What an agent loads when a conversation goes on: what it was about, and the last words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from schemas import MessageCreated
from streams.settings import Mongo
from streams.stores import mongo
from streams.stores.episodes import EpisodeStore
from streams.stores.messages import ArchivedMessage, MessageArchive
from streams.stores.mongo_episodes import MongoEpisodes
from streams.stores.mongo_messages import MongoMessages


@dataclass(frozen=True)
class Context:
    """`title` and `rolling_summary` are empty until the first episode is summarised."""

    conversation_id: str
    title: str
    rolling_summary: str
    episode_count: int
    messages: tuple[MessageCreated, ...]
    """Oldest first."""

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "messages": [message.model_dump(mode="json") for message in self.messages]}

    def lines(self) -> Iterator[str]:
        """For people."""
        yield self.title or "(no summary yet)"
        yield ""
        if self.rolling_summary:
            yield self.rolling_summary
            yield ""
        yield from (f"{message.role}: {message.content}" for message in self.messages)


async def load_context(settings: Mongo, conversation_id: str, last_messages: int) -> Context | None:
    """None when nothing is known of the conversation. Raises: StoreUnavailable."""
    database = mongo.connect(settings)
    try:
        return await read_context(MongoEpisodes(database), MongoMessages(database), conversation_id, last_messages)
    finally:
        await mongo.close(database)


async def read_context(
    episodes: EpisodeStore, archive: MessageArchive, conversation_id: str, last_messages: int
) -> Context | None:
    """From any stores; None when nothing is known of the conversation."""
    conversation = await episodes.conversation(conversation_id)
    row = await episodes.latest_row(conversation_id)
    recent = await archive.recent(conversation_id, max(1, last_messages))
    if conversation is None and not recent:
        return None
    tenant = conversation.tenant_id if conversation else recent[0].message.tenant_id
    messages = of_tenant(recent, tenant)
    return Context(
        conversation_id=conversation_id,
        title=conversation.title if conversation else "",
        rolling_summary=row.content if row else "",
        episode_count=conversation.episode_count if conversation else 0,
        messages=messages[len(messages) - min(last_messages, len(messages)) :],
    )


def of_tenant(messages: Sequence[ArchivedMessage], tenant_id: str | None) -> tuple[MessageCreated, ...]:
    """A message of another tenant under this conversation's id is a dead letter; the archive has it all the same."""
    return tuple(m.message for m in messages if m.message.tenant_id == tenant_id)
