"""Searches a user's episodes: index, ranking, optional reranker, and the messages that match.

Slips of the keyboard in a query are read as the user's own words that are nearly spelled like them.
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from functools import partial
from itertools import chain, islice, zip_longest
from operator import attrgetter, itemgetter
from textwrap import wrap
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from afterword.reading.profile import MOST_PROFILE_FACTS, Profile, answering, profile
from afterword.reading.ranking import (
    VECTOR_WEIGHT,
    Later,
    Ranked,
    corrections,
    later_query,
    nearness,
    places_after,
    places_in,
    rank,
)
from afterword.reading.reranking import Mask, Reranking
from afterword.schemas.base import message_key
from afterword.schemas.messages import replaced_answers
from afterword.streams.errors import StoreUnavailable
from afterword.streams.settings import MOST_RERANKED, zone_of
from afterword.streams.stores.episodes import EpisodeQueries, StoredEpisode, find_conversation, living, meets, scope_of
from afterword.streams.stores.index import Candidate, Dense, Embed, Match, Query, QueryVector, Recalled, SearchText
from afterword.streams.stores.messages import MessageArchive, MessageText, PendingMessage
from afterword.streams.stores.packing import pack_vectors, pack_words, packed_words, unit
from afterword.streams.tasks import gather_or_cancel
from afterword_text.corrections import asks_for_value, changes
from afterword_text.language import Word, fold, hashed, is_common, normalized, plausible, query_words, subject_of, words
from afterword_text.sentences import split_sentences
from afterword_text.times import AskedTime, TimeAlone, asked_time, time_alone
from afterword_text.tokens import count_tokens
from afterword_text.visible import ELLIPSIS
from afterword_text.word_model import GENERAL, asked_of_user

OF_DAYS_AFTER = 0.5
"""How well an episode in the days after the named time matches it."""
MOST_PENDING = 200
"""At most this many pending messages of the user are read, the newest."""
EMBEDDED = 16
"""The newest EMBEDDED pending messages get vectors with each query, at about a millisecond each."""
QUESTION_MARKS = ("?", "？", "؟")
LATER, NEARLY, ALIKE = 6, 0.7, 0.4
"""Among this many hits with at least this share of the best score, one is looked for that says later what the best one
says: with at least ALIKE of its words, but not all, or that it has changed."""
READ_CHARACTERS = 12_000
"""How many characters of a matching message are read."""
EXCERPT_CHARACTERS = 600
"""How many characters of a message are shown. A longer message is shown as an excerpt."""
PIECE_CHARACTERS = 200
"""Sentences longer than this are split."""
EVERYTHING = 1_000_000
"""A limit in tokens that leaves out no fact."""
LONG_MESSAGES, SENTENCES = 3, 40
"""The sentences of up to LONG_MESSAGES messages are compared with the query by their vectors, up to SENTENCES in all:
each takes about a millisecond."""
ANSWER_TOKENS = 2000
"""Upper limit for the messages in an answer, in tokens."""
DOCUMENT_CHARACTERS = 2000
"""Upper limit for the text of an episode that a reranker gets: messages, then summary."""
MARGIN_CHARACTERS = 4000
"""Number of characters at the end of a truncated message that a reranker does not get, because redaction would miss
half an address."""
FUSION_K, ASKED_TIME_RANKS = 10, 1.5
"""The constant of the reciprocal rank fusion of the reranker's order with ours, and the weight of the named time in
it."""

_SEPARATORS = re.compile(r"(?<=\d)[ .,'’-](?=\d)")
"""Separators between digits."""

Texts = Mapping[str, Mapping[str, MessageText]]
"""Messages by episode id and message id."""

Search = Callable[[Query, Dense | None], Coroutine[Any, Any, list[Candidate]]]
"""Queries the index."""


class Hit(NamedTuple):
    """An episode that may be in the answer."""

    hit: Recalled
    messages: Mapping[str, float]
    """The scores of its best messages by message id."""
    of_time: float
    """How well it matches the time named in the query, 0 to 1."""
    shows_all: bool = True
    """Whether the user may read the messages of the episode's other users."""
    texts: Mapping[str, MessageText] | None = None
    """The texts of pending messages, which were read before."""
    words: Set[int] = frozenset()
    """The words of its best message."""

    @property
    def best(self) -> str:
        """The id of its best message."""
        return max(self.messages, key=self.messages.__getitem__, default="")


