"""A first mapping of a topic, guessed from the names of fields, the types of their values, and how these differ.

What would mix people is never guessed: a field whose values are all equal is nobody's id, a role needs two values, and
whatever is not found gets an expression that finds nothing, so that no record passes until the operator has written it.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import orjson

from afterword.schemas import InvalidRecord
from afterword.streams.ingest.formats import MAGIC, PREFIX_BYTES
from afterword.streams.ingest.sources import (
    CONTROL,
    UNAVAILABLE,
    Expression,
    KeyFormat,
    Unit,
    moment_of,
    record_row,
    role_name,
)
from afterword.streams.text.content import ROLES, ContentUnreadable, flatten, name_words

Record = Mapping[str, Any]
"""A record as expressions see it; see `context`."""

NOTHING = "`null`"
"""The expression of a required field that was not found."""
PLACE = "join(':', [topic, to_string(partition), to_string(offset)])"
BARE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
"""A name that JMESPath needs no quotes for."""
MAX_DEPTH = 10
FEW = 8
"""Maximum number of distinct values of a role or a kind of record."""
NAMED = 3
"""What `Column.named` returns if the path's last part has a word of the group."""
USUALLY = 0.5
"""A field is only mapped if at least this share of the messages has it."""
NEARLY_ALL = 0.8
SOMETIMES = 0.1
"""Minimum share of records that are messages."""

MESSAGES = ("message", "msg", "event", "part", "comment", "reply")
CONVERSATIONS = ("conversation", "conv", "thread", "session", "chat", "dialog", "dialogue", "ticket", "case")
PLACES = ("room", "channel", "call")
"""Where people talk. They are conversations only if nothing else is, and their values look like ids."""
USERS = (
    *("user", "customer", "member", "contact", "visitor", "person", "uid", "enduser", "guest", "lead"),
    *("requester", "caller", "consumer", "buyer", "subscriber", "patient", "cust", "usr"),
)
ACCOUNTS = ("account", "owner", "client")
"""Users if nearly every conversation has another one, which a vendor's account or an app's client has not."""
WRITERS = ("sender", "author", "from")
STAFF = ("agent", "assignee", "assigned", "operator", "admin", "staff", "support", "bot", "assistant", "employee")
TENANTS = ("tenant", "organization", "organisation", "org", "workspace", "company", "brand")
IDS = ("id", "uuid", "guid", "sid", "key", "oid")
QUALIFIERS = ("external", "global", "unique", "own", "public", "source")
TEXTS = ("content", "text", "body", "parts", "message", "msg", "utterance")
OLD = ("before", "old", "previous", "prev", "prior", "former", "last")
"""What a value was; the one that it is now stands elsewhere."""
QUOTED = (
    *("quoted", "quote", "parent", "forwarded", "replied"),
    *("translated", "translation", "summary", "suggested", "suggestion", "draft", "preview"),
)
"""Words of other messages, which a message shows above its own, or of a machine about it."""
NOBODY = ("anonymous", "anon", "guest", "unknown", "undefined", "none", "null", "n/a", "0", "-1")
"""What stands for a user who is not known."""
AUTHORS = ("role", "sender", "author", "speaker", "from", "direction", "type", "actor")
TIMES = ("sent", "created", "timestamp", "ts", "time", "date", "at", "received")
LATER = ("updated", "modified", "edited", "deleted", "read", "seen", "delivered", "expires", "last", "first", "closed")
"""Words in the name of a time that is not the message's."""
KINDS = ("kind", "type", "event", "action", "subtype", "operation", "op", "status")
PRIVATE = ("private", "internal", "note", "whisper", "hidden")
NOTES = ("note", "whisper")
STAFF_ONLY = ("private", "internal", "agent", "staff", "team")
"""Words of a note's visibility; elsewhere, a `private` chat is one with a person."""
EDITED = ("updated", "update", "edited", "edit", "changed", "modified")
DELETED = ("deleted", "delete", "removed", "retracted", "unsent", "recalled", "redacted")
FLAG = ("is", "was", "has", "sent", "from", "by")
"""Words that may stand before another one in the name of a field that is true or false."""
WORDS_OF_ROLES = {
    **ROLES,
    **dict.fromkeys(("customer", "client", "visitor", "contact", "end_user", "lead", "guest", "caller"), "user"),
    **dict.fromkeys(("inbound", "in", "incoming", "enduser", "received"), "user"),
    **dict.fromkeys(("bot", "agent", "operator", "llm", "gpt", "outbound", "out", "outgoing"), "assistant"),
    **dict.fromkeys(("admin", "staff", "support", "business", "chatbot"), "assistant"),
    **dict.fromkeys(("hook", "webhook", "api"), "tool"),
}
UNION = re.compile(r"string|int|long|float|double|boolean|bytes|array|map|\$\w+|[A-Za-z_]\w*(\.\w+)+", re.ASCII)
"""The only name in an object that stands for a value of a union (Avro as JSON) or of a type (MongoDB)."""
STANDS_FOR = re.compile(r"__[a-z_]+", re.ASCII)
"""What a placeholder of Debezium looks like, whose text can be configured."""


class Envelope(NamedTuple):
    """How change data capture writes a change."""

    row: str
    """Field with the row; "" if the row is the value itself."""
    deleted: str
    """Field with the row of a deletion."""
    kind: str
    kinds: Sequence[str]
    edits: str
    deletions: str
    names: frozenset[str]
    """Fields that every change has."""


