"""Texts that readers do not show: those of messages that were deleted since, until the summarizer has made them anew.

The archiver notes a deletion before it makes it, and the summarizer settles it when everything that had the message has
its next revision. In between, an episode that has the message is left out, and all that was made of the conversation.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from afterword.streams.stores.episodes import EpisodeStore, StoredEpisode
from afterword.streams.stores.messages import MessageArchive, PendingDeletion

MOST_DELETIONS = 1000
"""Deletions that are looked at for a conversation; where more are pending, none of its episodes is shown."""


class Withheld:
    """Pending deletions of some conversations. `deletions`: at most MOST_DELETIONS for each."""

    def __init__(self, deletions: Iterable[PendingDeletion] = ()) -> None:
        self._of: dict[str, list[PendingDeletion]] = defaultdict(list)
        for deletion in deletions:
            self._of[deletion.conversation_id].append(deletion)

    def hides(self, episode: StoredEpisode) -> bool:
        """Return whether the episode has a deleted message in its core or overlap."""
        summary = episode.summary
        ids = {*summary.message_ids, *episode.overlap_ids}
        mine = self._pending(summary.conversation_id, summary.tenant_id)
        return len(mine) >= MOST_DELETIONS or any(
            _is_before(episode, deletion.offset) if deletion.message_id is None else deletion.message_id in ids
            for deletion in mine
        )

    async def conceals(
        self, episodes: EpisodeStore, conversation_id: str, tenant_id: str | None, agent_id: str | None, ordinal: int
    ) -> bool:
        """Return whether title and rolling summary of a scope may have what was deleted. Raises: StoreUnavailable.

        `ordinal`: of its last episode.
        """
        mine = self._pending(conversation_id, tenant_id)
        if not mine or len(mine) >= MOST_DELETIONS:
            return bool(mine)
        for deletion in mine:
            if deletion.message_id is None and await episodes.has_before(
                conversation_id, agent_id, deletion.offset, ordinal
            ):
                return True
        ids = [deletion.message_id for deletion in mine if deletion.message_id is not None]
        return bool(ids) and await episodes.has_any(conversation_id, agent_id, ids)

    def _pending(self, conversation_id: str, tenant_id: str | None) -> list[PendingDeletion]:
        return [deletion for deletion in self._of.get(conversation_id, ()) if deletion.tenant_id == tenant_id]


async def read_withheld(archive: MessageArchive, conversation_ids: Sequence[str]) -> Withheld:
    """Read the pending deletions: one query, or one for each conversation where many are pending.

    To be read before the texts, or else what is settled in between is shown as it was. Raises: StoreUnavailable.
    """
    if not conversation_ids:
        return Withheld()
    found = await archive.pending_deletions(conversation_ids, MOST_DELETIONS)
    if len(found) >= MOST_DELETIONS and len(conversation_ids) > 1:
        each = [await archive.pending_deletions([one], MOST_DELETIONS) for one in conversation_ids]
        found = [deletion for page in each for deletion in page]
    return Withheld(found)


def _is_before(episode: StoredEpisode, offset: int) -> bool:
    return episode.last_offset <= offset
