"""What a user said to correct a message of a hit: later in its episode, or at the beginning of one of the next.

Such a message seldom has a word of the question ("no, Thursday"), so a search for the question does not find it.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import NamedTuple

from afterword.streams.stores.index import Candidate, Query, Recalled
from afterword.streams.stores.messages import MessageText
from afterword_text.corrections import Likelihood, likelihoods

WITHIN = timedelta(days=2)
"""How much later a correction may come."""
MOST_EPISODES = 3
"""Number of next episodes of the user that are looked at."""
AFTER, OPENING, OPENING_ELSEWHERE = 12, 4, 2
"""Number of messages that are looked at: in the episode, at the beginning of a later one of the same conversation, and
of another conversation."""
MOST = 2
"""Maximum number of corrections that are shown with a hit."""


class Place(NamedTuple):
    """A message that may correct a hit's."""

    conversation_id: str
    message_id: str
    least: Likelihood
    """How likely it has to look to be shown."""


Later = Mapping[Place, MessageText]
"""The messages that may correct a hit, in order."""


def later_query(query: Query, hit: Recalled) -> Query:
    """Return the query for the user's next episodes after a hit."""
    begin = max(hit.ended_at, query.started_after or hit.ended_at)
    times = {"started_after": begin, "started_before": hit.ended_at + WITHIN}
    return query.model_copy(update={**times, "order": "oldest", "k": MOST_EPISODES})


def places_after(hit: Recalled, best: str) -> list[Place]:
    """Return the messages of the hit after its `best` one."""
    after = hit.message_ids.index(best) + 1
    return [
        Place(hit.conversation_id, message_id, Likelihood.SAME_SUBJECT)
        for message_id in hit.message_ids[after:][:AFTER]
    ]


def places_in(episodes: Sequence[Candidate], hit: Recalled) -> list[Place]:
    """Return the first messages of later episodes."""
    places: list[Place] = []
    for episode in sorted(episodes, key=attrgetter("started_at")):
        if episode.episode_id == hit.episode_id:
            continue
        if episode.conversation_id != hit.conversation_id:
            names, least = episode.message_ids[:OPENING_ELSEWHERE], Likelihood.OTHER_VALUE
        else:
            names, least = episode.message_ids[:OPENING], Likelihood.SAME_SUBJECT
        places += [Place(episode.conversation_id, name, least) for name in names]
    return places


def corrections(answer: MessageText | None, later: Later, languages: Sequence[str]) -> Later:
    """Select the messages that correct the best message of a hit, newest first."""
    if answer is None:
        return {}
    own = {
        place: text
        for place, text in later.items()
        if text.sent_at >= answer.sent_at and text.content != answer.content
    }
    found = likelihoods([text.content for text in own.values()], answer.content, languages)
    likely = {place: how for place, how in zip(own, found, strict=True) if how is not None and how >= place.least}
    best = sorted(likely, key=likely.__getitem__, reverse=True)[:MOST]
    return {place: own[place] for place in reversed(own) if place in best}