ENVELOPES = (
    Envelope(
        "after", "before", "op", ("c", "d", "r", "u"), "op == 'u'", "op == 'd'", frozenset({"op", "before", "after"})
    ),
    Envelope(
        "data",
        "data",
        "type",
        ("bootstrap-insert", "delete", "insert", "update"),
        "type == 'update'",
        "type == 'delete'",
        frozenset({"type", "data", "table", "database"}),
    ),
    Envelope("", "", "", (), "__op == 'u'", "__deleted == 'true'", frozenset({"__deleted", "__op"})),
    Envelope("", "", "", (), "`true`", "__deleted == 'true'", frozenset({"__deleted"})),
    Envelope("", "", "", (), "__op == 'u'", "__op == 'd'", frozenset({"__op"})),
)
TABLE = Envelope("", "", "", (), "`true`", "", frozenset())
"""Rows without a word about what happened to them."""

FULL = "PostgreSQL tells the whole deleted row only after: ALTER TABLE … REPLICA IDENTITY FULL"
NO_DELETIONS = f"deletions do not say which conversation's message they delete, and become dead letters. {FULL}"
NULLS = (
    "deletions are the text null and become dead letters; let Debezium send the row: "
    "delete.tombstone.handling.mode=rewrite, and ALTER TABLE … REPLICA IDENTITY FULL"
)


@dataclass(frozen=True)
class Guess:
    """A guessed mapping, structured as in the TOML file, and the fields that could not be guessed."""

    fields: Mapping[str, Any]
    skip: str | None = None
    missing: Sequence[str] = ()
    """Fields that were not found. The required ones have expressions that find nothing."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """What the operator should know about a field, by its name; "" concerns the whole topic."""
    edits: Mapping[str, Any] | None = None
    deletions: str | None = None
    foreach: str | None = None
    key_format: KeyFormat = "text"
    unavailable: str = UNAVAILABLE


@dataclass
class Column:
    """The values at one path, by the number of the record that has them."""

    path: str
    parts: tuple[tuple[str, ...], ...]
    """The words of each part of the path below the value."""
    values: dict[int, Any] = field(default_factory=dict)
    kind: str = ""
    """The constant `type` of the object that has it."""

    @property
    def last(self) -> tuple[str, ...]:
        return self.parts[-1] if self.parts else ()

    @property
    def words(self) -> set[str]:
        return {word for part in self.parts for word in part}

    @property
    def noun(self) -> str:
        """What the column is about: in `customer_id` the customer, as in an `id` of the object `customer`."""
        own = [word for word in self.last if word not in (*IDS, *QUALIFIERS)]
        above = self.parts[-2] if len(self.parts) > 1 else ()
        kind = [self.kind] if self.kind and not THINGS & {*above[-1:]} else []
        return [*(own or [*above, *kind] or [""])][-1]

    @property
    def is_id(self) -> bool:
        return any(word in IDS for word in self.last)

    @cached_property
    def distinct(self) -> int:
        return len(set(map(repr, self.values.values())))

    @cached_property
    def are_ids(self) -> bool:
        return bool(self.values) and all(
            isinstance(one, str | int) and not isinstance(one, bool) and one not in ("", UNAVAILABLE)
            for one in self.values.values()
        )

    def named(self, *groups: Sequence[str]) -> int:
        """Return how many groups of words its path matches. A match in the path's last part adds two."""
        last, words = {*self.last, self.noun if self.is_id else ""}, self.words
        return sum(2 * any(word in last for word in group) + any(word in words for word in group) for group in groups)


class Sample:
    """The records that a mapping is guessed from, with their columns."""

    def __init__(self, records: Sequence[Record], root: Sequence[str] = (), rows: Sequence[int] | None = None) -> None:
        """`root` leads to the rows of changes, `rows` are the numbers of the records that have one."""
        self.records = records
        self.rows = range(len(records)) if rows is None else rows
        self.lists: set[str] = set()
        """The paths of lists of messages."""
        self.longer: set[str] = set()
        """The paths of lists that have several objects in some record."""
        self.columns = self._columns(root)

    def _columns(self, root: Sequence[str]) -> dict[str, Column]:
        found: dict[str, Column] = {}
        for number in self.rows:
            record = self.records[number]
            value = record["value"]
            for name in root:
                value = value[name]
            headers = {name: said for name, said in record["headers"].items() if _is_of_application(name)}
            self._walk(found, number, f"{'.'.join(('value', *root))}", value)
            for part, inner in (("item", record.get("item")), ("key", record["key"]), ("headers", headers)):
                self._walk(found, number, part, inner)
        for column in found.values():
            kind = found.get(f"{column.path.rpartition('.')[0]}.type")
            if kind is not None and kind.distinct == 1:
                column.kind = "".join(name_words(str(next(iter(kind.values.values()))))[-1:])
        longer = [f"{path}[0]" for path in self.longer]
        return {path: one for path, one in found.items() if not path.startswith(tuple(longer))}

    def _walk(self, found: dict[str, Column], number: int, path: str, value: Any) -> None:
        """Add the values of one record, by their paths."""
        waiting: list[tuple[str, tuple[tuple[str, ...], ...], Any]] = [(path, (), value)]
        while waiting:
            path, parts, value = waiting.pop()
            if isinstance(value, str) and value.startswith("{"):
                with suppress(orjson.JSONDecodeError):
                    path, value = f"from_json({path})", orjson.loads(value)
            if isinstance(value, dict) and len(parts) < MAX_DEPTH:
                waiting += [(f"{path}.{_name(name)}", _parts(parts, value, name), value[name]) for name in value]
            elif not isinstance(value, dict | InvalidRecord):
                column = found.setdefault(path, Column(path, parts))
                if value is not None:
                    column.values[number] = value
                waiting += self._only(path, parts, value)

    def _only(self, path: str, parts: tuple[tuple[str, ...], ...], value: Any) -> list[Any]:
        """Return the only object of a list, unless it is one of the parts of a text."""
        if not (isinstance(value, list) and value and all(isinstance(one, dict) for one in value)):
            return []
        if _are_messages(value):
            self.lists.add(path)
        elif any({*one} & {*TEXTS} for one in value):
            return []
        if len(value) > 1:
            self.longer.add(path)
        return [(f"{path}[0]", parts, value[0])] if len(value) == 1 else []

    def of_items(self, path: str) -> "Sample":
        """Return a sample of the items of a list."""
        return Sample(items_in(self.records, _every(path)))