class OpenConversation(NamedTuple):
    """A user's pending messages in a conversation that is still open."""

    candidate: Candidate
    agent_id: str | None
    texts: Mapping[str, MessageText]
    """In order."""

    def hit(self, ranked: Ranked, time_zone: str) -> Recalled:
        names = ("episode_id", "conversation_id", "message_ids", "started_at", "ended_at")
        return Recalled(
            **{name: getattr(self.candidate, name) for name in names},
            **{name: getattr(ranked, name) for name in ("score", "coverage", "scores")},
            event_id="",
            title="",
            short_summary="",
            ordinal=0,
            revision=0,
            agent_id=self.agent_id,
            source=None,
            pending=True,
            time_zone=time_zone,
        )


Open = Mapping[str, OpenConversation]
"""Open conversations by the `episode_id` of their candidates."""


@dataclass(frozen=True)
class EpisodeSearch:
    """Finds what a user said that best matches a query: episodes, and the pending messages of open conversations.

    `now` determines what days like "yesterday" mean. Pending messages that were sent before `messages_before` of now
    have expired.
    """

    episodes: EpisodeQueries
    archive: MessageArchive
    search: Search
    embed: Embed | None
    reranking: Reranking | None
    now: Callable[[], datetime]
    messages_before: Callable[[datetime], datetime | None]

    async def hits(self, query: Query) -> list[Recalled]:
        """Return up to `k` episodes, best first, with the messages that match. Raises: StoreUnavailable."""
        now = self.now()
        # in a thread, because it is CPU-bound
        understood = asyncio.to_thread(_understood, query, now)
        (asked, alone), pending = await gather_or_cancel(understood, self._pending(query, now))
        if (thing := asked_of_user(query.text)) and not (asked and alone):
            return await self._about_user(query, thing, asked, pending)
        hits = [] if alone and alone.is_certain else await self._by_subject(query, asked, pending)
        # a vector alone is not enough where the time may be all that is asked for
        if alone and not (hits if asked is None else any(hit.scores.message for hit in hits)):
            return await self._by_time(query, asked, alone, pending)
        return hits

    async def _pending(self, query: Query, now: datetime) -> Open:
        """Read the user's pending messages in conversations that are still open."""
        whose = query.user_id, query.tenant_id
        pending = await self.archive.pending(*whose, MOST_PENDING, READ_CHARACTERS, self.messages_before(now))
        conversations = await asyncio.to_thread(_open_conversations, pending, query) if pending else {}
        # an episode is stored a moment before its messages are marked
        newest = [(talk.candidate.conversation_id, talk.candidate.message_ids[-1]) for talk in conversations.values()]
        held = await gather_or_cancel(*(self.episodes.holding(*each) for each in newest))
        return {name: talk for (name, talk), by in zip(conversations.items(), held, strict=True) if not by}

    async def _about_user(self, query: Query, thing: str, asked: AskedTime | None, pending: Open) -> list[Recalled]:
        """Return the episodes that state facts of this name, then the latest ones or those that match."""
        facts = await self.episodes.facts_of(query.user_id, query.tenant_id, MOST_PROFILE_FACTS)
        # in a thread, because thousands of facts take long
        known = await asyncio.to_thread(profile, query.user_id, query.tenant_id, facts, EVERYTHING)
        stating = await self._stating(query, answering(thing, known.facts, by_name=True), known, pending)
        if thing == GENERAL:
            others = await self._by_time(query, None, TimeAlone("newest", True), pending)
        else:
            others = await self._by_subject(query, asked, pending)
            others += await self._stating(query, answering(thing, known.facts), known, pending)
        hits: dict[str, Recalled] = {}
        for hit in [*stating, *others]:
            hits.setdefault(hit.episode_id, hit)
        return list(hits.values())[: query.k]

    async def _stating(
        self, query: Query, messages: Mapping[str, Sequence[str]], known: Profile, pending: Open
    ) -> list[Recalled]:
        """Return the episodes of messages that state facts."""
        ended_at = {source.episode_id: source.ended_at for fact in known.facts for source in fact.sources}
        ranked = [
            Ranked.unranked(Candidate(name, "", stated, ended_at[name], ended_at[name], b""))
            for name, stated in messages.items()
        ]
        stored = await self._as_stored(query, ranked[: query.k], pending)
        hits = [hit._replace(messages=dict.fromkeys(messages[hit.hit.episode_id], 1.0)) for hit in stored]
        return await self._shown(query, hits)

    async def _by_time(self, query: Query, asked: AskedTime | None, alone: TimeAlone, pending: Open) -> list[Recalled]:
        """Return the episodes of the asked time, or the newest or oldest of all."""
        wanted = query.model_copy(update={"order": alone.order})
        wanted = wanted.within(asked.begin, asked.named_end) if asked and not asked.is_ahead else wanted
        candidates = [*await self.search(wanted, None), *_allowed(wanted, pending)]
        candidates.sort(key=attrgetter("ended_at"), reverse=alone.order == "newest")
        ranked = [Ranked.unranked(candidate) for candidate in candidates[: query.k]]
        return await self._shown(wanted, await self._as_stored(wanted, ranked, pending))

    async def _by_subject(
        self, query: Query, asked: AskedTime | None, pending: Open, may_be_misspelt: bool = True
    ) -> list[Recalled]:
        # the words for a time and for talking say nothing about a passage's subject
        subject = subject_of(asked.rest if asked else query.text)
        words = query_words(subject)
        vector = await self.embed(subject) if self.embed else None
        pending = await _with_vectors(vector, pending) if vector else pending
        wanted = query.model_copy(update={"text": subject})
        queries = [wanted, wanted.within(asked.begin, asked.end)] if asked else [wanted]
        answers = await gather_or_cancel(*(self.search(each, vector and vector.vector) for each in queries))
        candidates = [
            *{one.episode_id: one for answer in answers for one in answer}.values(),
            *_allowed(query, pending),
        ]
        if asked and asked.number:
            words, asked = await asyncio.to_thread(_with_number, query, asked, vector, candidates)
        ranked = await asyncio.to_thread(rank, words, vector, candidates, partial(_of_time, asked))
        most = MOST_RERANKED if self.reranking else LATER
        hits = await self._as_stored(query, ranked[: max(query.k, most)], pending)
        if not hits or max(hit.hit.coverage for hit in hits) < query.min_coverage:
            respelling = None
            if may_be_misspelt and not _occurs(words, candidates):
                respelling = await self._respelt(query, subject, pending)
            if respelling is None:
                return []
            query, asked = query.model_copy(update={"text": respelling}), asked and asked._replace(rest=respelling)
            return await self._by_subject(query, asked, pending, may_be_misspelt=False)
        if self.reranking:
            hits = await self._reranked(self.reranking, query, hits, words)
        hits = [hit for hit in hits if hit.hit.score >= query.min_score_ratio * hits[0].hit.score]
        later = _later_forms(hits, words, query)
        texts = await self._texts(query, [*hits[: query.k], *(hit for hit, _ in later)])
        shown = _latest_first(hits, later, texts, query.user_id)[: query.k]
        may_correct = await self._may_correct(query, shown[0], pending)
        near = await _nearness(vector, shown, texts) if vector else {}
        show = partial(excerpt, asked=words, near=near)
        # in a thread, because it is CPU-bound
        return await asyncio.to_thread(
            _with_matches, shown, texts, show, bool(words), may_correct, plausible(query.text)
        )

    async def _respelt(self, query: Query, subject: str, pending: Open) -> str | None:
        """Return the subject of a query in the spelling of the user's own words; None if no words are near."""
        newest = await self.search(query.model_copy(update={"order": "newest", "k": SPELT_EPISODES}), None)
        keys = [
            message_key(candidate.conversation_id, message_id, query.tenant_id)
            for candidate in newest
            for message_id in candidate.message_ids
        ]
        texts = await self.archive.texts(keys, EXCERPT_CHARACTERS)
        said = chain(texts.values(), *(talk.texts.values() for talk in pending.values()))
        own = [text.content for text in said if text.user_id == query.user_id]
        # in a thread, because it is CPU-bound
        return await asyncio.to_thread(respelt, subject, own)

    async def _shown(self, query: Query, hits: Sequence[Hit]) -> list[Recalled]:
        """Return hits that are wanted for their time or for the facts in them, as they are."""
        texts = await self._texts(query, hits)
        return await asyncio.to_thread(_with_matches, hits, texts, partial(excerpt, asked=()))

    async def _may_correct(self, query: Query, hit: Hit, pending: Open) -> Later:
        """Read the user's own messages that may correct the best one of a hit."""
        if not hit.messages:
            return {}
        following = later_query(query, hit.hit)
        episodes = [*await self.search(following, None), *_allowed(following, pending)]
        places = {
            message_key(place.conversation_id, place.message_id, query.tenant_id): place
            for place in (*places_after(hit.hit, hit.best), *places_in(episodes, hit.hit))
        }
        read = await self.archive.texts(list(places), READ_CHARACTERS)
        own = {key: text for key, text in read.items() if (text.role, text.user_id) == ("user", query.user_id)}
        return {place: own[key] for key, place in places.items() if key in own}

    async def _as_stored(self, query: Query, ranked: Sequence[Ranked], pending: Open) -> list[Hit]:
        """Return the hits that may be shown, in their stored revisions. The index may have earlier ones."""
        stored = living((await self.episodes.lookup([each.candidate.episode_id for each in ranked])).values())
        shown: list[Hit] = []
        for each in ranked:
            if talk := pending.get(each.candidate.episode_id):
                kept = {each.candidate.message_ids[place]: score for place, score in each.messages.items()}
                shown.append(
                    Hit(talk.hit(each, query.time_zone), kept, each.of_time, texts=talk.texts, words=each.best_words)
                )
                continue
            episode = stored.get(each.candidate.episode_id)
            if episode and episode.summary.short_summary and query.allows(episode):
                scored = {each.candidate.message_ids[place]: score for place, score in each.messages.items()}
                kept = {key: score for key, score in scored.items() if key in episode.summary.message_ids}
                shows_all = await self._may_read_all(query, episode)
                scores = {"score": each.score, "coverage": each.coverage, "scores": each.scores}
                hit = Recalled.of(episode.summary, time_zone=query.time_zone, **scores)
                if not shows_all:  # title and summary were made from everybody's words
                    hit = hit.model_copy(update={"title": "", "short_summary": ""})
                shown.append(Hit(hit, kept, each.of_time, shows_all, words=each.best_words))
        return shown

    async def _may_read_all(self, query: Query, episode: StoredEpisode) -> bool:
        """Return whether the episode or its conversation belongs to the user. Other users who wrote in it see only
        their own messages, and the answers to them."""
        if episode.summary.user_id == query.user_id:
            return True
        known = await find_conversation(self.episodes, scope_of(episode.summary))
        return known is not None and known.user_id == query.user_id

    async def _texts(self, query: Query, hits: Sequence[Hit]) -> Texts:
        """Read the hits' messages that the archive still has, without those of other people that are not shown."""
        keys = {
            message_key(hit.hit.conversation_id, message_id, query.tenant_id): (hit, message_id)
            for hit in hits
            if hit.texts is None
            for message_id in hit.messages
        }
        read = await self.archive.texts(list(keys), READ_CHARACTERS)
        texts = defaultdict[str, dict[str, MessageText]](dict)
        texts |= {hit.hit.episode_id: dict(hit.texts) for hit in hits if hit.texts}
        for key, (hit, message_id) in keys.items():
            text = read.get(key)
            if text and (hit.shows_all or text.user_id == query.user_id):
                texts[hit.hit.episode_id][message_id] = text
        return texts

    async def _reranked(
        self, reranking: Reranking, query: Query, shown: Sequence[Hit], words: Sequence[Word]
    ) -> list[Hit]:
        """Fuse the reranker's order of the best hits with ours, by reciprocal ranks.

        The reranker knows nothing about times, and on chats of short messages either order alone is worse.
        """
        best = shown[:MOST_RERANKED]
        texts = await self._texts(query, best)
        documents = [partial(_document, texts[hit.hit.episode_id], hit.hit.short_summary, words) for hit in best]
        order = await reranking.order(query.text, documents)
        if not order:
            return list(shown)
        ranks = defaultdict[int, float](float)
        for places in (order, range(len(best))):
            for at, place in enumerate(places):
                ranks[place] += 1 / (FUSION_K + at)
        for place, hit in enumerate(best):
            ranks[place] += ASKED_TIME_RANKS * hit.of_time / FUSION_K
        fused = sorted(ranks, key=lambda place: -ranks[place])
        scores = [hit.hit.score for hit in best]  # the scores stay in descending order
        return [
            best[place]._replace(hit=best[place].hit.model_copy(update={"score": score}))
            for place, score in zip(fused, scores, strict=True)
        ] + list(shown[len(best) :])


