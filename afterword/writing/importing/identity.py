"""Finds the user and the conversation that a record names: an id, nothing, or a reason to refuse the record.

`--user` applies to records that name nobody. A record that names somebody in an unreadable way is refused: attributing
it to the user of the command line would put it into the wrong person's memory.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from afterword.writing.importing.outcomes import Refused

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
USER_IDS = (("user", "id"), ("userid",), ("user",))
CONVERSATION_IDS: tuple[tuple[str, ...], ...] = (
    ("conversation", "id"),
    ("conversationid",),
    ("thread", "id"),
    ("threadid",),
    ("session", "id"),
    ("sessionid",),
    ("chat", "id"),
    ("chatid",),
)
"""Names of the fields that are read, split into words, in order of preference."""
OWN_IDS = (("id",), ("uuid",))
"""Names of an object's own id: the conversation's in a record of a conversation, the message's in a message."""

_PEOPLE = """
account actor author by client contact creator customer email employee guest human identity login member owner
participant patient person principal profile sender speaker sub subject subscriber uid visitor
"""
PEOPLE = frozenset(_PEOPLE.split())
CONVERSATIONS = frozenset(["chat", "conversation", "dialog", "dialogue", "session", "thread"])
ID_WORDS = frozenset(
    ["code", "guid", "hash", "id", "identifier", "key", "name", "no", "number", "ref", "reference", "uuid"]
)
NAME_CHARACTERS = 80
"""Longer names are cut, also in errors."""


def user_of(record: Mapping[str, Any]) -> str | None:
    """Return the id of the user named by a record or a message; None if it names nobody. Raises: Refused."""
    found = _named(record, USER_IDS, "user")
    if found is None:
        _check_hidden(record, _is_person, "user")
    return found


def conversation_of(record: Mapping[str, Any], is_message: bool = False) -> str | None:
    """Return the id of the conversation named by a record or a message; None if it names none. Raises: Refused."""
    found = _named(record, CONVERSATION_IDS if is_message else (*CONVERSATION_IDS, *OWN_IDS), "conversation")
    if found is None:
        _check_hidden(record, _is_conversation, "conversation")
    return found


class OneOwner:
    """Checks that all records belong to the same person, if `--user` says who that is."""

    def __init__(self) -> None:
        self._first: dict[str, Any] = {}

    def check(self, record: Any) -> None:
        """Refuse a record whose owner, in any field, differs from that of the first record with one."""
        fields = record.items() if isinstance(record, dict) else ()
        owner = {name: value for name, value in fields if _is_person(words_of(name)) and not _is_empty(value)}
        self._first = self._first or owner
        if owner and owner != self._first:
            raise Refused("it belongs to another person than the conversations before it, but --user names only one")


def identifier(value: object) -> str | None:
    """Return a non-blank string or a whole number as an id, and None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value.strip() else None


def _named(record: Mapping[str, Any], spellings: Sequence[tuple[str, ...]], what: str) -> str | None:
    by_words: dict[tuple[str, ...], list[str]] = {}
    for name, value in record.items():
        if not _is_empty(value):
            by_words.setdefault(words_of(name), []).append(name)
    for spelling in spellings:
        names = by_words.get(spelling, [])
        ids = {identifier(record[name]) for name in names}
        if None in ids:
            raise Refused(f"its {what} cannot be read: {names[0]} is neither a text nor a whole number")
        if len(ids) > 1:
            raise Refused(f"it names more than one {what}: {', '.join(sorted(names))}")
        if ids:
            return ids.pop()
    return None


def _check_hidden(record: Mapping[str, Any], is_such: Callable[[tuple[str, ...]], bool], what: str) -> None:
    """Refuse a record in which another field, at any depth, seems to name its user or conversation."""
    for path, value in _fields(record):
        if is_such(words_of(path[-1])) and not _is_empty(value):
            name = ".".join(path)[:NAME_CHARACTERS]
            raise Refused(f"it names its {what} in {name}, which is not read; copy the id to {what}_id")


def _fields(record: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the fields of a record and of its nested objects, except its messages, each with its path."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), record)]
    while waiting:
        path, value = waiting.pop()
        for name, inner in value.items():
            if name != "messages":
                yield (*path, name), inner
                if isinstance(inner, dict):
                    waiting.append(((*path, name), inner))


def _is_person(words: tuple[str, ...]) -> bool:
    if any("user" in word for word in words):
        return True
    return bool(PEOPLE.intersection(words)) and (words[-1] in PEOPLE or words[-1] in ID_WORDS)


def _is_conversation(words: tuple[str, ...]) -> bool:
    if not CONVERSATIONS.intersection(words):
        return any(word.removesuffix("id") in CONVERSATIONS for word in words)
    return len(words) == 1 or words[-1] in ID_WORDS


def words_of(name: str) -> tuple[str, ...]:
    """Split `userId`, `user_id`, `USER-ID` and so on."""
    return _words(name[:NAME_CHARACTERS])


@lru_cache(1024)
def _words(name: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in WORD.findall(name))


def _is_empty(value: object) -> bool:
    return value is None or value in ("", [], {})