def items_in(records: Sequence[Record], foreach: str) -> list[Record]:
    """Return the items of a list in each record, as expressions see them."""
    expression = Expression(foreach)
    lists = [(record, expression.find(record)) for record in records]
    return [
        {**record, "item": item, "index": index}
        for record, items in lists
        if isinstance(items, list)
        for index, item in enumerate(items)
    ]


def _every(path: str) -> str:
    """Return an expression for all items of a list, in all lists around it."""
    return f"{path.replace('[0]', '[]')}[]" if "[0]" in path else path


def _is_of_application(header: str) -> bool:
    return not header.startswith(("__", "apicurio."))


def _name(name: str) -> str:
    return name if BARE.fullmatch(name) else json.dumps(name)


def _parts(parts: tuple[tuple[str, ...], ...], within: Mapping[str, Any], name: str) -> tuple[tuple[str, ...], ...]:
    if len(within) == 1 and parts and UNION.fullmatch(name):
        return parts
    return (*parts, tuple(_words(name)))


THINGS = frozenset({*MESSAGES, *CONVERSATIONS, *PLACES, *USERS, *ACCOUNTS, *WRITERS, *STAFF, *TENANTS})


def _singular(word: str) -> Sequence[str]:
    """Return one word for a thing and its plural, and two for those that are written as one, such as `threadid`."""
    thing = word.removesuffix("id")
    if thing != word and thing in THINGS:
        return (thing, "id")
    return (word.removesuffix("s") if word.removesuffix("s") in THINGS else word,)


def _are_messages(items: Sequence[Any]) -> bool:
    marks = {"author", "role", "sender", "created", "timestamp", "received", "sent"}
    return any(marks & {*name_words(name)} for item in items if isinstance(item, dict) for name in item)


SLACK_KINDS = ("bot_message", "file_share", "me_message", "message_changed", "message_deleted", "thread_broadcast")
SLACK = Guess(
    {
        "id": "value.event.deleted_ts || value.event.message.ts || value.event.ts",
        "conversation_id": "value.event.channel",
        "user_id": "value.event.message.user || value.event.user",
        "role": "(value.event.message || value.event).bot_id && 'assistant' || 'user'",
        "content": "value.event.message.text || value.event.text",
        "sent_at": {"path": "value.event.message.ts || value.event.ts", "unit": "s"},
    },
    skip="value.event.type != 'message' || "
    f"value.event.subtype && !contains({json.dumps(SLACK_KINDS).replace(chr(34), chr(39))}, value.event.subtype)",
    edits={"when": "value.event.subtype == 'message_changed'", "creates": True},
    deletions="value.event.subtype == 'message_deleted'",
)
"""Slack's Events API, whose messages are told apart by their times, which no name of a field says."""


def _is_of_slack(record: Record) -> bool:
    value = record["value"]
    return isinstance(value, dict) and value.get("type") == "event_callback" and "event_id" in value


def guess(records: Sequence[Record], key_format: KeyFormat = "text") -> Guess:
    """Guess the mapping. Without records, everything is missing."""
    if records and all(map(_is_of_slack, records)):
        return SLACK
    base, envelope = envelope_of(records)
    root = [*base, *([envelope.row] if envelope and envelope.row else [])]
    sample = Sample(records, root, [at for at, record in enumerate(records) if _is_present(record, envelope)])
    content = _content(sample)
    foreach = None
    for path in sorted(sample.lists) if envelope is None else ():
        items = sample.of_items(path)
        inner = _content(items, "item")
        if inner is None:
            continue
        is_within = content is not None and content.path.startswith(f"{path}[0]")
        better = content and _as_content(inner, len(items.rows)) > _as_content(content, len(sample.rows))
        if content is None or is_within or better:
            foreach, sample, content = _every(path), items, inner
    return _Guesser(sample, content, base, envelope, foreach, key_format).guess()


def _is_present(record: Record, envelope: Envelope | None) -> bool:
    """Return whether a record tells what a row is, not that it is no more."""
    value = record["value"]
    if envelope is None:
        return True
    if value is None or record_row(value) is None:
        return False
    outer = record_row(value)
    if outer.get("__deleted") in ("true", True) or outer.get("__op") == "d":
        return False
    if envelope.kind and outer.get(envelope.kind) in (*(envelope.deletions.split("'")[1:2]), "t", "m"):
        return False
    return not envelope.row or bool(outer.get(envelope.row))


def envelope_of(records: Sequence[Record]) -> tuple[list[str], Envelope | None]:
    """Return the names that lead to the changes, and how they are written; None for other records."""
    values = [record["value"] for record in records if record["value"] is not None]
    rows = [row for row in map(record_row, values) if row is not None]
    base = ["payload"] if values and all(one is not record_row(one) for one in values) else []
    if not rows or not all(isinstance(row, dict) for row in rows):
        return base, None
    for envelope in ENVELOPES:
        is_known = not envelope.kinds or any(row.get(envelope.kind) in envelope.kinds for row in rows)
        if is_known and all(envelope.names <= row.keys() for row in rows):
            return base, envelope
    are_rows = all(_is_key_of(record) for record in records if record_row(record["value"]) is not None)
    return base, TABLE if are_rows else None