def _understood(query: Query, now: datetime) -> tuple[AskedTime | None, TimeAlone | None]:
    """Read the time that a query names, and whether it is about a time alone."""
    asked = asked_time(query.text, now, zone_of(query.time_zone))
    return asked, time_alone(query.text, asked)


def _occurs(words: Sequence[Word], candidates: Sequence[Candidate]) -> bool:
    """Return whether a candidate has a word of the query, if there is one besides stop words."""
    asked = hashed(form for word in words if not word.is_common for form in word.forms)
    return not asked or any(np.isin(packed_words(candidate.words), asked).any() for candidate in candidates)


def _with_number(
    query: Query, asked: AskedTime, vector: QueryVector | None, candidates: Sequence[Candidate]
) -> tuple[list[Word], AskedTime | None]:
    """Return a query's words, with the number that names its day if what matches best has it beside the subject.

    The number is then no day if that is in doubt: "do I live on the 3rd?"
    """
    words, subject = query_words(subject_of(query.text)), query_words(subject_of(asked.rest))
    ranked = rank(words, vector, candidates)
    said = ranked[0].best_words if ranked else frozenset[int]()
    has = {word: not said.isdisjoint(hashed(word.forms)) for word in (*subject, *query_words(asked.number))}
    about = any(has[word] for word in subject if not word.is_common)
    if about and all(has[word] for word in query_words(asked.number)):
        return words, None if asked.is_doubtful else asked
    return subject, asked


