"""The words of the episodes that searches have read lately: most candidates of a user are candidates again."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from afterword.recalling.passages import MESSAGE_CHARACTERS, EpisodeWords
from afterword.schemas.ids import message_key
from afterword.streams.stores.index import Query, Recalled
from afterword.streams.stores.messages import MessageArchive, MessageText
from afterword.streams.together import together

MOST_BYTES = 32_000_000
"""Bytes of episodes that are kept for later searches, about."""
EPISODE_BYTES, WORD_BYTES, ID_BYTES = 900, 72, 60
"""Bytes that an episode takes, a word of it, and the id of a message."""
READS_AT_ONCE = 2
"""Queries for the messages of a search: words of some episodes are read while the server looks for others."""

_Key = tuple[str | None, str]
"""Tenant and episode id."""


class ReadEpisode(NamedTuple):
    """Messages that are compared with queries."""

    ids: tuple[str, ...]
    words: EpisodeWords

    @property
    def size_bytes(self) -> int:
        return EPISODE_BYTES + WORD_BYTES * len(self.words.said) + ID_BYTES * len(self.ids)


class _Kept(NamedTuple):
    """An episode as of a revision."""

    revision: int
    episode: ReadEpisode


class EpisodeTexts:
    """Reads messages of episodes, always those of the query's tenant alone, and keeps their words.

    An edit or a deletion makes another revision of the episode, which is read anew; nothing is kept of an earlier one.
    An episode is kept once all of its messages are in the archive. All methods raise StoreUnavailable.
    """

    def __init__(self, archive: MessageArchive, most_bytes: int = MOST_BYTES) -> None:
        self._archive = archive
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()

    async def read(self, query: Query, hits: Sequence[Recalled]) -> list[ReadEpisode]:
        """Read the messages of each hit."""
        found = {hit.episode_id: known for hit in hits if (known := self._known(query, hit)) is not None}
        unknown = [hit for hit in hits if hit.episode_id not in found]
        shares = (unknown[start::READS_AT_ONCE] for start in range(READS_AT_ONCE))
        for read in await together(*[self._read(query, share) for share in shares if share]):
            found |= read
        for hit in unknown:
            if len(found[hit.episode_id].ids) == len(hit.message_ids):
                self._keep(query, hit, found[hit.episode_id])
        return [found[hit.episode_id] for hit in hits]

    async def _read(self, query: Query, hits: Sequence[Recalled]) -> dict[str, ReadEpisode]:
        texts = await self.texts(query, [(hit, hit.message_ids) for hit in hits], MESSAGE_CHARACTERS)
        # in a thread, because it computes
        return await asyncio.to_thread(lambda: {name: _episode(its) for name, its in texts.items()})

    async def texts(
        self, query: Query, wanted: Sequence[tuple[Recalled, Sequence[str]]], characters: int
    ) -> dict[str, dict[str, MessageText]]:
        """Read some messages of each hit, named by their ids, from the archive: by episode id and message id.

        What the archive does not have, or not any more, is left out.
        """
        keys = {
            hit.episode_id: {one: message_key(hit.conversation_id, one, query.tenant_id) for one in message_ids}
            for hit, message_ids in wanted
        }
        every = [key for each in keys.values() for key in each.values()]
        texts = await self._archive.texts(every, characters) if every else {}
        return {
            episode_id: {message_id: texts[key] for message_id, key in each.items() if key in texts}
            for episode_id, each in keys.items()
        }

    def _known(self, query: Query, hit: Recalled) -> ReadEpisode | None:
        key = query.tenant_id, hit.episode_id
        kept = self._kept.get(key)
        if kept is None or kept.revision != hit.revision:
            return None
        self._kept.move_to_end(key)
        return kept.episode

    def _keep(self, query: Query, hit: Recalled, episode: ReadEpisode) -> None:
        key = query.tenant_id, hit.episode_id
        self._forget(key)
        self._kept[key] = _Kept(hit.revision, episode)
        self._bytes += episode.size_bytes
        while self._bytes > self._most_bytes:
            self._forget(next(iter(self._kept)))

    def _forget(self, key: _Key) -> None:
        if (gone := self._kept.pop(key, None)) is not None:
            self._bytes -= gone.episode.size_bytes


def _episode(texts: Mapping[str, MessageText]) -> ReadEpisode:
    return ReadEpisode(tuple(texts), EpisodeWords([text.content for text in texts.values()]))
