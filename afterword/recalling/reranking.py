"""Second stage of a search: the messages of the best episodes are read, and the episodes ranked anew."""

import asyncio
from collections.abc import Sequence
from itertools import accumulate

from afterword.recalling.passages import MESSAGE_CHARACTERS, FirstRanked, Passage, best_passages, fused_ranks
from afterword.recalling.times import AskedTime
from afterword.schemas.ids import message_key
from afterword.streams.stores.index import Query, RankingScores, Recalled
from afterword.streams.stores.messages import MessageArchive

CANDIDATES = 50
"""Episodes that are ranked anew."""
MOST_MESSAGES = 2000
"""Messages that are read for one search; of longer episodes, fewer are ranked anew."""

_Message = tuple[str, str]
"""Id and text."""


async def reranked(
    archive: MessageArchive, query: Query, hits: Sequence[Recalled], asked: AskedTime | None = None
) -> list[Recalled]:
    """Rank the first CANDIDATES hits anew by their best passages, and name the messages that match.

    `asked`: the time that the query names; episodes of it come forward.

    The texts are read from the archive at once: what was deleted there is not read, and matches nothing.
    Raises: StoreUnavailable.
    """
    read = hits[: _readable(hits)]
    episodes = await _messages(archive, query, read)
    texts = [[text for _, text in messages] for messages in episodes]
    passages = await asyncio.to_thread(best_passages, query.text, texts)  # which computes
    found = [_matched(query, *each) for each in zip(read, episodes, passages, strict=True)]
    ranks = fused_ranks([_ranked(*each, asked) for each in zip(found, passages, strict=True)])
    best = [found[place].model_copy(update={"score": score}) for place, score in ranks]
    return [*best, *hits[len(read) :]]


def _ranked(hit: Recalled, passage: Passage | None, asked: AskedTime | None) -> FirstRanked:
    at_asked_time = asked is not None and asked.meets(hit.started_at, hit.ended_at)
    return FirstRanked(passage and passage.score, hit.ended_at, at_asked_time)


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


async def _messages(archive: MessageArchive, query: Query, hits: Sequence[Recalled]) -> list[list[_Message]]:
    """Archived messages of each hit, those of the query's tenant alone."""
    keys = [
        [(message_id, message_key(hit.conversation_id, message_id, query.tenant_id)) for message_id in hit.message_ids]
        for hit in hits
    ]
    texts = await archive.contents([key for each in keys for _, key in each], MESSAGE_CHARACTERS)
    return [[(message_id, texts[key]) for message_id, key in each if key in texts] for each in keys]


def _matched(query: Query, hit: Recalled, messages: Sequence[_Message], passage: Passage | None) -> Recalled:
    """The hit with the ids of the messages that match, and the passage's score if that was asked for."""
    if passage is None:
        return hit
    scores = hit.scores or RankingScores()
    update = {"matching_ids": tuple(messages[place][0] for place in passage.matching)}
    more = {"scores": scores.model_copy(update={"passages": passage.score})} if query.explain else {}
    return hit.model_copy(update={**update, **more})