def _open_conversations(pending: Sequence[PendingMessage], query: Query) -> Open:
    """Group pending messages by their conversations, without the question itself, which may be archived already.

    Neither a message that equals the query counts, nor a user's question at the end of a conversation: it waits for the
    answer that this search is for.
    """
    asked = words(query.text)
    conversations = defaultdict[str, list[PendingMessage]](list)
    for message in sorted(pending, key=attrgetter("offset")):
        if query.agent_id in (None, message.agent_id or query.agent_id):
            conversations[message.conversation_id].append(message)
    if query.current_conversation_id is not None:
        conversations.pop(query.current_conversation_id, None)
    talks: dict[str, OpenConversation] = {}
    for conversation_id, messages in conversations.items():
        last = messages[-1].text
        if last.role == "user" and last.content.rstrip().endswith(QUESTION_MARKS):
            messages.pop()
        replaced = replaced_answers(message.reply for message in messages)
        said = [one for one in messages if one.id not in replaced and words(one.text.content) != asked]
        texts = {message.id: message.text for message in said}
        if texts and query.conversation_id in (None, conversation_id):
            times = [text.sent_at for text in texts.values()]
            name = f"{conversation_id}:pending"
            packed = pack_words([SearchText.of(text.content, text.role, text.name) for text in texts.values()], "")
            candidate = Candidate(name, conversation_id, tuple(texts), min(times), max(times), packed)
            talks[name] = OpenConversation(candidate, query.agent_id, texts)
    return talks


