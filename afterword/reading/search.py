"""Searches a user's episodes: index, ranking, optional reranker, and the messages that match."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any, NamedTuple

from afterword.reading.matches import READ_CHARACTERS, matches_of, within_budget
from afterword.reading.ranking import Ranked, rank
from afterword.reading.reranking import Reranking
from afterword.reading.times import AskedTime, asked_time
from afterword.schemas.ids import message_key
from afterword.streams.stores.episodes import EpisodeStore, StoredEpisode, find_conversation, living, scope_of
from afterword.streams.stores.index import Candidate, Dense, Embed, Query, Recalled
from afterword.streams.stores.messages import MessageArchive, MessageText
from afterword.streams.tasks import gather_or_cancel
from afterword.streams.text.search_words import Word, query_words

ASKED_TIME_SHARE = 0.4
"""Share of the score for matching the time named in the query. It does not filter, because plans for May are made in
April."""
NAMED_CHARACTERS = 300
"""How much of a message is searched for that time."""
FUSION_K, ASKED_TIME_RANKS = 10, 1.5
"""The constant of the reciprocal rank fusion of the reranker's order with ours, and the weight of the named time in
it."""

Texts = Mapping[str, Mapping[str, MessageText]]
"""Messages by episode id and message id."""


Search = Callable[[Query, Dense | None], Coroutine[Any, Any, list[Candidate]]]
"""Queries the index."""


class Hit(NamedTuple):
    """An episode that may be in the answer."""

    hit: Recalled
    messages: Mapping[str, float]
    """The scores of its best messages by message id."""
    is_of_asked_time: bool
    shows_all: bool = True
    """Whether the user may read the messages of the episode's other users."""


