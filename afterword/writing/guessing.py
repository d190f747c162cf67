"""Guesses how the records of a foreign topic become messages, from names, types, and how often values differ."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from afterword.streams.ingest.mapping import moment_of, role_name
from afterword.streams.ingest.sources import Unit
from afterword.streams.text.content import ROLES, ContentUnreadable, flatten, name_words

Record = Mapping[str, Any]
"""A record as expressions see it; see `afterword.streams.ingest.mapping.context`."""

BARE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
"""A name that JMESPath needs no quotes for."""
FLAG = ("is", "was", "sent", "from", "by")
"""Words that may stand before a role in the name of a field that is true or false."""
MAX_DEPTH = 8
FEW = 8
"""Maximum number of distinct values of a role or a kind of record."""
NAMED = 3
"""What `Column.named` returns if the path's last part has a word of the group."""
USUALLY = 0.5
"""A field is only mapped if at least this share of the messages has it."""
NEARLY_ALL = 0.8
"""Minimum share of distinct values among ids. Edits repeat some."""
SOMETIMES = 0.1
"""Minimum share of records that are messages."""

MESSAGES = ("message", "msg", "event")
CONVERSATIONS = ("conversation", "thread", "session", "chat", "dialog", "dialogue", "ticket", "case", "room", "channel")
USERS = ("user", "customer", "client", "member", "contact", "visitor", "account", "person", "owner", "uid")
TENANTS = ("tenant", "organization", "organisation", "org", "workspace", "company", "brand")
IDS = ("id", "uuid", "guid", "sid", "key")
TEXTS = ("content", "text", "body", "parts", "message", "msg", "utterance")
AUTHORS = ("role", "sender", "author", "speaker", "from", "direction", "type", "actor")
TIMES = ("sent", "created", "timestamp", "ts", "time", "date", "at")
KINDS = ("kind", "type", "event", "action")
WORDS_OF_ROLES = {
    **ROLES,
    **dict.fromkeys(("customer", "client", "visitor", "contact", "end_user", "inbound", "in", "incoming"), "user"),
    **dict.fromkeys(("bot", "agent", "operator", "llm", "gpt", "outbound", "out", "outgoing"), "assistant"),
    **dict.fromkeys(("hook", "webhook", "api"), "tool"),
}


@dataclass(frozen=True)
class Guess:
    """A mapping in TOML's structure, and what could not be guessed."""

    fields: Mapping[str, Any]
    skip: str | None = None
    missing: Sequence[str] = ()
    """Required fields that were not found. Their expressions are placeholders."""


@dataclass
class Column:
    """The values at one path, by the number of the record that has them."""

    path: str
    words: Sequence[str]
    values: dict[int, Any] = field(default_factory=dict)

    @property
    def distinct(self) -> int:
        return len(set(map(repr, self.values.values())))

    @property
    def are_ids(self) -> bool:
        return all(isinstance(one, str | int) and not isinstance(one, bool) for one in self.values.values())

    def named(self, *groups: Sequence[str]) -> int:
        """Return how many groups of words its path matches. A match in the path's last part adds two."""
        last = name_words(self.path.rpartition(".")[2])
        return sum(
            2 * any(word in last for word in group) + any(word in self.words for word in group) for group in groups
        )


def guess(records: Sequence[Record]) -> Guess:
    """Guess the mapping. Without records, everything is missing."""
    everything = columns_of(records)
    content = _best([one for one in everything.values() if len(one.values) >= SOMETIMES * len(records)], _as_content)
    skip = _skip(list(everything.values()), content, len(records)) if content else None
    messages = [record for at, record in enumerate(records) if content is None or at in content.values]
    others = [one for one in columns_of(messages).values() if len(one.values) >= USUALLY * len(messages)]
    taken = {content.path if content else ""}

    def take(score: Callable[[Column], float]) -> Column | None:
        best = _best([one for one in others if one.path not in taken], score)
        taken.add(best.path if best else "")
        return best

    role = take(_as_role)
    identifier = take(lambda one: _as_id(one, len(messages)))
    conversation = take(_as_conversation)
    user = take(lambda one: _as_party(one, USERS, conversation))
    if user is None and conversation is not None:  # many applications partition by user
        user = take(lambda one: one.path == "key" and one.distinct > 1 and _is_one_of_each(one, conversation))
    user = user or take(_as_writer)
    tenant = take(lambda one: _as_party(one, TENANTS, conversation))
    sent_at = take(lambda one: one.named(TIMES) if len(one.values) == len(messages) and _unit_of(one) else 0)
    unit = _unit_of(sent_at) if sent_at else None
    fields: dict[str, Any] = {
        "id": identifier.path if identifier else "join(':', [topic, to_string(partition), to_string(offset)])",
        "conversation_id": conversation.path if conversation else "key",
        "user_id": user.path if user else conversation.path if conversation else "key",
        **({"tenant_id": tenant.path} if tenant else {}),
        "role": _role_of(role) if role else "'user'",
        "content": content.path if content else "value.text",
        **({"sent_at": sent_at.path if unit == "iso" else {"path": sent_at.path, "unit": unit}} if sent_at else {}),
    }
    found = {"conversation_id": conversation, "user_id": user, "role": role, "content": content}
    return Guess(fields, skip, [name for name, column in found.items() if column is None])