def _allowed(query: Query, pending: Open) -> list[Candidate]:
    """Return the candidates of open conversations that pass the query's filters by time."""
    candidates = (conversation.candidate for conversation in pending.values())
    return [candidate for candidate in candidates if meets(candidate, query.times())]


def _of_time(asked: AskedTime | None, ranked: Ranked) -> float:
    """Return how well an episode matches the named time: whether it took place then, or its best message names it."""
    if asked is None:
        return 0.0
    times = ranked.candidate.started_at, ranked.candidate.ended_at
    names_month = asked.is_near(times[1]) and not ranked.best_words.isdisjoint(hashed(asked.month))
    if asked.names(*times) or names_month:
        return 1.0
    return OF_DAYS_AFTER * asked.meets(*times)


def _document(said: Mapping[str, MessageText], summary: str, words: Sequence[Word], mask: Mask) -> str:
    """Build the text that a reranker is given for an episode."""
    shown = []
    for content in (text.content for text in said.values()):
        end = -MARGIN_CHARACTERS if len(content) >= READ_CHARACTERS else None
        shown.append(excerpt(mask(content)[:end], words))
    return "\n".join([*shown, mask(summary)])[:DOCUMENT_CHARACTERS]


def _later_forms(hits: Sequence[Hit], words: Sequence[Word], query: Query) -> list[tuple[Hit, bool]]:
    """List hits that may say later what the best one says, likeliest first, and whether each must say it has changed.

    It need not if it says nearly the same. Else the question must be for a value, and the hit have half of the words of
    the query that the best message has, at least two.
    """
    best, asked = hits[0], set(hashed(form for word in words for form in word.forms))
    later = [
        hit
        for hit in hits[1:LATER]
        if hit.hit.ended_at > best.hit.ended_at
        and hit.of_time >= best.of_time
        and hit.hit.score >= NEARLY * best.hit.score
    ]
    again = [
        hit
        for hit in sorted(later, key=lambda hit: hit.hit.ended_at, reverse=True)
        if ALIKE <= len(hit.words & best.words) / max(len(hit.words | best.words), 1) < 1
        and best.words & asked <= hit.words
    ]
    least = max(2, len(asked & best.words) / 2)
    changed = [hit for hit in later if len(asked & hit.words) >= least] if asks_for_value(query.text) else []
    return [*((hit, False) for hit in again), *((hit, True) for hit in changed)]


