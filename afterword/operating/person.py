"""Decides which conversations, records and dead letters are a person's."""

import hashlib
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple

import orjson

from afterword.schemas.base import user_digest
from afterword.schemas.dead_letters import ARCHIVE, INGEST, WEBHOOKS, DeadLetter, users_in
from afterword.schemas.foreign import id_of
from afterword.schemas.messages import MESSAGE_EDITED, Move, givers, owner
from afterword.schemas.records import CE_TYPE, InvalidRecord, RecordHeaders, json_object, loads, read_event
from afterword.streams.ingest.sources import KEYS, Expression, Source, context, items_of
from afterword.streams.segmenter.processor import STAGE as SEGMENTER
from afterword.streams.stores.episodes import DeletedEpisode, EpisodeQueries, StoredEpisode, all_episodes
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.stores.opening import Stores

PAGE = 20
"""Number of conversations looked up at once. Other work waits for MongoDB meanwhile."""
OF_OTHERS = ("tenant_mismatch", "user_mismatch")
"""Error types of records in a conversation that another tenant or user wrote into it."""
FRAME_BYTES = 5
"""A zero byte and a schema's id, which precede a value that was written with a schema registry."""


class Person(NamedTuple):
    """The user to erase, matched exactly, in one tenant."""

    user_id: str
    tenant_id: str | None
    """None for messages without a tenant."""

    def digest(self, salt: str) -> str:
        """Return a salted SHA-256 of tenant and user, in hex; whoever knows both can check whose receipt it is."""
        return hashlib.sha256(orjson.dumps([salt, self.user_id, self.tenant_id])).hexdigest()

    def took_part_in(self, episode: StoredEpisode) -> bool:
        return episode.summary.tenant_id == self.tenant_id and self.user_id in episode.participants


def person_of(user_id: str, tenant_id: str | None) -> Person:
    """Build a person.

    Raises: TypeError; ValueError for an empty user id, which producers send when they know no user.
    """
    if not isinstance(user_id, str) or not isinstance(tenant_id, str | None):
        raise TypeError("user_id must be str, tenant_id str or None")
    if not user_id:
        raise ValueError("user_id is empty, so it names nobody")
    return Person(user_id, tenant_id)


def holds(value: bytes | None, person: Person) -> bool:
    """Return whether a record's value is the person's: a message, an episode or a summary, or a list of them.

    A structured CloudEvent has its event in `data`. A truncated value, which is not JSON, is theirs if one of its
    `user_id` fields has their id. It may not name a tenant, but neither can ever be processed, so discarding it loses
    nothing.
    """
    data = value or b""
    try:
        left = [loads(data)]
    except orjson.JSONDecodeError:
        return person.user_id in users_in(data)
    while left:
        event = left.pop()
        if isinstance(event, list):
            left += event
        elif isinstance(event, dict):
            left.append(event.get("data"))
            lists = [each for name in ("messages", "overlap") if isinstance(each := event.get(name), list)]
            users = [each.get("user_id") for each in (event, *chain(*lists)) if isinstance(each, dict)]
            if event.get("tenant_id") == person.tenant_id and person.user_id in users:
                return True
    return False


def _names(person: Person, text: str) -> bool:
    """Return whether the person's id is a word of the text."""
    return bool(re.search(rf"(?<!\w){re.escape(person.user_id)}(?!\w)", text))


def edited_id(value: bytes | None, headers: RecordHeaders, person: Person) -> str | None:
    """Return the id of the message that a record edits in the person's tenant, or "" if it is unreadable.

    It is None for any other record. An edit contains words of the message's author, but names no user.
    """
    try:
        data, event_type = read_event(value, headers)
        event = json_object(data)
    except InvalidRecord:  # for example, the value was truncated
        edited = MESSAGE_EDITED.encode()
        return "" if (CE_TYPE, edited) in headers or edited in (value or b"") else None
    if event_type != MESSAGE_EDITED or event.get("tenant_id") != person.tenant_id:
        return None
    message_id = event.get("id")
    return message_id if isinstance(message_id, str) else ""