def columns_of(records: Sequence[Record]) -> dict[str, Column]:
    """Return the values of all records by path. A list is one value."""
    found: dict[str, Column] = {}
    for number, record in enumerate(records):
        waiting: list[tuple[str, tuple[str, ...], Any, int]] = [
            (part, (), record[part], 0) for part in ("value", "headers", "key") if record[part] is not None
        ]
        while waiting:
            path, words, value, depth = waiting.pop()
            if isinstance(value, str) and value.startswith("{"):
                with suppress(orjson.JSONDecodeError):
                    path, value = f"from_json({path})", orjson.loads(value)
            if not isinstance(value, dict):
                found.setdefault(path, Column(path, words)).values[number] = value
            elif depth < MAX_DEPTH:
                waiting += [
                    (
                        f"{path}.{name if BARE.fullmatch(name) else json.dumps(name)}",
                        (*words, *name_words(name)),
                        inner,
                        depth + 1,
                    )
                    for name, inner in value.items()
                    if inner is not None
                ]
    return found


def _best(columns: Sequence[Column], score: Callable[[Column], float]) -> Column | None:
    """Return the column with the highest score above 0, or of equal ones that with the shortest path."""
    scored = [(score(one), -len(one.path), one.path, one) for one in columns]
    best = max(scored, default=None)
    return best[3] if best is not None and best[0] > 0 else None


def _as_content(column: Column) -> float:
    texts = [_text_of(value) for value in column.values.values()]
    spoken = sum(" " in text.strip() or not text.isascii() for text in texts) / len(texts)
    if not spoken and (column.named(TEXTS) < NAMED or not all(texts)):
        return 0
    return spoken + column.named(TEXTS) + min(1.0, sum(map(len, texts)) / len(texts) / 200)


def _text_of(value: Any) -> str:
    """Return the text of a content as ingest would find it, or ""."""
    if isinstance(value, str):
        return value
    if not (isinstance(value, list) and value and isinstance(value[0], dict | str)):
        return ""
    try:
        return " ".join(piece.text for piece in flatten(value))
    except ContentUnreadable:
        return ""


def _as_role(column: Column) -> float:
    if not 0 < column.distinct <= FEW:
        return 0
    roles = _known_roles(column)
    known = sum(role_name(one) in roles for one in column.values.values()) / len(column.values)
    return known and 2 * known + column.named(AUTHORS)


def _known_roles(column: Column) -> dict[str, str]:
    """Return the roles of the values that have one. In a field like `is_bot`, they follow from its name."""
    words = [word for word in name_words(column.path.rpartition(".")[2]) if word not in FLAG]
    said = WORDS_OF_ROLES.get("_".join(words))
    if said is not None and all(isinstance(one, bool) for one in column.values.values()):
        return {"true": said, "false": "assistant" if said == "user" else "user"}
    names = {role_name(one) for one in column.values.values()}
    return {one: WORDS_OF_ROLES[one.lower()] for one in names if one.lower() in WORDS_OF_ROLES}


def _role_of(column: Column) -> Any:
    """Return the path of the role, with a translation of values that are not standard names."""
    known = _known_roles(column)
    values = sorted({*known, *(role_name(one) for one in column.values.values())})
    roles = {one: known.get(one, "assistant") for one in values if one.lower() not in ROLES}
    return {"path": column.path, "values": roles} if roles else column.path


def _as_id(column: Column, records: int) -> float:
    differs = column.are_ids and len(column.values) == records and column.distinct >= NEARLY_ALL * records
    return (
        (column.distinct / records + column.named(IDS) + column.named(MESSAGES)) if differs and column.named(IDS) else 0
    )


def _as_conversation(column: Column) -> float:
    if not column.are_ids or column.path == "key":
        return 0
    named = column.named(CONVERSATIONS)
    return named and named + column.named(IDS) + (column.distinct < len(column.values))


def _as_party(column: Column, words: Sequence[str], conversation: Column | None) -> float:
    """Score a column as the user or the tenant; each conversation has exactly one of either."""
    named = column.named(words)
    return named + column.named(IDS) if named and _is_one_of_each(column, conversation) else 0


def _as_writer(column: Column) -> float:
    """Score a column as the author in conversations of several users: its name must consist of words for a user."""
    last = set(name_words(column.path.rpartition(".")[2]))
    is_named = bool(last & {*USERS}) and last <= {*USERS, *IDS}
    return 1 + column.named(IDS) if is_named and column.are_ids else 0


def _is_one_of_each(column: Column, conversation: Column | None) -> bool:
    if not column.are_ids or conversation is None:
        return column.are_ids
    pairs = {(repr(conversation.values.get(at)), repr(one)) for at, one in column.values.items()}
    return len(pairs) <= conversation.distinct


def _unit_of(column: Column) -> Unit | None:
    """Return the unit in which all values are plausible times, or None."""
    units: tuple[Unit, ...] = ("iso", "ms", "s", "us", "ns")
    return next((unit for unit in units if all(moment_of(one, unit) for one in column.values.values())), None)


def _skip(columns: Sequence[Column], content: Column, records: int) -> str | None:
    """Return an expression that skips kinds of records that never have content; None if all have content."""
    if len(content.values) == records:
        return None
    kinds = [one for one in columns if one.named(KINDS) and 1 < one.distinct <= FEW and len(one.values) == records]
    kinds = [one for one in kinds if all(isinstance(value, str) for value in one.values.values())]
    for column in sorted(kinds, key=lambda one: -one.named(KINDS)):
        with_content = {value for at, value in column.values.items() if at in content.values and "'" not in value}
        without_content = {value for at, value in column.values.items() if at not in content.values}
        if with_content and not with_content & without_content:
            return " && ".join(f"{column.path} != '{value}'" for value in sorted(with_content))
    return None