def _latest_first(hits: Sequence[Hit], later: Sequence[tuple[Hit, bool]], texts: Texts, user_id: str) -> Sequence[Hit]:
    """Put the first of `later` in which it is the user who says so, and does not only ask, before the other hits."""
    for first, must_change in later:
        text = texts[first.hit.episode_id].get(first.best)
        is_own = text and (text.role, text.user_id) == ("user", user_id)
        asks = text and text.content.rstrip().endswith(QUESTION_MARKS)
        if text and is_own and (changes(text.content) or not (must_change or asks)):
            scores = [hit.hit.score for hit in hits]  # the scores stay in descending order
            return [
                hit._replace(hit=hit.hit.model_copy(update={"score": score}))
                for hit, score in zip([first, *(hit for hit in hits if hit is not first)], scores, strict=True)
            ]
    return hits


async def _with_vectors(vector: QueryVector, pending: Open) -> Open:
    """Add the vectors of the newest EMBEDDED pending messages, which have none in the index yet."""
    said = [
        (talk, name, text) for talk in pending.values() for name, text in talk.texts.items() if text.content.strip()
    ]
    newest = sorted(said, key=lambda said_text: said_text[2].sent_at)[-EMBEDDED:]
    try:
        vectors = await vector.passages([text.content for _, _, text in newest]) if newest else []
    except StoreUnavailable:
        return pending
    by_place = {(talk.candidate.episode_id, name): each for (talk, name, _), each in zip(newest, vectors, strict=True)}
    return {
        key: talk._replace(
            candidate=talk.candidate._replace(vectors=pack_vectors([by_place.get((key, name)) for name in talk.texts]))
        )
        for key, talk in pending.items()
    }