def is_of_source(letter: DeadLetter, sources: Sequence[Source], person: Person) -> bool:
    """Return whether a record that ingest rejected visibly holds data of the person.

    A JSON record is theirs if the source's mapping finds their id as its user. If the mapping finds no user, the record
    is theirs if their id is a word in it. Other records, such as Avro, are theirs if their bytes contain the id.
    """
    data, origin = letter.value or b"null", letter.origin
    source = next((each for each in sources if origin and each.takes(origin.topic)), None)
    try:
        value = loads(data[FRAME_BYTES:] if data.startswith(b"\0") else data)
        record = replace(letter, **origin._asdict()) if origin else letter
        about = context(record, value, source.key_format if source else "text")
        text = orjson.dumps([about["key"], value, about["headers"]], lambda _: None).decode()
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        parts = b"\n".join([letter.key or b"", data, *(said for _, said in letter.headers)])
        return person.user_id.encode() in parts
    items = [about]
    is_key_read = source is None or source.key_format in KEYS
    if source:
        with suppress(InvalidRecord):
            items = items_of(source, about)
        items = [each for each in items if _found(source.map.tenant_id, each) == person.tenant_id]
        users = [_found(source.map.user_id, each) for each in items]
        if None not in users:
            return person.user_id in users
    if not is_key_read or isinstance(about["key"], InvalidRecord):
        return _names(person, text) or person.user_id.encode() in (letter.key or b"")
    return _names(person, text)


def _found(expression: Expression | None, about: Mapping[str, Any]) -> str | None:
    with suppress(InvalidRecord):
        return None if expression is None else id_of(expression.find(about))
    return None


@dataclass(frozen=True)
class TheirDeadLetters:
    """Selects dead letters of conversations that were the person's alone, and others that contain their data.

    In a shared conversation every summary is selected, because it may contain their words and a higher revision
    follows. A truncated record of a shared conversation is selected unless its remains show that it is not theirs.
    """

    person: Person
    alone: frozenset[str]
    shared: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    """Addresses of edits in shared conversations that change somebody else's message."""
    moves: Mapping[str, Sequence[Move]] = field(default_factory=dict)
    """Assignments of messages, by conversation."""
    sources: Sequence[Source] = ()

    def edited(self, dead_letter: DeadLetter) -> str | None:
        """Return the id of the message that a record of a shared conversation edits, as `edited_id` does."""
        is_shared = dead_letter.conversation_id in self.shared
        return edited_id(dead_letter.value, dead_letter.headers, self.person) if is_shared else None

    def _was_assigned(self, dead_letter: DeadLetter) -> bool:
        """Return whether a record under another user's id is the person's, since it was assigned to them."""
        if not (moves := self.moves.get(dead_letter.conversation_id or "")):
            return False
        users = {user_digest(user) for user in {*dead_letter.users, *users_in(dead_letter.value or b"")}}
        person = user_digest(self.person.user_id)
        if dead_letter.origin and dead_letter.stage in (SEGMENTER, ARCHIVE):
            return person in {owner(moves, user, dead_letter.origin.offset) for user in users - {person}}
        return bool(users & givers(moves, person))  # an episode may be of before and after

    def __call__(self, dead_letter: DeadLetter) -> bool:
        if dead_letter.stage == INGEST:
            return is_of_source(dead_letter, self.sources, self.person)
        is_of_theirs = dead_letter.conversation_id in self.alone and dead_letter.error_type not in OF_OTHERS
        is_shared = dead_letter.conversation_id in self.shared
        may_have_their_words = dead_letter.stage == WEBHOOKS or (dead_letter.truncated and not dead_letter.users)
        return (
            is_of_theirs
            or (is_shared and may_have_their_words)
            or (dead_letter.address not in self.others and self.edited(dead_letter) is not None)
            or self.person.user_id in dead_letter.users
            or self._was_assigned(dead_letter)
            or holds(dead_letter.value, self.person)
        )


async def conversations_of(episodes: EpisodeQueries, messages: MessageArchive, person: Person) -> AsyncIterator[str]:
    """Yield the conversations in which the person may have taken part, by id. Raises: StoreUnavailable."""
    page = [""]
    while page:
        wanted = person.user_id, person.tenant_id, page[-1] or None, PAGE
        names = {*await messages.conversations_of(*wanted), *await episodes.conversations_of(*wanted)}
        page = sorted(names, key=str.encode)[:PAGE]
        for conversation in page:
            yield conversation


async def deleted_but_indexed(stores: Stores, conversation_id: str) -> int:
    """Count a conversation's deleted episodes that are still in the index. Raises: StoreUnavailable."""
    every = all_episodes(stores.episodes, conversation_id)
    deleted = [episode.event.episode_id async for episode in every if isinstance(episode, DeletedEpisode)]
    return len(await stores.index.revisions(deleted)) if deleted else 0