def _is_key_of(record: Record) -> bool:
    """Return whether the key has fields of the value, as a row's primary key has."""
    key = record["key"]
    if isinstance(key, str) and key.startswith("{"):
        with suppress(orjson.JSONDecodeError):
            key = orjson.loads(key)
    key, row = record_row(key), record_row(record["value"])
    return isinstance(key, dict) and bool(key) and all(name in row and row[name] == key[name] for name in key)


def _best(columns: Sequence[Column], score: Callable[[Column], float]) -> Column | None:
    """Return the column with the highest score above 0, or among equal ones the one with the shortest path."""
    scored = [(score(one), -len(one.path), one.path, one) for one in columns]
    best = max(scored, default=None)
    return best[3] if best is not None and best[0] > 0 else None


def _content(sample: Sample, under: str = "") -> Column | None:
    columns = [one for one in sample.columns.values() if one.path.startswith(under)]
    enough = [one for one in columns if one.values and len(one.values) >= SOMETIMES * len(sample.rows)]
    return _best(enough, lambda column: _as_content(column, len(sample.rows)))


def _as_content(column: Column, records: int) -> float:
    values = [one for one in column.values.values() if one != UNAVAILABLE]
    if any(isinstance(one, list) and one and isinstance(one[0], dict) and _are_messages(one) for one in values):
        return 0
    texts = [_text_of(value) for value in values]
    is_of_other = column.words & {*OLD, *QUOTED} or any({"reply", "to"} <= {*part} for part in column.parts)
    if not any(texts) or is_of_other or (len(texts) > 2 and len(set(texts)) == 1):
        return 0
    spoken = sum(" " in text.strip() or not text.isascii() for text in texts) / len(texts)
    is_name = column.is_id or (len(texts) > 1 and len(set(texts)) == len(texts))
    if not spoken and (is_name or column.named(TEXTS) < NAMED or not all(texts)):
        return 0
    length = min(1.0, sum(map(len, texts)) / len(texts) / 200)
    length -= sum(text.startswith("<") for text in texts) / len(texts)  # the same text may be there without its markup
    return spoken + column.named(TEXTS) + length + len(column.values) / records + 2 * len(set(texts)) / len(texts)


def _text_of(value: Any) -> str:
    """Return the text that ingest would find in a message's content, or ""."""
    if isinstance(value, str):
        return value
    if not (isinstance(value, list) and value and isinstance(value[0], dict | str)):
        return ""
    try:
        return " ".join(piece.text for piece in flatten(value))
    except ContentUnreadable:
        return ""