async def _nearness(vector: QueryVector, shown: Sequence[Hit], texts: Texts) -> dict[str, float]:
    """Return how near the sentences of the best LONG_MESSAGES are to the query, up to SENTENCES of them."""
    best = sorted(((score, hit, name) for hit in shown for name, score in hit.messages.items()), key=itemgetter(0))
    contents = (texts[hit.hit.episode_id].get(name) for _, hit, name in reversed(best))
    long = [text.content for text in contents if text and len(text.content) > EXCERPT_CHARACTERS]
    sentences = list(islice(chain.from_iterable(map(sentences_of, long[:LONG_MESSAGES])), SENTENCES))
    try:
        vectors = await vector.passages(sentences) if sentences else []
    except StoreUnavailable:
        return {}
    given = {sentence: each for sentence, each in zip(sentences, vectors, strict=True) if each is not None}
    if not given:
        return {}
    compared = np.einsum("ij,j->i", unit(np.asarray(list(given.values()))), unit(np.asarray(vector.vector)))
    return dict(zip(given, nearness(compared, vector.query).tolist(), strict=True))


def _with_matches(
    shown: Sequence[Hit],
    texts: Texts,
    show: Callable[[str], str],
    has_words: bool = False,
    later: Later = MappingProxyType({}),
    languages: Sequence[str] = (),
) -> list[Recalled]:
    """Add the best message of each hit, then the second best of each and so on, up to ANSWER_TOKENS in all.

    Behind the best message of the first hit comes what of `later` corrects it.
    A hit is left out if only words match that its user may not read.
    """
    rows: list[list[Match]] = []
    for hit in shown:
        said = {
            message_id: text
            for message_id in sorted(hit.messages, key=hit.messages.__getitem__, reverse=True)
            if (text := texts[hit.hit.episode_id].get(message_id)) and text.content.strip()
        }
        corrected = corrections(next(iter(said.values()), None), {} if rows else later, languages)
        own = hit.hit.conversation_id
        matches = [_match(name, text, show, hit.messages[name]) for name, text in said.items()]
        for place, text in corrected.items():
            elsewhere = place.conversation_id if place.conversation_id != own else None
            name = place.message_id
            matches = [match for match in matches if (match.message_id, match.conversation_id) != (name, elsewhere)]
            matches.insert(1, _match(name, text, show, matches[0].score, elsewhere))
        rows.append(matches)
    kept: list[list[Match]] = [[] for _ in shown]
    left = ANSWER_TOKENS
    for row in zip_longest(*rows):
        for match, matches in zip(row, kept, strict=True):
            if match and (tokens := count_tokens(match.content)) <= left:
                matches.append(match)
                left -= tokens
    return [
        hit.hit.model_copy(update={"matches": tuple(each)})
        for hit, each in zip(shown, kept, strict=True)
        if hit.shows_all or any(match.score > 0 or not has_words for match in each)
    ]


def _match(
    message_id: str, text: MessageText, show: Callable[[str], str], score: float, conversation_id: str | None = None
) -> Match:
    return Match(
        message_id=message_id,
        role=text.role,
        author=text.author,
        name=text.name,
        sent_at=text.sent_at,
        content=show(text.content),
        score=score,
        conversation_id=conversation_id,
    )


