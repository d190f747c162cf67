"""Second stage of a search: the messages of the best episodes are read, and the episodes ranked anew."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

from afterword.recalling.passages import (
    MESSAGE_CHARACTERS,
    EpisodeWords,
    FirstRanked,
    Passage,
    Precedence,
    best_passages,
    fused_ranks,
    matching_words,
)
from afterword.recalling.times import AskedTime
from afterword.schemas.ids import message_key
from afterword.streams.stores.index import Query, RankingScores, Recalled
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.together import together

CANDIDATES = 50
"""Episodes that are ranked anew."""
MOST_MESSAGES = 2000
"""Messages that are read for one search; of longer episodes, fewer are ranked anew."""

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
    """Words of the episodes that searches have read lately: most candidates of a user are candidates again.

    An edit or a deletion makes another revision of the episode, which is read anew; of an earlier one nothing is kept
    then. An episode is kept once all of its messages are in the archive.
    """

    def __init__(self, archive: MessageArchive, most_bytes: int = MOST_BYTES) -> None:
        self._archive = archive
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()

    async def read(self, query: Query, hits: Sequence[Recalled]) -> list[ReadEpisode]:
        """Messages of each hit, those of the query's tenant alone. Raises: StoreUnavailable."""
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
        keys = {
            hit.episode_id: [(one, message_key(hit.conversation_id, one, query.tenant_id)) for one in hit.message_ids]
            for hit in hits
        }
        texts = await self._archive.contents([key for each in keys.values() for _, key in each], MESSAGE_CHARACTERS)
        # in a thread: it computes
        return await asyncio.to_thread(lambda: {name: _episode(its, texts) for name, its in keys.items()})

    async def at_time(
        self,
        asked: AskedTime,
        query: Query,
        hits: Sequence[Recalled],
        episodes: Sequence[ReadEpisode],
        passages: Sequence[Passage | None],
    ) -> set[str]:
        """Ids of the episodes that were at this time, or whose matching messages name it. Raises: StoreUnavailable.

        Messages are read for it, as of an episode only its words are kept: those that match, of the other episodes.
        """
        found = {hit.episode_id for hit in hits if asked.meets(hit.started_at, hit.ended_at)}
        keys = {
            hit.episode_id: [
                message_key(hit.conversation_id, episode.ids[place], query.tenant_id) for place in passage.matching
            ]
            for hit, episode, passage in zip(hits, episodes, passages, strict=True)
            if passage is not None and hit.episode_id not in found
        }
        every = list(chain.from_iterable(keys.values()))
        texts = await self._archive.contents(every, MESSAGE_CHARACTERS) if every else {}
        said_at = {hit.episode_id: hit.ended_at for hit in hits}

        def name_it() -> set[str]:
            return {
                episode_id
                for episode_id, its in keys.items()
                if any(asked.is_named(texts[key], said_at[episode_id]) for key in its if key in texts)
            }

        return found | await asyncio.to_thread(name_it)  # which computes

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


def _episode(keys: Sequence[tuple[str, str]], texts: Mapping[str, str]) -> ReadEpisode:
    """Make an episode of whose messages some may not be there. `keys`: id and key in the archive of each message."""
    there = [(one, texts[key]) for one, key in keys if key in texts]
    return ReadEpisode(tuple(one for one, _ in there), EpisodeWords([text for _, text in there]))


class Ranking(NamedTuple):
    """Episodes as the second stage has put them in order, and what it knows of them."""

    hits: list[Recalled]
    precedence: Precedence
    places: Mapping[str, int]
    """Places of the episodes in it, by their ids; those that were not read have none."""

    def kept(self, before: Sequence[Recalled], after: Sequence[Recalled]) -> list[Recalled]:
        """The order `after` with what `before` had of times and changes; what was not read keeps its rank in `after`.

        `before`, `after`: the same of these hits.
        """
        by_place = {self.places[hit.episode_id]: hit for hit in after if hit.episode_id in self.places}
        read = [self.places[hit.episode_id] for hit in before if hit.episode_id in self.places]
        places = iter(self.precedence.kept(read, list(by_place)))
        return [by_place[next(places)] if hit.episode_id in self.places else hit for hit in after]


async def reranked(
    texts: EpisodeTexts, query: Query, hits: Sequence[Recalled], most: int, asked: AskedTime | None = None
) -> Ranking:
    """Rank the first CANDIDATES hits anew by their best passages, and name the messages that match; keep the `most`
    best.

    `asked`: the time that the query names; episodes of it come forward. Raises: StoreUnavailable.
    """
    read = hits[: _readable(hits)]
    episodes = await texts.read(query, read)
    said = asked.rest if asked else query.text  # what names the time is no subject of the passage
    words = [each.words for each in episodes]
    matching, passages = await asyncio.to_thread(_compared, said, words)
    at_asked_time = await texts.at_time(asked, query, read, episodes, passages) if asked else set()
    ranked = [
        FirstRanked(
            passage,
            hit.ended_at,
            hit.episode_id in at_asked_time,
            passage is not None and episode.tells_change(passage.matching),
        )
        for hit, episode, passage in zip(read, words, passages, strict=True)
    ]
    precedence = Precedence(ranked, words, matching, asks_for_past=asked is not None and asked.is_over)
    ranks = fused_ranks(ranked)
    order = precedence.changes_first([place for place, _ in ranks])
    best = [
        _matched(query, score, read[at], episodes[at].ids, passages[at])
        for at, (_, score) in zip(order[:most], ranks, strict=False)
    ]
    places = {hit.episode_id: place for place, hit in enumerate(read)}
    return Ranking([*best, *hits[len(read) :]][:most], precedence, places)


def _compared(said: str, episodes: Sequence[EpisodeWords]) -> tuple[Mapping[str, str], list[Passage | None]]:
    matching = matching_words(said, episodes)
    return matching, best_passages(matching, episodes)


def together_with(hits: Sequence[Recalled], others: Sequence[Recalled]) -> list[Recalled]:
    """The hits, and those of the others that are not among them, so that both have their share of the candidates."""
    known = {hit.episode_id for hit in hits}
    more = [hit for hit in others if hit.episode_id not in known]
    kept = max(CANDIDATES - len(more), CANDIDATES // 2)
    return [*hits[:kept], *more, *hits[kept:]]


def _readable(hits: Sequence[Recalled]) -> int:
    """Number of hits whose messages are read."""
    so_far = accumulate(len(hit.message_ids) for hit in hits[:CANDIDATES])
    return sum(count <= MOST_MESSAGES for count in so_far)


def _matched(query: Query, score: float, hit: Recalled, ids: Sequence[str], passage: Passage | None) -> Recalled:
    """The hit with its score, the ids of the messages that match, and the passage's score if that was asked for."""
    update: dict[str, object] = {"score": score}
    if passage is not None:
        update["matching_ids"] = tuple(ids[place] for place in passage.matching)
        if query.explain:
            scores = hit.scores or RankingScores()
            update["scores"] = scores.model_copy(update={"passages": passage.score})
    return hit.model_copy(update=update)