class _Guesser:
    def __init__(
        self,
        sample: Sample,
        content: Column | None,
        base: Sequence[str],
        envelope: Envelope | None,
        foreach: str | None,
        key_format: KeyFormat,
    ) -> None:
        self.sample = sample
        self.content = content
        self.base = "".join(f".{name}" for name in ("value", *base))[1:]
        self.envelope = envelope
        self.foreach = foreach
        self.key_format = key_format
        lists = [f"{path}[0]" for path in sample.lists]
        within = [path for path in lists if content and content.path.startswith(path)]
        everything = [
            one
            for one in sample.columns.values()
            if not any(one.path.startswith(path) for path in lists if path not in within)
        ]
        self.everything = everything
        self.private = self._private(everything)
        self.messages = [at for at in sample.rows if content is None or at in content.values]
        if self.private:
            hidden = Expression(self.private)
            self.messages = [at for at in self.messages if not hidden.find(sample.records[at])]
        said = set(self.messages)
        self.columns = [
            Column(one.path, one.parts, kept, one.kind)
            for one in everything
            if (kept := {at: value for at, value in one.values.items() if at in said})
            and len(kept) >= USUALLY * len(self.messages)
            and not one.words & {*OLD}
        ]
        self.taken = {content.path if content else ""}
        self.notes: dict[str, str] = {}
        self.former: dict[str, str] = {}
        """The paths of columns that say in deletions what others were."""

    def take(self, score: Callable[[Column], float]) -> Column | None:
        """Return the best column that is not taken yet; among equal ones, one that stands near the text."""
        free = [one for one in self.columns if one.path not in self.taken]
        best = _best(free, lambda one: (found := score(one)) and found + self._nearness(one))
        self.taken.add(best.path if best else "")
        return best

    def _nearness(self, column: Column) -> float:
        if self.content is None or not column.path.startswith(("value", "item")):
            return 0
        mine, theirs = column.path.split(".")[:-1], self.content.path.split(".")[:-1]
        common = next((at for at, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
        return (min(len(mine), len(theirs)) if common is None else common) / max(1, len(theirs))

    def guess(self) -> Guess:
        role, role_value = self._role()
        conversation = self._conversation()
        tenant, user = self._tenant_and_user(conversation)
        if user is None and conversation is not None:
            user = self._of_key(conversation) or self.take(self._as_writer)
        if conversation is None and (conversation := self._by_role(role, user)) and user is None:
            user = conversation if conversation.noun in WRITERS else self.take(self._as_writer)
        if conversation and user and role and _mixes(user, role, tenant, conversation):
            conversation = None
        identifier = self._identifier(conversation, role, tenant)
        sent_at, unit = self._sent_at()
        edits, deletions = self._changes(identifier, conversation, tenant)
        fields: dict[str, Any] = {
            "id": self._also_deleted(identifier) if identifier else self._place(),
            "conversation_id": self._also_deleted(conversation) if conversation else NOTHING,
            "user_id": _known_by(user, conversation) if user else NOTHING,
            **({"tenant_id": self._also_deleted(tenant)} if tenant else {}),
            "role": role_value or NOTHING,
            "content": self.content.path if self.content else NOTHING,
            **({"sent_at": sent_at if unit == "iso" else {"path": sent_at, "unit": unit}} if sent_at else {}),
        }
        columns = {"conversation_id": conversation, "user_id": user, "role": role, "content": self.content}
        missing = [name for name, column in columns.items() if column is None]
        if identifier is None:
            self.notes["id"] = "not found: the record's place, so no message can be edited or repeated"
            missing.append("id")
        if "role" in self.notes and role is not None:
            missing.append("role")
        return Guess(
            fields,
            self._skip(deletions),
            missing,
            {**dict.fromkeys(missing, "not found: please write it"), **self.notes},
            edits,
            deletions,
            self.foreach,
            self.key_format,
            self._unavailable(),
        )

    def _place(self) -> str:
        return PLACE.replace("])", ", to_string(index)])") if self.foreach else PLACE

    def _also_deleted(self, column: Column) -> str:
        """Return an expression that finds an id in deletions, too, whose row stands elsewhere."""
        envelope = self.envelope
        if column.path in self.former:
            return f"{column.path} || {self.former[column.path]}"
        if envelope is None or envelope.row == envelope.deleted or f"{self.base}.{envelope.row}" not in column.path:
            return column.path
        other = column.path.replace(f"{self.base}.{envelope.row}", f"{self.base}.{envelope.deleted}")
        return f"{column.path} || {other}"

    def _role(self) -> tuple[Column | None, Any]:
        """Return the column of the role, and what stands in the file for it."""
        role = self.take(_as_role)
        if role is None:
            flag = next((one for one in self.sample.columns.values() if one.noun == "bot" and one.is_id), None)
            if flag and 0 < sum(at in flag.values for at in self.messages) < len(self.messages):
                return flag, f"{flag.path} && 'assistant' || 'user'"
            return None, None
        known = _known_roles(role)
        counts = Counter(role_name(one) for one in role.values.values())
        if unknown := {name: count for name, count in counts.items() if name not in known}:
            shown = ", ".join(f"{json.dumps(name, ensure_ascii=False)} ({count})" for name, count in unknown.items())
            self.notes["role"] = f"not known, please write or skip: {shown}"
        roles = {name: known[name] for name in sorted(known) if name.lower() not in ROLES}
        return role, {"path": role.path, "values": roles} if roles else role.path

    def _conversation(self) -> Column | None:
        named = self.take(lambda one: _is_somebody(one) and self._as_conversation(one, CONVERSATIONS))
        if named is None and any(one.noun in TENANTS and _is_somebody(one) for one in self.columns):
            named = self.take(lambda one: self._as_conversation(one, CONVERSATIONS))  # several tenants use one id
        return named or self.take(lambda one: _look_like_ids(one) and self._as_conversation(one, PLACES))

    def _as_conversation(self, column: Column, nouns: Sequence[str]) -> float:
        if column.path == "key" or not column.are_ids or column.noun not in nouns:
            return 0
        return 2 + column.is_id + (column.distinct < len(column.values))

    def _tenant_and_user(self, conversation: Column | None) -> tuple[Column | None, Column | None]:
        def tenant_of(one: Column) -> float:
            return one.are_ids and one.noun in TENANTS and 1 + one.is_id + _is_one_of_each(one, conversation)

        strict = self.take(lambda one: tenant_of(one) * _is_one_of_each(one, conversation))
        user = self.take(lambda one: self._as_user(one, conversation))
        if strict or conversation is None:
            return strict, user
        tenants = [one for one in self.columns if tenant_of(one) and one.path not in self.taken]
        for tenant in sorted(tenants, key=self._nearness, reverse=True):
            owned = _joined(tenant, conversation)
            by_both = self.take(lambda one, owned=owned: self._as_user(one, owned))  # type: ignore[misc]
            key = record_row(self.sample.records[self.messages[0]]["key"])
            if by_both or (
                isinstance(key, dict) and tenant.path.rpartition(".")[2] in key
            ):  # the same conversation id in two tenants
                self.notes["conversation_id"] = "tenants share ids; the second one's are dead letters (tenant_mismatch)"
                return tenant, by_both or user
        return None, user

    def _as_user(self, column: Column, conversation: Column | None) -> float:
        """Score a column as the user, of whom each conversation has exactly one."""
        if column.path == "key" or not _is_somebody(column) or column.words & {*STAFF}:
            return 0
        if not _is_one_of_each(column, conversation):
            return 0
        if column.noun in ACCOUNTS:
            return 1 + column.is_id if conversation and column.distinct >= NEARLY_ALL * conversation.distinct else 0
        if column.noun in USERS and not column.words & {*WRITERS}:
            finest = column.distinct / max(1, conversation.distinct if conversation else 1)
            return 2 + column.is_id + (column.noun not in ("user", "usr")) + min(1.0, finest)
        is_writer = column.words & {*WRITERS} and column.noun in (*WRITERS, *USERS) and conversation is not None
        return 1 if is_writer and column.is_id else 0

    def _as_writer(self, column: Column) -> float:
        """Score a column as the author in conversations of several users: its name must consist of words for a user."""
        is_named = column.noun in USERS and {*column.last} <= {*USERS, *IDS}
        return 1 + column.is_id if is_named and _is_somebody(column) and not column.words & {*STAFF} else 0

    def _of_key(self, conversation: Column) -> Column | None:
        """Return the key if it is the user: many applications partition by user."""
        keys = [one for one in self.columns if one.path.split(".")[0] == "key" and one.path not in self.taken]
        named = {at: str(value) for at, value in conversation.values.items()}
        keys = [one for one in keys if {at: str(value) for at, value in one.values.items()} != named]
        return next((one for one in keys if _is_somebody(one) and _is_one_of_each(one, conversation)), None)

    def _by_role(self, role: Column | None, user: Column | None) -> Column | None:
        """Return a column in whose groups several roles talk, as nobody but a conversation's sides do."""
        if role is None:
            return None

        def score(one: Column) -> float:
            if (
                not _is_somebody(one)
                or one.distinct == len(one.values)
                or (one.path not in ("key", "key.payload") and one.noun not in WRITERS)
            ):
                return 0
            if user is not None and one.values == user.values:
                return 0
            talking: dict[str, set[str]] = {}
            for at, value in one.values.items():
                talking.setdefault(repr(value), set()).add(repr(role.values.get(at)))
            return 2 * sum(len(sides) > 1 for sides in talking.values()) > len(talking)

        return self.take(lambda one: score(one) and 1 + (one.path != "key"))

    def _identifier(self, *same: Column | None) -> Column | None:
        """Return a column with an id per message: where it repeats, it is the same message again."""
        texts = len({repr(self.content.values[at]) for at in self.messages}) if self.content and self.messages else 0

        def score(one: Column) -> float:
            if not one.are_ids or len(one.values) < len(self.messages) or not (one.is_id or one.noun in MESSAGES):
                return 0
            if one.noun in (*CONVERSATIONS, *USERS, *TENANTS, *WRITERS, *ACCOUNTS, *PLACES) or 2 * one.distinct < texts:
                return 0
            apart = {tuple(repr(column.values.get(at)) for column in same if column) for at in one.values}
            pairs = {
                (repr(value), *(repr(column.values.get(at)) for column in same[:2] if column))
                for at, value in one.values.items()
            }
            tenants = same[2]
            unique = len({(repr(v), repr(tenants.values.get(at)) if tenants else "") for at, v in one.values.items()})
            if len(pairs) > unique or (one.distinct == 1 and len(apart) > 1):
                return 0
            return one.distinct / len(one.values) + 2 * one.is_id + one.named(MESSAGES) / 2

        return self.take(score)

    def _sent_at(self) -> tuple[str | None, Unit | None]:
        def score(one: Column) -> float:
            if len(one.values) < len(self.messages) or {*one.last} & {*LATER} or not _unit_of(one):
                return 0
            return one.named(TIMES)

        column = self.take(score)
        if column is not None:
            return column.path, _unit_of(column)
        if self.envelope is not None and self.envelope.kind == "op":
            self.notes["sent_at"] = "not found: this is the time of the change, not that of the message"
            return f"{self.base}.ts_ms", "ms"
        return None, None

    def _private(self, columns: Sequence[Column]) -> str:
        """Return an expression for what the user never saw: notes among the people who serve them."""
        found = []
        for column in columns:
            words = [word for word in column.last if word not in FLAG]
            flag = _flag(column)
            if flag and words and {*words} <= {*PRIVATE, "message", "comment", "reply"} and {*words} & {*PRIVATE}:
                found.append(flag)
            elif words == ["public"] and flag:
                found.append(f"{column.path} == {_no(column)}")
            elif column.distinct <= FEW and column.noun in (*KINDS, *AUTHORS, "visibility"):
                hidden = STAFF_ONLY if column.noun == "visibility" else NOTES
                values = {one for one in column.values.values() if isinstance(one, str) and "'" not in one}
                found += [f"{column.path} == '{one}'" for one in sorted(values) if {*_words(one)} & {*hidden}]
        return " || ".join(found)

    def _changes(
        self, identifier: Column | None, conversation: Column | None, tenant: Column | None
    ) -> tuple[dict[str, Any] | None, str | None]:
        """Return the tables of edits, and when records are deletions."""
        deletions = [] if identifier is None else [*self._deletions(identifier, conversation)]
        if self.envelope is not None:
            envelope = self.envelope
            self._warn()
            if envelope.deletions:
                deletions.insert(0, f"{self.base}.{envelope.deletions}")
            when = envelope.edits if envelope is TABLE or "`" in envelope.edits else f"{self.base}.{envelope.edits}"
            edits = {"when": when, "creates": True} if identifier else None
            return edits, " || ".join(deletions) or None
        if identifier is None:
            return None, None
        edits = None
        for column in self._kinds():
            known = {column.values[at] for at in self.messages if at in column.values}
            found = sorted(value for value in known if _says(column, value, EDITED))
            if 0 < len(found) < len(known):
                edits = {"when": _equals(column.path, found), "creates": True}
                break
        if edits is None and self._repeat_differs(identifier, conversation, tenant):
            edits = {"when": "`true`", "creates": True}
        return edits, " || ".join(deletions) or None

    def _kinds(self) -> list[Column]:
        return [
            one
            for one in self.everything
            if one.noun in KINDS
            and 0 < one.distinct <= FEW
            and all(isinstance(value, str) and "'" not in value for value in one.values.values())
        ]

    def _deletions(self, identifier: Column, conversation: Column | None) -> list[str]:
        found = []
        for column in self.everything:
            words = {*column.last} - {*FLAG}
            if column.path.rpartition(".")[2].startswith("__"):
                continue
            if words & {*DELETED} and words <= {*DELETED, "at", "time", "ts", "message", "flag"}:
                is_number = any(isinstance(one, int) and not isinstance(one, bool) for one in column.values.values())
                moment = f"{column.path} > `0`" if is_number else column.path
                found += [one for one in (moment if words & {"at", "time", "ts"} else _flag(column),) if one]
        everything = self.sample.columns
        for column in self._kinds():
            gone = {value for value in column.values.values() if _says(column, value, DELETED)}
            places = [at for at, value in column.values.items() if value in gone]
            wanted = [everything[one.path] for one in (identifier, conversation) if one]
            if gone and all(self._is_in(one, places) for one in wanted):
                found.append(_equals(column.path, sorted(gone)))
            elif gone:
                self.notes[""] = f"deletions name no message and are not mapped: {_equals(column.path, sorted(gone))}"
        return found

    def _is_in(self, column: Column, places: Sequence[int]) -> bool:
        """Return whether deletions have an id, or say what it was in a column of the same name."""
        if all(at in column.values for at in places):
            return True
        mine = column.path.split(".")
        for other in self.sample.columns.values():
            theirs = other.path.split(".")
            apart = [b for a, b in zip(mine, theirs, strict=False) if a != b]
            is_old = len(mine) == len(theirs) and len(apart) == 1 and {*_words(apart[0])} & {*OLD}
            if is_old and all(at in other.values for at in places):
                self.former[column.path] = other.path
                return True
        return False

    def _repeat_differs(self, *ids: Column | None) -> bool:
        """Return whether a message is there twice, with different texts."""
        texts: dict[tuple[str, ...], set[str]] = {}
        for at in self.messages:
            place = tuple(repr(one.values.get(at)) for one in ids if one)
            texts.setdefault(place, set()).add(repr(self.content.values[at]) if self.content else "")
        return any(len(found) > 1 for found in texts.values())

    def _warn(self) -> None:
        """Say what changes do not tell."""
        values = [record["value"] for record in self.sample.records]
        rows = [row for row in map(record_row, values) if isinstance(row, dict)]
        if any(record_row(value) is None for value in values) or self.envelope is TABLE:
            self.notes[""] = NULLS
        elif any(row.get("op") == "u" and row.get("before") is None for row in rows):
            self.notes[""] = NO_DELETIONS
        elif any(_is_of_postgresql(row) for row in rows) and not any(row.get("op") == "u" for row in rows):
            self.notes[""] = f"no update shows yet whether deletions tell their conversation. {FULL}"
        elif "__deleted" in (rows or [{}])[0]:
            self.notes[""] = f"unless the table is MySQL's or has this, deletions tell no conversation. {FULL}"

    def _unavailable(self) -> str:
        """Return the text that stands for values that were not changed."""
        texts = self.content.values.values() if self.content and self.envelope else ()
        return next((one for one in texts if isinstance(one, str) and STANDS_FOR.fullmatch(one)), UNAVAILABLE)

    def _skip(self, deletions: str | None) -> str | None:
        """Return an expression that skips private notes, and kinds of records that never have content."""
        found = [self._other_kinds(deletions), self.private]
        return " || ".join(one for one in found if one) or None

    def _other_kinds(self, deletions: str | None) -> str:
        if self.envelope is not None and self.envelope.kind:
            kinds = ", ".join(f"'{kind}'" for kind in self.envelope.kinds)
            return f"{self.base} && !contains([{kinds}], {self.base}.{self.envelope.kind})"
        content, records = self.content, len(self.sample.rows)
        if content is None or len(content.values) == records or self.envelope is not None:
            return ""
        columns = [one for one in self._kinds() if one.distinct > 1 and len(one.values) == records]
        for column in sorted(columns, key=lambda one: -one.named(KINDS)):
            with_content = {value for at, value in column.values.items() if at in content.values}
            without_content = {value for at, value in column.values.items() if at not in content.values}
            if with_content and not with_content & without_content:
                kept = {value for value in without_content if deletions and f"'{value}'" in deletions}
                return " && ".join(f"{column.path} != '{value}'" for value in sorted(with_content | kept))
        return ""


def _is_of_postgresql(row: Mapping[str, Any]) -> bool:
    source = row.get("source")
    return isinstance(source, dict) and source.get("connector") == "postgresql"


def _is_somebody(column: Column) -> bool:
    """Return whether a column may tell people or conversations apart: a constant is the same for all of them."""
    return column.are_ids and column.distinct > 1


def _known_by(user: Column, conversation: Column | None) -> str:
    """Return an expression for the user, by which those who are not known are not one and the same."""
    nobody = sorted({one for one in user.values.values() if isinstance(one, str) and one.lower() in NOBODY})
    if not nobody or conversation is None:
        return user.path
    names = ", ".join(f"'{name}'" for name in nobody)
    return f"contains([{names}], {user.path}) && {conversation.path} || {user.path}"


def _no(column: Column) -> str:
    """Return the value of a flag that is not set, as an expression."""
    value = next(iter(column.values.values()))
    return "'false'" if isinstance(value, str) else "`false`" if isinstance(value, bool) else "`0`"


def _look_like_ids(column: Column) -> bool:
    return _is_somebody(column) and all(any(map(str.isdigit, str(one))) for one in column.values.values())


def _flag(column: Column) -> str:
    """Return an expression for a column that is true or false; "" for any other one."""
    values = list(column.values.values())
    if not values:
        return ""
    if all(isinstance(one, bool) for one in values):
        return column.path
    if all(isinstance(one, int) and one in (0, 1) for one in values):
        return f"{column.path} == `1`"
    return f"{column.path} == 'true'" if all(one in ("true", "false") for one in values) else ""


def _says(column: Column, value: str, words: Sequence[str]) -> bool:
    """Return whether the kind of a record says this of a message, and not of a conversation or a user."""
    said = _words(value)
    if column.words & {"op", "operation", "change"} and said == [words[0][0]]:  # d, D, -D, u, U, +U
        return True
    others = {*CONVERSATIONS, *USERS, *PLACES} - {"chat"}
    return any(word in words for word in said) and not others & {*said}


def _words(value: str) -> list[str]:
    return [single for word in name_words(value) for single in _singular(word)]


def _equals(path: str, values: Sequence[str]) -> str:
    return " || ".join(f"{path} == '{value}'" for value in values)


def _as_role(column: Column) -> float:
    if not 1 < column.distinct <= FEW or not all(isinstance(one, str | int) for one in column.values.values()):
        return 0
    roles = _known_roles(column)
    known = sum(role_name(one) in roles for one in column.values.values()) / len(column.values)
    sides = {roles[role_name(one)] for one in column.values.values() if role_name(one) in roles}
    return 2 * known + column.named(AUTHORS) if known >= USUALLY and len(sides) > 1 and "user" in sides else 0


def _known_roles(column: Column) -> dict[str, str]:
    """Return the role that each value stands for, if any. In a field like `is_bot`, the name decides."""
    words = [word for word in column.last if word not in FLAG]
    said = WORDS_OF_ROLES.get("_".join(words))
    if said is not None and _flag(column):
        other = "assistant" if said == "user" else "user"
        is_number = any(not isinstance(one, bool | str) for one in column.values.values())
        return dict(zip(("1", "0") if is_number else ("true", "false"), (said, other), strict=True))
    names = {role_name(one) for one in column.values.values()}
    roles = {one: WORDS_OF_ROLES.get(one.lower().replace("-", "_")) for one in names}
    return {name: role for name, role in roles.items() if role is not None}


def _is_one_of_each(column: Column, conversation: Column | None) -> bool:
    if not column.are_ids or conversation is None:
        return column.are_ids
    pairs = {(repr(conversation.values.get(at)), repr(one)) for at, one in column.values.items()}
    return len(pairs) <= conversation.distinct


def _mixes(user: Column, role: Column, *scope: Column | None) -> bool:
    """Return whether several users talk with somebody in one conversation, each on their own: it is not one."""
    talks: dict[tuple[str, ...], dict[str, set[str]]] = {}
    for at, value in user.values.items():
        place = tuple(repr(one.values.get(at)) for one in scope if one)
        talks.setdefault(place, {}).setdefault(repr(value), set()).add(repr(role.values.get(at)))
    return any(sum(len(sides) > 1 for sides in users.values()) > 1 for users in talks.values())


def _joined(one: Column, other: Column) -> Column:
    both = {at: repr((value, other.values.get(at))) for at, value in one.values.items()}
    return Column("", (), both)


def _unit_of(column: Column) -> Unit | None:
    """Return the unit in which all values are plausible times, or None."""
    units: tuple[Unit, ...] = ("iso", "ms", "s", "us", "ns")
    return next((unit for unit in units if all(moment_of(one, unit) for one in column.values.values())), None)


def key_format_of(keys: Sequence[bytes | None], headers: Sequence[str] = ()) -> KeyFormat:
    """Guess how keys are written. `headers` are the names of headers that the records have."""
    given = [key for key in keys if key]
    if any(name in headers for name in ("__key_schema_id", "apicurio.key.contentId", "apicurio.key.globalId")):
        return "avro"
    try:
        texts = [key.decode() for key in given]
    except UnicodeDecodeError:
        texts = []
    if not given or (texts and not any(CONTROL.search(text) for text in texts)):
        is_json = texts and all(text[:1] + text[-1:] in ('""', "{}") and len(text) > 1 for text in texts)
        return "json" if is_json else "text"
    sizes: Mapping[int, KeyFormat] = {4: "int32", 8: "int64", 16: "uuid"}
    [size, *others] = {len(key) for key in given}
    if not others and size in sizes:
        return sizes[size]
    starts = {key[:PREFIX_BYTES] for key in given}
    return "avro" if len(starts) == 1 and all(start[0] == MAGIC and any(start) for start in starts) else "bytes"


def toml_of(topic: str, form: str, found: Guess) -> str:
    """Write a source as TOML."""
    lines = ["[[sources]]", *([f"# {found.notes['']}"] if "" in found.notes else []), f"topics = [{_toml(topic)}]"]
    lines += [f"format = {_toml(form)}"]
    lines += [f"key_format = {_toml(found.key_format)}"] if found.key_format != "text" else []
    lines += [f"foreach = {_toml(found.foreach)}"] if found.foreach else []
    lines += [f"skip = {_toml(found.skip)}"] if found.skip else []
    lines += [f"unavailable = {_toml(found.unavailable)}"] if found.unavailable != UNAVAILABLE else []
    lines += ["[sources.map]"]
    for name, value in found.fields.items():
        lines.append(f"{name} = {_toml(value)}{f'  # {found.notes[name]}' if name in found.notes else ''}")
    if found.edits:
        lines += ["[sources.edits]", *(f"{name} = {_toml(value)}" for name, value in found.edits.items())]
    if found.deletions:
        lines += ["[sources.deletions]", f"when = {_toml(found.deletions)}"]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_key(name)} = {_toml(one)}' for name, one in value.items())} }}"
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return name if name.isascii() and name.isidentifier() else json.dumps(name, ensure_ascii=False)