def sentences_of(text: str) -> list[str]:
    """Split a text into sentences, and those into pieces of up to PIECE_CHARACTERS."""
    return [
        piece
        for sentence in split_sentences(text)
        for piece in (wrap(sentence, PIECE_CHARACTERS) if len(sentence) > PIECE_CHARACTERS else [sentence])
    ]


def excerpt(text: str, asked: Sequence[Word], near: Mapping[str, float] = MappingProxyType({})) -> str:
    """Return the text. If it is long, return the sentence that matches the query best and those around it.

    That is the one with the highest sum of its share of the query's words and, weighted as in the ranking, how `near`
    its vector is. The excerpt has at most EXCERPT_CHARACTERS, and an ellipsis where something is left out. Linear in
    the text.
    """
    if len(text) <= EXCERPT_CHARACTERS:
        return text
    sentences = sentences_of(text)
    if not sentences:
        return text[:EXCERPT_CHARACTERS]
    # find words that begin with a form of a query word, because stems are nearly always prefixes
    forms = {form for word in asked for form in word.forms}
    begins = (rf"\b{re.escape(form)}" if form[0].isascii() else re.escape(form) for form in forms)
    wanted = re.compile("|".join(begins) or "(?!)")
    folded = _SEPARATORS.sub("", fold(normalized("NFKC", "\n".join(sentences)).casefold())).split("\n")
    scores = [
        len(set(wanted.findall(words))) / max(len(asked), 1) + VECTOR_WEIGHT * near.get(sentence, 0.0)
        for sentence, words in zip(sentences, folded, strict=True)
    ]
    first = scores.index(max(scores))
    after, size, grows = first + 1, len(sentences[first]), True
    while grows:
        grows = False
        for at in (after, first - 1):
            if 0 <= at < len(sentences) and size + len(sentences[at]) < EXCERPT_CHARACTERS:
                first, after, size, grows = min(first, at), max(after, at + 1), size + len(sentences[at]) + 1, True
    before, behind = f"{ELLIPSIS} " if first else "", f" {ELLIPSIS}" if after < len(sentences) else ""
    return f"{before}{' '.join(sentences[first:after])}{behind}"


SPELT_EPISODES = 500
"""Words are taken from this many of the user's newest episodes."""
SHORTEST_MISSPELT = 5
"""Minimum length of a word that may be misspelt. Too many others differ from a shorter one by a letter."""
SPELT_ALIKE = 0.8
"""Minimum similarity of two words, as difflib measures it: a slip in 5 letters, or two in 10."""
LONGER_BY = 2
"""Maximum difference of their lengths."""

_SPELT_WORD = re.compile(r"[^\W\d_]+")


def respelt(query: str, texts: Iterable[str]) -> str | None:
    """Return the query with the words that occur in the texts instead of those nearly spelled like them.

    They begin with the same letter. None unless half of the query's words, without stop words, have such a word.
    """
    known = sorted(
        {
            word
            for text in texts
            for word in _SPELT_WORD.findall(_folded_spelling(text))
            if len(word) >= SHORTEST_MISSPELT - 1
        }
    )
    languages = plausible(query)
    respelling: dict[str, str] = {}
    asked = {word for word in _SPELT_WORD.findall(query) if not any(is_common(word, code) for code in languages)}
    for word in asked:
        folded = _folded_spelling(word)
        if len(folded) >= SHORTEST_MISSPELT:
            near = [one for one in known if one[0] == folded[0] and abs(len(one) - len(folded)) <= LONGER_BY]
            for spelling in get_close_matches(folded, near, 1, SPELT_ALIKE):
                respelling[word] = spelling
    if not respelling or 2 * len(respelling) < len(asked):
        return None
    return _SPELT_WORD.sub(lambda match: respelling.get(match[0], match[0]), query)


def _folded_spelling(text: str) -> str:
    return fold(normalized("NFKC", text).casefold())
