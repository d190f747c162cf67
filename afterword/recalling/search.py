"""A search in a user's episodes: the index, their passages, a reranker if there is one, and what was said."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from itertools import accumulate
from typing import Any, NamedTuple

from afterword.recalling.episode_texts import EpisodeTexts
from afterword.recalling.matches import READ_CHARACTERS, best_messages, matches_of, within_budget
from afterword.recalling.passages import (
    MESSAGE_CHARACTERS,
    EpisodeWords,
    Passage,
    QueryWords,
    best_passages,
    fused,
    passage_order,
)
from afterword.recalling.reranking import Document, Reranking
from afterword.recalling.times import AskedTime, asked_time
from afterword.schemas import SummaryCreated
from afterword.streams.stores.episodes import EpisodeStore
from afterword.streams.stores.index import Query, RankingScores, Recalled
from afterword.streams.stores.messages import MessageArchive, MessageText
from afterword.streams.together import together
from afterword.withheld import Withheld, read_withheld

CANDIDATES = 50
"""Episodes whose passages are compared."""
MOST_MESSAGES = 2000
"""Messages that are read for one search; of longer episodes, fewer are compared."""

MOST_SEARCHED = 200
"""Messages in which an answer looks for words after their beginnings."""

Texts = Mapping[str, Mapping[str, MessageText]]
"""Messages by episode id and message id."""
Search = Callable[[Query], Coroutine[Any, Any, list[Recalled]]]


def utc_now() -> datetime:
    return datetime.now(UTC)


class Candidate(NamedTuple):
    """A hit on its way through the stages."""

    hit: Recalled
    matching: Mapping[str, float] = {}
    """Weights of the messages that match, by their ids."""
    is_of_asked_time: bool = False
    """It was at the time that the query names, or one of these messages names that time."""


class EpisodeSearch:
    """Finds the episodes of a user that match a query best. `zone`, `now`: of the days that "yesterday" means."""

    def __init__(
        self,
        episodes: EpisodeStore,
        archive: MessageArchive,
        search: Search,
        reranking: Reranking | None = None,
        zone: tzinfo = UTC,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._episodes = episodes
        self._archive = archive
        self._search = search
        self._reranking = reranking
        self._texts = EpisodeTexts(archive)
        self._zone = zone
        self._now = now

    async def hits(self, query: Query) -> list[Recalled]:
        """Return the best `k` episodes, best first, with what was said in them. Raises: StoreUnavailable."""
        found, asked = await self._first_stage(query)
        # before the episodes are read: what is settled meanwhile has its next revision then
        withholding = read_withheld(self._archive, list({hit.conversation_id for hit in found}))
        (ranked, words), withheld = await together(self._ranked_by_passages(query, found, asked), withholding)
        wanted = max(query.k, self._reranking.candidates) if self._reranking else query.k
        shown = await self._as_stored(query, ranked[:wanted], withheld)
        shown, texts = await self._matching(query, shown, words)
        if self._reranking:
            shown = await self._reranked(self._reranking, query, shown, texts, words)
        # in a thread, because it computes
        return await asyncio.to_thread(_with_matches, shown[: query.k], texts, words)

    async def _first_stage(self, query: Query) -> tuple[list[Recalled], AskedTime | None]:
        """Ask the index, and once more for the time that the query names."""
        hits, asked = await together(
            self._search(query.model_copy(update={"k": max(query.k, CANDIDATES)})),
            # in a thread, because it computes
            asyncio.to_thread(asked_time, query.text, self._now(), self._zone),
        )
        if asked is None:
            return hits, None
        within = query.within(asked.begin, asked.end).model_copy(update={"k": CANDIDATES})
        return together_with(hits, await self._search(within)), asked

    async def _ranked_by_passages(
        self, query: Query, hits: Sequence[Recalled], asked: AskedTime | None
    ) -> tuple[list[Candidate], QueryWords]:
        """Read the messages of the first CANDIDATES, and fuse their order with that of their best passages."""
        read = hits[: _readable(hits)]
        episodes = await self._texts.read(query, read)
        said = [episode.words for episode in episodes]
        text = asked.rest if asked else query.text  # what names the time is no subject of a passage
        words, passages = await asyncio.to_thread(_compared, text, said)
        candidates = [
            Candidate(_explained(query, hit, passage.score), {its.ids[at]: w for at, w in passage.matching.items()})
            if passage
            else Candidate(hit)
            for hit, its, passage in zip(read, episodes, passages, strict=True)
        ]
        if asked:
            candidates = await self._of_time(asked, query, candidates)
        by_passage = passage_order(passages, [hit.ended_at for hit in read])
        ranks = fused([range(len(read)), by_passage], _of_asked_time(candidates))
        return [*(_scored(candidates[at], score) for at, score in ranks), *map(Candidate, hits[len(read) :])], words

    async def _of_time(self, asked: AskedTime, query: Query, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Mark those with a match that were at this time, or a match of which names it: what is planned for May is
        said in April."""
        at_time = [asked.meets(one.hit.started_at, one.hit.ended_at) for one in candidates]
        others = [(one.hit, [*one.matching]) for one, is_in in zip(candidates, at_time, strict=True) if not is_in]
        texts = await self._texts.texts(query, others, MESSAGE_CHARACTERS)

        def is_of_time(candidate: Candidate, is_in: bool) -> bool:
            its = texts.get(candidate.hit.episode_id, {}).values()
            named = is_in or any(asked.is_named(text.content, candidate.hit.ended_at) for text in its)
            return named and bool(candidate.matching)  # vectors find something at any time

        # in a thread, because it computes
        marks = await asyncio.to_thread(lambda: [*map(is_of_time, candidates, at_time)])
        return [one._replace(is_of_asked_time=mark) for one, mark in zip(candidates, marks, strict=True)]

    async def _as_stored(self, query: Query, ranked: Sequence[Candidate], withheld: Withheld) -> list[Candidate]:
        """Those that may be shown, as their stored revisions are: the index may have an earlier one."""
        stored = await self._episodes.find_many([one.hit.episode_id for one in ranked])
        shown: list[Candidate] = []
        for one in ranked:
            episode = stored.get(one.hit.episode_id)
            if episode and query.allows(episode.summary) and not withheld.hides(episode):
                kept = {name: w for name, w in one.matching.items() if name in episode.summary.message_ids}
                shown.append(one._replace(hit=_stored_hit(one.hit, episode.summary), matching=kept))
        return shown

    async def _matching(
        self, query: Query, shown: Sequence[Candidate], words: QueryWords
    ) -> tuple[list[Candidate], Texts]:
        """Read the messages that match, by episode and message id.

        A hit without a passage may have the words after the beginnings of its messages, so these are searched.
        """
        left, wanted = MOST_SEARCHED, []
        for one in shown:
            ids = [*one.matching] or one.hit.message_ids[:left]
            left -= 0 if one.matching else len(ids)
            wanted.append((one.hit, ids))
        texts = await self._texts.texts(query, wanted, READ_CHARACTERS)

        if all(one.matching for one in shown):
            return [*shown], texts

        def matching(one: Candidate) -> Candidate:
            return one if one.matching else one._replace(matching=best_messages(texts[one.hit.episode_id], words))

        # in a thread, because it computes
        return await asyncio.to_thread(lambda: [*map(matching, shown)]), texts

    async def _reranked(
        self,
        reranking: Reranking,
        query: Query,
        shown: Sequence[Candidate],
        texts: Texts,
        words: QueryWords,
    ) -> list[Candidate]:
        """Fuse the reranker's order of the best with the one that they have; scores stay with the ranks.

        The reranker knows nothing of times, and alone does worse than both on chats of short messages.
        """
        best = shown[: reranking.candidates]
        documents = [
            Document([text.content for text in _said_in(one, texts).values()], one.hit.short_summary) for one in best
        ]
        order = await reranking.order(query.text, documents, words)
        ranks = fused([order, range(len(best))], _of_asked_time(best)) if order else []
        after = [_scored(best[at], one.hit.score) for (at, _), one in zip(ranks, best, strict=True)] if ranks else best
        return [*after, *shown[len(best) :]]


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