@dataclass(frozen=True)
class EpisodeSearch:
    """Finds a user's episodes that best match a query. `zone` and `now` determine what days like "yesterday" mean."""

    episodes: EpisodeStore
    archive: MessageArchive
    search: Search
    embed: Embed
    reranking: Reranking | None
    zone: tzinfo
    now: Callable[[], datetime]

    async def hits(self, query: Query) -> list[Recalled]:
        """Return up to `k` episodes, best first, with the messages that match. Raises: StoreUnavailable."""
        # in a thread, because it is CPU-bound
        asked = await asyncio.to_thread(asked_time, query.text, self.now(), self.zone)
        vector = await self.embed(query.text)
        # the words that name a time say nothing about a passage's subject
        words = query_words(asked.rest if asked else query.text)
        queries = [query, query.within(asked.begin, asked.end)] if asked else [query]
        answers = await gather_or_cancel(*(self.search(each, vector) for each in queries))
        found = list({one.episode_id: one for answer in answers for one in answer}.values())
        ranked = await asyncio.to_thread(rank, words, vector, found)
        of_time = await self._of_time(asked, query, ranked) if asked else set()
        if of_time:
            ranked = sorted((_with_time(one, of_time) for one in ranked), key=lambda one: -one.score)
        wanted = max(query.k, self.reranking.candidates) if self.reranking else query.k
        shown = await self._as_stored(query, ranked[:wanted], of_time)
        if not shown or max(one.hit.coverage for one in shown) < query.min_coverage:
            return []
        if self.reranking:
            shown = await self._reranked(self.reranking, query, shown, words)
        least = query.min_score_ratio * shown[0].hit.score
        shown = [one for one in shown[: query.k] if one.hit.score >= least]
        texts = await self._said_in(query, shown)
        # in a thread, because it is CPU-bound
        return await asyncio.to_thread(_with_matches, shown, texts, words)

    async def _of_time(self, asked: AskedTime, query: Query, ranked: Sequence[Ranked]) -> set[str]:
        """Return the ids of matching episodes that took place at this time or whose best message names it.

        A message may name another time than its own, because plans for May are made in April.
        """
        # a match by vectors alone does not count, because vectors always match something
        matching = {one.candidate.episode_id: one for one in ranked if one.scores.message > 0}
        found = {
            name for name, one in matching.items() if asked.meets(one.candidate.started_at, one.candidate.ended_at)
        }
        best = [
            (one.candidate, [one.candidate.message_ids[one.message_scores.index(max(one.message_scores))]])
            for name, one in matching.items()
            if name not in found and one.message_scores
        ]
        texts = await self._texts(query, best, NAMED_CHARACTERS)
        return found.union(
            name
            for name, each in texts.items()
            if any(asked.is_named(text.content, matching[name].candidate.ended_at) for text in each.values())
        )

    async def _as_stored(self, query: Query, ranked: Sequence[Ranked], of_time: Collection[str]) -> list[Hit]:
        """Return those that may be shown, in their stored revisions: the index may have an earlier one."""
        stored = living((await self.episodes.lookup([one.candidate.episode_id for one in ranked])).values())
        shown: list[Hit] = []
        for one in ranked:
            name = one.candidate.episode_id
            episode = stored.get(name)
            if episode and episode.summary.short_summary and query.allows(episode):
                kept = {key: score for key, score in _named(one).items() if key in episode.summary.message_ids}
                shows_all = await self._may_read_all(query, episode)
                hit = Recalled.of(episode.summary, score=one.score, coverage=one.coverage, scores=one.scores)
                shown.append(Hit(hit, kept, name in of_time, shows_all))
        return shown

    async def _may_read_all(self, query: Query, episode: StoredEpisode) -> bool:
        """Return whether the episode or its conversation belongs to the user. Other users who wrote in it see only
        their own messages, and the answers to them."""
        if episode.summary.user_id == query.user_id:
            return True
        known = await find_conversation(self.episodes, scope_of(episode.summary))
        return known is not None and known.user_id == query.user_id

    async def _texts(
        self, query: Query, wanted: Iterable[tuple[Candidate | Recalled, Iterable[str]]], characters: int
    ) -> dict[str, dict[str, MessageText]]:
        """Read some messages of each hit from the archive, skipping those that it no longer has."""
        keys = {
            message_key(episode.conversation_id, one, query.tenant_id): (episode.episode_id, one)
            for episode, message_ids in wanted
            for one in message_ids
        }
        texts = defaultdict[str, dict[str, MessageText]](dict)
        for key, text in (await self.archive.texts(list(keys), characters) if keys else {}).items():
            episode_id, message_id = keys[key]
            texts[episode_id][message_id] = text
        return texts

    async def _said_in(self, query: Query, hits: Sequence[Hit]) -> Texts:
        """Read the hits' messages, without other people's messages that the user may not read."""
        found = await self._texts(query, ((one.hit, one.messages) for one in hits), READ_CHARACTERS)
        for name in [one.hit.episode_id for one in hits if not one.shows_all]:
            found[name] = {key: text for key, text in found[name].items() if text.user_id == query.user_id}
        return found

    async def _reranked(
        self, reranking: Reranking, query: Query, shown: Sequence[Hit], words: Sequence[Word]
    ) -> list[Hit]:
        """Fuse the reranker's order of the best hits with ours, by reciprocal ranks.

        The reranker knows nothing about times, and on chats of short messages either order alone is worse.
        """
        best = shown[: reranking.candidates]
        texts = await self._said_in(query, best)
        documents = [
            ([text.content for text in texts[one.hit.episode_id].values()], one.hit.short_summary) for one in best
        ]
        order = await reranking.order(query.text, documents, words)
        if not order:
            return list(shown)
        ranks = defaultdict[int, float](float)
        for places in (order, range(len(best))):
            for at, place in enumerate(places):
                ranks[place] += 1 / (FUSION_K + at)
        for place, one in enumerate(best):
            ranks[place] += ASKED_TIME_RANKS * one.is_of_asked_time / FUSION_K
        fused = sorted(ranks, key=lambda place: -ranks[place])
        scores = [one.hit.score for one in best]  # the scores stay in descending order
        return [
            best[place]._replace(hit=best[place].hit.model_copy(update={"score": score}))
            for place, score in zip(fused, scores, strict=True)
        ] + list(shown[len(best) :])


def _named(ranked: Ranked) -> dict[str, float]:
    return {ranked.candidate.message_ids[place]: score for place, score in ranked.messages.items()}


def _with_time(ranked: Ranked, of_time: Collection[str]) -> Ranked:
    """Add the time's share of the score. It also counts as that share of the query's coverage."""
    share = ASKED_TIME_SHARE * (ranked.candidate.episode_id in of_time)
    score = ranked.score * (1 - ASKED_TIME_SHARE) + share
    return ranked._replace(score=score, coverage=ranked.coverage * (1 - share) + share)


def _with_matches(shown: Sequence[Hit], texts: Texts, words: Sequence[Word]) -> list[Recalled]:
    return within_budget(
        [
            one.hit.model_copy(update={"matches": matches_of(texts[one.hit.episode_id], one.messages, words)})
            for one in shown
        ]
    )