def _compared(text: str, episodes: Sequence[EpisodeWords]) -> tuple[QueryWords, list[Passage | None]]:
    words = QueryWords(text, episodes)
    return words, best_passages(words, episodes)


def _of_asked_time(candidates: Sequence[Candidate]) -> set[int]:
    return {place for place, one in enumerate(candidates) if one.is_of_asked_time}


def _explained(query: Query, hit: Recalled, score: float) -> Recalled:
    """The hit with the score of its passage, if that was asked for."""
    if not query.explain:
        return hit
    scores = (hit.scores or RankingScores()).model_copy(update={"passages": score})
    return hit.model_copy(update={"scores": scores})


def _scored(candidate: Candidate, score: float) -> Candidate:
    return candidate._replace(hit=candidate.hit.model_copy(update={"score": score}))


def _stored_hit(hit: Recalled, summary: SummaryCreated) -> Recalled:
    names = Recalled.model_fields.keys() & SummaryCreated.model_fields.keys()
    stored = {name: getattr(summary, name) for name in names}
    return hit.model_copy(update={**stored, "source": summary.quality.source})


def _said_in(candidate: Candidate, texts: Texts) -> dict[str, MessageText]:
    """Messages of the candidate that match, as far as they are still there."""
    its = texts[candidate.hit.episode_id]
    return {name: its[name] for name in candidate.matching if name in its}


def _with_matches(shown: Sequence[Candidate], texts: Texts, words: QueryWords) -> list[Recalled]:
    return within_budget(
        [one.hit.model_copy(update={"matches": matches_of(_said_in(one, texts), one.matching, words)}) for one in shown]
    )
