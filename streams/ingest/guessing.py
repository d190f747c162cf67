"""A first mapping of a topic, guessed from the names of fields, the types of their values, and how these differ.

What would mix people is never guessed: a field whose values are all equal is nobody's id, a role needs two values, and
whatever is not found gets an expression that finds nothing, so that no record passes until the operator has written it.
The words that names consist of are in `names.toml`, with the shapes of changes.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import product, takewhile
from typing import Any
from unicodedata import normalize

import orjson

from afterword.schemas import InvalidRecord
from afterword.schemas.records import SECONDS, Unit, moment_of
from afterword.streams.ingest.formats import MAGIC, PREFIX_BYTES
from afterword.streams.ingest.sources import (
    KEYS,
    SHAPES,
    UNAVAILABLE,
    Expression,
    KeyFormat,
    Named,
    record_row,
    role_name,
    tells_deleted_row,
)
from afterword_text.content import ROLES, ContentUnreadable, flatten, name_words

NOTHING = "`null`"
"""The expression of a required field that was not found."""
NOT_FOUND = "not found: please write it"
PLACE = ("topic", "to_string(partition)", "to_string(offset)", "to_string(index)")
"""Parts of an id for messages without one; the last is of an item of a list."""
MAX_DEPTH = 10
FEW = 8
"""Maximum number of distinct values of a role or a kind of record."""
NAMED = 3
"""What `Column.named` returns if the path's last part has a word of the group."""
USUALLY = 0.5
"""A field is only mapped if at least this share of the messages has it."""
NEARLY_ALL = 0.8
UNEDITED = 4
"""What a text that may have been corrected or masked since loses against others."""

PATTERNS = {name: re.compile(pattern, re.ASCII) for name, pattern in SHAPES["patterns"].items()}
WORDS: Mapping[str, frozenset[str]] = {group: frozenset(words.split()) for group, words in SHAPES["words"].items()}
ROLE_OF = {**ROLES, **{word: role for role, words in SHAPES["roles"].items() for word in words.split()}}
TALK = ("messages", "events", "conversations", "places")
PEOPLE = ("users", "accounts", "writers", "staff", "tenants")
"""The groups of words for things that names are made of: what is said and where, and those whom it concerns."""


def _any(words: Iterable[str], *groups: str) -> bool:
    return any(word in WORDS[group] for word in words for group in groups)


@dataclass(frozen=True)
class Guess:
    """A guessed mapping, and the fields that could not be guessed."""

    source: Mapping[str, Any]
    """The source as in the TOML file, without what is as usual."""
    missing: Sequence[str] = ()
    """Fields that were not found. The required ones have expressions that find nothing."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """What the operator should know about a field, by its name; "" concerns the whole topic."""


class Column:
    """The values at one path, by the number of the record that has them, and what these and its name say of it."""

    def __init__(self, path: str, parts: Sequence[Sequence[str]], values: Mapping[int, Any]):
        """`parts` are the words of each part of the path below the value."""
        self.path, self.parts, self.values = path, parts, values
        self.last = last = parts[-1] if parts else ()
        self.flagged = [word for word in last if not _any([word], "flags")]
        """The words of its name without those that only say that it is a flag."""
        self.is_id = _any(last, "ids")
        own = [word for word in last if not _any([word], "ids", "qualifiers", "addresses")]
        self.noun = (own or [*(parts[-2] if len(parts) > 1 else ())] or [""])[-1]
        """What the column is about: in `customer_id` the customer, as in an `id` of the object `customer`."""
        self.about = {group: _any([self.noun], group) for group in WORDS}
        self.ends = {group: _any(last, group) for group in WORDS}
        """Whether a word of the path's last part is of a group."""
        self.has = {group: any(_any(part, group) for part in parts) for group in WORDS}
        """Whether any word of its path is."""
        given, kinds = list(values.values()), {type(value) for value in values.values()}
        self.distinct = len(set(map(repr, given)))
        self.repeats = self.distinct < len(given)
        self.are_numbers = all(str(value).isdigit() for value in given)
        self.have_digits = all(any(map(str.isdigit, str(value))) for value in given)
        is_number_of = path.endswith("s")
        self.are_ids = bool(given) and not is_number_of and kinds <= {str, int} and not {"", UNAVAILABLE} & {*given}
        self.differs = self.are_ids and self.distinct > 1
        """Whether it may tell people or conversations apart: a constant is the same for all of them."""
        self.texts = sorted({one for one in given if isinstance(one, str) and "'" not in one})
        """Its different texts that an expression can name."""
        is_about_kind = self.about["kinds"] or self.about["audiences"] or (self.noun == "name" and self.ends["kinds"])
        is_of_thing = any(_any(part, "things") for part in parts[-2:])
        is_named = is_about_kind and not self.is_id and not is_of_thing
        self.is_kind = is_named and 0 < len(self.texts) == self.distinct <= FEW
        """Whether it says what a record is."""
        texts = (tuple(map(change, pair)) for pair in SHAPES["truth"] for change in (str, str.title, str.upper))
        pairs = [pair for pair in ((True, False), (1, 0), *texts) if {type(pair[0])} == kinds and {*given} <= {*pair}]
        self.truth: Sequence[Any] = pairs[0] if pairs else ()
        """The two values with which it says that something is so, or not; () if it does not."""
        units: tuple[Unit, ...] = ("iso", *SECONDS)
        self.unit = next((unit for unit in units if given and all(moment_of(one, unit) for one in given)), None)
        """The unit in which all values are plausible times."""

    def named(self, group: str) -> int:
        """Return how much its path matches a group of words: 1, and 2 more if the path's last part does."""
        return 2 * self.ends[group] + self.has[group]

    def equals(self, *values: Any) -> str:
        return " || ".join(f"{self.path} == {_literal(value)}" for value in values)


def _literal(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else f"`{json.dumps(value)}`"


class Sample:
    """The records that a mapping is guessed from, with their columns."""

    def __init__(self, records: Sequence[Named], rows: Mapping[int, Any] | None = None, path: str = "value") -> None:
        """`rows` are the values, or the rows of changes at the path, by the numbers of the records that have one."""
        self.records = records
        self.rows = {at: record["value"] for at, record in enumerate(records)} if rows is None else rows
        values: dict[str, dict[int, Any]] = {}
        words: dict[str, Sequence[Sequence[str]]] = {}
        for number, row in self.rows.items():
            record = records[number]
            parts = {path: row, "item": record.get("item"), "key": record["key"], "headers": record["headers"]}
            for place, of_place, value in (leaf for start, inner in parts.items() for leaf in _leaves(start, inner)):
                words.setdefault(place, of_place)
                values.setdefault(place, {}).update({} if value is None else {number: value})
        found = {place: Column(place, words[place], given) for place, given in values.items()}
        self.twins: dict[str, str] = {}
        """The paths of objects that edit or delete what an object with a similar name creates, and which of both."""
        self._join(found)
        lists = {place: list(filter(_are_objects, one.values.values())) for place, one in found.items()}
        self.lists = {place for place, values in lists.items() if any(map(_are_messages, values))}
        """The paths of lists of messages."""
        longer = tuple(f"{place}[0]" for place, values in lists.items() if any(len(one) > 1 for one in values))
        self.columns = {place: one for place, one in found.items() if not place.startswith(longer)}

    def _join(self, columns: dict[str, Column]) -> None:
        """Let what is new, as in `new_body` or `edited_message`, stand in the place of the `body` or `message`."""
        plain = {_bare(one.path): one for one in columns.values()}
        for new, group in product(list(columns.values()), ("updated", "deleted")):
            old = plain.get(_bare(new.path, "new", group))
            if old is None or old is plain.get(_bare(new.path)) or new.path not in columns:
                continue
            steps, others = new.path.split("."), old.path.split(".")
            differ = (at for at, (one, other) in enumerate(zip(steps, others, strict=False), 1) if one != other)
            end = next(differ, len(steps))
            path, of = ".".join(steps[:end]), ".".join(others[:end])
            if end < len(steps) and steps[end:] == others[end:] and old.values.keys().isdisjoint(new.values):
                self.twins[path] = group
                path = ".".join([f"({path} || {of})", *steps[end:]])
            elif group == "updated" and _is_text(new) and self._as_content(old) > 0:
                self.twins[new.path] = group
                path = f"({new.path} || {old.path})"
            else:
                continue
            newer = {at: value for at, value in columns.pop(new.path).values.items() if value not in ("", [])}
            columns[path] = Column(path, old.parts, {**old.values, **newer})
            columns.pop(old.path, None)

    def content(self, under: str = "") -> tuple[float, Column | None]:
        """Return the column of what was said, after its score."""
        return _best((one for one in self.columns.values() if one.path.startswith(under)), self._as_content)

    def _as_content(self, column: Column) -> float:
        values = [one for one in column.values.values() if one != UNAVAILABLE]
        if any(_are_objects(one) and _are_messages(one) for one in values):
            return 0
        texts = [_text_of(value) for value in values]
        different, count = len(set(texts)), len(texts)
        is_of_other = (
            column.has["old"] or column.has["quoted"] or any({"reply", "to"} <= {*part} for part in column.parts)
        )
        if not any(texts) or is_of_other or (count > 2 and different == 1):
            return 0
        spoken = sum(" " in text.strip() or not text.isascii() for text in texts) / count
        is_name = column.is_id or (count > 1 and different == count)
        if not spoken and (is_name or column.named("texts") < NAMED or not all(texts)):
            return 0
        length = min(1.0, sum(map(len, texts)) / count / 200)
        length -= sum(text.startswith("<") for text in texts) / count  # the same text may be there without its markup
        length -= UNEDITED * column.has["unedited"]
        return spoken + column.named("texts") + length + len(column.values) / len(self.rows) + 2 * different / count


def _is_text(column: Column) -> bool:
    return any(map(_text_of, column.values.values())) and not (column.truth or column.unit)


def _text_of(value: Any) -> str:
    """Return the text that ingest would find in a message's content, or ""."""
    if isinstance(value, list):
        with suppress(ContentUnreadable):
            return " ".join(piece.text for piece in flatten(value))
    return value if isinstance(value, str) else ""


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Sequence[Sequence[str]], Any]]:
    """Return all values, with their paths and the words of these. A list is a value, and its only object is read."""
    waiting: list[tuple[str, tuple[Sequence[str], ...], Any]] = [(path, (), value)]
    while waiting:
        path, parts, value = waiting.pop()
        if isinstance(value, str) and value.startswith(("{", "[{")):
            with suppress(orjson.JSONDecodeError):
                path, value = f"from_json({path})", orjson.loads(value)
        if isinstance(value, dict) and len(parts) < MAX_DEPTH:
            is_union = len(value) == 1 and PATTERNS["union"].fullmatch(next(iter(value)))
            for name, one in value.items():
                is_about_it = parts and (is_union or name in WORDS["wrappers"])
                waiting.append((f"{path}.{_name(name)}", parts if is_about_it else (*parts, _words(name)), one))
        elif not isinstance(value, dict | InvalidRecord):
            yield path, parts, value
            if _are_objects(value) and len(value) == 1 and (_are_messages(value) or not {*value[0]} & WORDS["texts"]):
                waiting.append((f"{path}[0]", parts, value[0]))


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _are_messages(items: Sequence[Any]) -> bool:
    return any(_any(name_words(name), "marks") for item in items for name in item)


def _name(name: str) -> str:
    """Write a name as JMESPath and TOML do."""
    return name if PATTERNS["bare"].fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _words(name: str) -> list[str]:
    """Return the words of a name: one for a thing and its plural, and two for those such as `threadid`."""
    found: list[str] = []
    for word in name_words(normalize("NFKD", name).encode("ascii", "ignore").decode()):
        thing, one = word.removesuffix("id"), word.removesuffix("s")
        is_id = thing != word and _any([thing], *TALK, *PEOPLE)
        found += [thing, "id"] if is_id else [one if _any([one], *TALK, *PEOPLE) else word]
    return found


def items_in(records: Sequence[Named], foreach: str) -> list[Named]:
    """Return the items of a list in each record, as expressions see them."""
    expression = Expression(foreach)
    return [
        Named(record, item=item, index=index)
        for record in records
        if isinstance(items := expression.find(record), list)
        for index, item in enumerate(items)
    ]


def guess(records: Sequence[Named], key_format: KeyFormat = "text") -> Guess:
    """Guess the mapping. Without records, everything is missing."""
    for program in SHAPES["programs"]:
        if records and all(map(Expression(program["when"]).find, records)):
            missing = [name for name, path in program["source"]["map"].items() if path == NOTHING]
            return Guess(program["source"], missing, dict.fromkeys(missing, NOT_FOUND))
    return _Guesser(records, key_format).guess()


def envelope_of(records: Sequence[Named]) -> tuple[list[str], Mapping[str, Any] | None]:
    """Return the names that lead to the changes, and how they are written; None for other records."""
    values = [record["value"] for record in records if record["value"] is not None]
    rows = [row for row in map(record_row, values) if row is not None]
    base = ["payload"] if values and all(one is not record_row(one) for one in values) else []
    if not rows or not all(isinstance(row, dict) for row in rows):
        return base, None
    are_keyed = all(_is_key_of(record) for record in records if record_row(record["value"]) is not None)
    for envelope in ({**SHAPES["envelope"], **one} for one in SHAPES["envelopes"]):
        known = [*filter(Expression(envelope["known"]).find, rows)]  # others are skipped: DDL, heartbeats
        has_names = all({*envelope["names"]} <= row.keys() for row in known)
        if has_names and len(known) > USUALLY * len(rows) and (envelope["names"] or are_keyed):
            return base, envelope
    return base, None


def _is_key_of(record: Named) -> bool:
    """Return whether the key has fields of the value, as a row's primary key has."""
    key, row = record_row(record["key"]), record_row(record["value"])
    return isinstance(key, dict) and bool(key) and all(name in row and row[name] == key[name] for name in key)


def _best(columns: Iterable[Column], score: Callable[[Column], float]) -> tuple[float, Column | None]:
    """Return the highest score above 0 and its column, among equal ones that with the shortest path."""
    scored = [(points, -len(one.path), one.path, one) for one in columns if (points := score(one)) > 0]
    best = max(scored, default=None)
    return (best[0], best[3]) if best else (0, None)


class _Guesser:
    def __init__(self, records: Sequence[Named], key_format: KeyFormat) -> None:
        base, self.envelope = envelope_of(records)
        self.base = ".".join(("value", *base))
        self.key_format = key_format
        self.foreach: str | None = None
        sample = self._changed(records) if self.envelope else Sample(records)
        score, content = sample.content()
        for path in () if self.envelope else sorted(sample.lists):
            every = f"{path.replace('[0]', '[]')}[]" if "[0]" in path else path
            items = Sample(items_in(records, every))
            of_items, inner = items.content("item")
            is_within = content is not None and content.path.startswith(f"{path}[0]")
            if inner and (is_within or of_items > score):
                self.foreach, sample, score, content = every, items, of_items, inner
        self.sample, self.content = sample, content
        others = [f"{path}[0]" for path in sample.lists]
        others += [self.foreach.partition("[")[0] + "[0]"] if self.foreach and "[" in self.foreach else []
        self.everything = [one for one in sample.columns.values() if not one.path.startswith(tuple(others))]
        self.kinds = [one for one in self.everything if one.is_kind]
        self.private = self._private()
        hidden = Expression(" || ".join(self.private) or NOTHING)
        said = [at for at in sample.rows if content is None or at in content.values]
        self.messages = [at for at in said if not hidden.find(sample.records[at])]
        self.columns = []
        """The columns that most messages have."""
        for one in self.everything:
            kept = {at: one.values[at] for at in self.messages if at in one.values}
            if kept and len(kept) >= USUALLY * len(self.messages) and not one.has["old"]:
                self.columns.append(Column(one.path, one.parts, kept))
        self.taken = {content.path if content else ""}
        self.role: Column | None = None
        self.conversation: Column | None = None
        self.tenant: Column | None = None
        self.user: Column | None = None
        self.notes: dict[str, str] = {}
        self.former: dict[str, str] = {}
        """The paths of columns that say in deletions what others were."""

    def _changed(self, records: Sequence[Named]) -> Sample:
        """Return a sample of what rows are, without those that are no more."""
        envelope = self.envelope or {}
        changes = {at: record_row(record["value"]) for at, record in enumerate(records)}
        gone = Expression(envelope["gone"])
        there = {at: row for at, row in changes.items() if row is not None and not gone.find(row)}
        rows = {at: row.get(envelope["row"], row) for at, row in there.items()}
        return Sample(records, rows, ".".join(filter(None, (self.base, envelope["row"]))))

    def take(self, score: Callable[[Column], float]) -> Column | None:
        """Return the best column that is not taken yet; among equal ones, one that stands near the text."""
        free = [one for one in self.columns if one.path not in self.taken]
        _, best = _best(free, lambda one: (found := score(one)) and found + self._nearness(one))
        self.taken.add(best.path if best else "")
        return best

    def _nearness(self, column: Column) -> float:
        """Return which share of the path to the text leads to a column, too."""
        content = self.content.path if self.content else ""
        around, steps = (re.sub(r"from_json\(|\)", "", path).split(".")[:-1] for path in (content, column.path))
        shared = takewhile(lambda pair: pair[0] == pair[1], zip(around, steps, strict=False))
        return len(list(shared)) / max(1, len(around))

    def guess(self) -> Guess:
        role_value = self._role()
        self._find_people()
        conversation, tenant, user = self.conversation, self.tenant, self.user
        edits = self._edits()
        identifier = self._identifier(edits)
        sent_at = self._sent_at()
        if _mixed(self.messages, [self.content], [identifier, conversation, tenant]):
            edits = edits or "`true`"  # a message is there twice, with different texts
        deletions = self._all_deletions(identifier)
        place = f"join(':', [{', '.join(PLACE if self.foreach else PLACE[:3])}])"
        in_history = self._in_history() if identifier is None else ""
        fields: dict[str, Any] = {
            "id": self._also_deleted(identifier) if identifier else in_history or place,
            "conversation_id": self._conversation_id(conversation, tenant) if conversation else NOTHING,
            "user_id": _known_by(user, conversation) if user else NOTHING,
            **({"tenant_id": self._also_deleted(tenant)} if tenant else {}),
            "role": role_value or NOTHING,
            "content": self.content.path if self.content else NOTHING,
            **({"sent_at": sent_at} if sent_at else {}),
        }
        if fields["id"] == place:
            self.notes["id"] = "not found: the record's place, so no message can be edited or repeated"
        unsure = {"id", "user_id", "role"} & self.notes.keys()
        missing = [name for name, expression in fields.items() if expression == NOTHING or name in unsure]
        texts = self.content.texts if self.content and self.envelope else []
        placeholders = [one for one in texts if one != UNAVAILABLE and PATTERNS["placeholder"].fullmatch(one)]
        source = {
            "key_format": self.key_format if self.key_format != "text" else None,
            "foreach": self.foreach,
            "skip": " || ".join(filter(None, (self._other_kinds(deletions), *self.private))),
            "unavailable": placeholders and placeholders[0],
            "map": fields,
            "edits": edits and identifier and {"when": edits, "creates": True},
            "deletions": deletions and {"when": deletions},
        }
        notes = {**dict.fromkeys(missing, NOT_FOUND), **self.notes}
        return Guess({name: value for name, value in source.items() if value}, missing, notes)

    def _conversation_id(self, conversation: Column, tenant: Column | None) -> str:
        """Return an expression for the conversation, with the tenant if others have the same ids."""
        path = self._also_deleted(conversation)
        if tenant is None or not _mixed(self.messages, [tenant], [conversation]):
            return path
        self.notes["conversation_id"] = "tenants share ids, so both are in it"
        of = self._also_deleted(tenant)
        return f"({of}) && ({path}) && join(':', [to_string({of}), to_string({path})])"

    def _also_deleted(self, column: Column) -> str:
        """Return an expression that finds an id in deletions, too, whose row stands elsewhere."""
        other = self.former.get(column.path, column.path)
        if self.envelope and self.envelope["row"]:
            row, old = (f"{self.base}.{name}" for name in (self.envelope["row"], self.envelope["old"]))
            other = column.path.replace(row, old)
        return column.path if other == column.path else f"{column.path} || {other}"

    def _role(self) -> Any:
        """Return what stands in the file for the role."""
        self.role = role = self.take(_as_role)
        if role is None:
            return None
        known = _known_roles(role)
        counts = Counter(role_name(one) for one in role.values.values())
        if unknown := {name: count for name, count in counts.items() if name not in known}:
            shown = ", ".join(f"{json.dumps(name, ensure_ascii=False)} ({count})" for name, count in unknown.items())
            self.notes["role"] = f"not known, please write or skip: {shown}"
        roles = {name: known[name] for name in sorted(known) if name.lower() not in ROLES}
        return {"path": role.path, "values": roles} if roles else role.path

    def first(self, *rows: str) -> Column | None:
        """Return the best column of the first of these rows of the table of fields that fits any."""
        return next((best for row in rows if (best := self.take(partial(self._score, row)))), None)

    def _score(self, row: str, column: Column) -> float:
        """Return how well a column fits a row of the table of fields, by what is known of the others; 0 if not."""
        values, scope = column.values, [self.conversation, self.tenant]
        named = list(map(str, self.conversation.values.values())) if self.conversation else []
        facts = {
            **vars(column),
            "is_complete": len(values) >= len(self.messages),
            "is_of_row": self._is_primary_key(column),
            "has_conversation": self.conversation is not None,
            "is_conversation": self.conversation and list(map(str, values.values())) == named,
            "is_user": any(one.about["users"] and one.values == values for one in self.columns if one is not column),
            "is_one_of_each": _is_one_of_each(column, *scope),
            "differs_in_nearly_each": self.conversation and column.distinct >= NEARLY_ALL * self.conversation.distinct,
            "differs_by_user": self.user and self.user.are_numbers and _mixed(self.user.values, [column], [self.user]),
            "have_several_roles": 2 * _mixed(values, [self.role], [column]) > column.distinct,
            "have_several_tenants": any(one.about["tenants"] and one.differs for one in self.columns),
        }
        table = SHAPES["fields"][row]
        is_fit = bool(Expression(table["must"]).find(facts))
        return is_fit and 1 + sum(bool(Expression(like).find(facts)) for like in table["likes"])

    def _find_people(self) -> None:
        """Find the conversation, the tenant and the user, so that no conversation has several users."""
        self.conversation = self.first("conversations", "shared_conversations", "places", "talks")
        self.tenant = self.first("tenants")
        is_writer = self.conversation is not None and self.conversation.about["writers"]
        self.user = self.first("users") or (self.conversation if is_writer else None)
        self.tenant = self.tenant or self.first("shops")
        people = [one for one in self.columns if self.user and self.conversation and self._score("people", one)]
        if self.user and any(_mixed(one.values, [one], [self.user]) for one in people):
            self.notes["user_id"] = f"please check: one {self.user.path} has several, so these or that are the people"
            self.user = None
        elif self.tenant is None and self.conversation is not None:
            shared = [one for one in self.columns if self._score("shared_tenants", one)]
            for tenant in sorted(shared, key=self._nearness, reverse=True):
                self.tenant = tenant
                talks = _groups(tenant.values, [self.role], [self.conversation, tenant]).values()
                by_both = self.first("users")
                if by_both or 2 * sum(len(sides) > 1 for sides in talks) > len(talks):
                    self.user = by_both or self.user
                    break
            else:
                self.tenant = None
        self.user = self.user or self.first("keys")

    def _identifier(self, edits: str) -> Column | None:
        """Return a column with an id per message: where it repeats, it is the same message again."""
        texts = len({repr(self.content.values[at]) for at in self.messages}) if self.content else 0
        sometimes = [one for one in self.everything if one.truth or len(one.values) < len(self.messages)]
        alike = [one for one in sometimes if len({*map(type, one.values.values())}) == 1]  # others cannot be compared
        flags = self._flags(alike, "updated")
        flags += [one.path for one in alike if self.content and _is_former(one, self.content)]
        times = [one for one in self.columns if one.has["times"] and one.unit and one.distinct >= NEARLY_ALL * texts]

        def score(one: Column) -> float:
            found, is_key, by = self._score("id", one), self._is_primary_key(one), [one, self.tenant]
            if not found:
                return 0
            if (is_key or (one.is_id and one.about["messages"])) and _mixed(one.values, [self.conversation], by):
                by.append(self.conversation)  # it counts in each conversation
            if len(_groups(one.values, [], by)) < USUALLY * texts:
                return 0
            own = [edits if is_key or edits != "`true`" else "", *flags]
            is_edit = Expression(" || ".join(filter(None, own)) or NOTHING)
            first = [at for at in self.messages if not is_edit.find(self.sample.records[at])]
            is_reused = all(_mixed(first, [told], by) for told in (self.content, *times))
            # a text would replace another one of another time, without a word of an edit
            return 0 if is_reused or _mixed(one.values, [self.conversation, self.role], by) else found

        return self.take(score)

    def _is_primary_key(self, column: Column) -> bool:
        """Return whether a column of a table is in the record's key, which tells rows apart."""
        name, columns = column.path.rpartition(".")[2], self.sample.columns
        keys = [columns[path] for path in (f"key.{name}", f"key.payload.{name}") if self.envelope and path in columns]
        return any(all(key.values.get(at) == one for at, one in column.values.items()) for key in keys)

    def _in_history(self) -> str:
        """Return an id for the items of a list if each record repeats all that was said: the place in it."""
        conversation = self.conversation
        if not self.foreach or conversation is None or self.content is None:
            return ""
        index = Column("index", (), {at: self.sample.records[at]["index"] for at in self.messages})
        told = _groups(self.messages, [self.content], [conversation, index])
        is_repeated = len(told) <= NEARLY_ALL * len(self.messages) and all(len(texts) == 1 for texts in told.values())
        return f"join(':', [to_string({conversation.path}), to_string(index)])" if is_repeated else ""

    def _sent_at(self) -> Any:
        """Return what stands in the file for the time."""
        if column := self.first("times"):
            return column.path if column.unit == "iso" else {"path": column.path, "unit": column.unit}
        if self.envelope is None or not self.envelope["changed_ms"]:
            return None
        self.notes["sent_at"] = "not found: this is the time of the change, not that of the message"
        return {"path": self.envelope["changed_ms"].format(self.base), "unit": "ms"}

    def _private(self) -> list[str]:
        """Return expressions for what the user never saw: notes among the people who serve them."""
        found = self._flags(self.everything, "private", "shown", beside=("messages", "users"))
        for column in self.everything:
            is_kind = column.about["kinds"]
            about = [*column.last, *(column.parts[-2] if is_kind and len(column.parts) > 1 else ())]
            hidden = [f"hidden_{group}" for group in ("audiences", "kinds", "places", "authors") if _any(about, group)]
            if is_kind and (column.ends["messages"] or self._is_mixed_in_talks(column)):
                hidden.append("hidden_messages")
            is_of_talk = any(_any(part, "conversations", "places") for part in column.parts[-2:-1])
            is_constant = column.distinct == 1 and len(column.values) == len(self.sample.rows)
            if hidden and column.distinct <= FEW and not is_of_talk and not is_constant:
                found += [column.equals(text) for text in column.texts if _any(_words(text), *hidden)]
        return found

    def _is_mixed_in_talks(self, column: Column) -> bool:
        """Return whether a column differs within conversations, or within those of a key if none is named."""
        columns = self.sample.columns
        talks = [one for one in columns.values() if one.about["conversations"] and one.differs]
        return any(_mixed(column.values, [column], [one]) for one in talks or filter(None, [columns.get("key")]))

    def _edits(self) -> str:
        """Return an expression for records that say that they edit, or ""."""
        if self.envelope is not None and (edits := self.envelope["edits"].format(self.base)):
            return str(edits)
        edits = " || ".join(path for path, group in self.sample.twins.items() if group == "updated")
        for column in self.kinds:
            known = {column.values[at] for at in self.messages if at in column.values}
            found = sorted(value for value in known if _says(column, value, "updated"))
            if 0 < len(found) < len(known):
                edits = edits or column.equals(*found)
        return edits

    def _all_deletions(self, identifier: Column | None) -> str:
        """Return an expression for deletions, or ""."""
        deletions = self._deletions(identifier) if identifier else []
        if self.envelope is not None:
            changes = {at: record_row(record["value"]) for at, record in enumerate(self.sample.records)}
            gone, text = Expression(self.envelope["gone"]), Expression(self.content.path if self.content else NOTHING)
            ends = [self.sample.records[at] for at, row in changes.items() if row and gone.find(row)]
            about = {
                "changes": list(changes.values()),
                "are_bare": not self.envelope["names"],
                "are_whole": bool(ends) and all(tells_deleted_row(text, record) for record in ends),
            }
            warnings = [one["text"] for one in SHAPES["warnings"] if Expression(one["when"]).find(about)]
            self.notes |= {"": warnings[0]} if warnings else {}
            deletions.insert(0, self.envelope["deletions"].format(self.base))
        return " || ".join(filter(None, deletions))

    def _flags(
        self,
        columns: Iterable[Column],
        group: str,
        other: str = "",
        beside: Sequence[str] = ("moments", "messages", "loaders"),
    ) -> list[str]:
        """Return expressions for columns that say this of a message, or when or by whom it was done, or that the other
        is not so. `beside` are the groups of words that may stand beside that word.
        """
        found = []
        for column, (is_off, said) in product(columns, enumerate((group, other))):
            others = [word for word in column.flagged if not (said and _any([word], said))]
            is_named = len(others) < len(column.flagged) and all(_any([word], *beside) for word in others)
            if not is_named or (self.envelope and ".__" in column.path) or _is_of_other(column.parts[-2:-1]):
                continue
            is_number = any(type(one) is int for one in column.values.values())
            given, most = list(column.values.values()), USUALLY * len(self.sample.rows)
            usual = [one for at, one in enumerate(given) if one and given.index(one) == at and given.count(one) > most]
            never = [f"{column.path} != {_literal(one)}" for one in usual]  # such as the first of January of the year 1
            moment = " && ".join([f"{column.path} > `0`" if is_number else column.path, *never])
            is_moment = not column.truth and (_any(others, "moments") or "by" in column.last)
            if is_moment and sum(bool(one) and one not in usual for one in given) > most:
                continue  # most rows have it: it is planned, as when messages are kept for a time
            found.append(moment if is_moment else column.equals(*column.truth[is_off : is_off + 1]))
        return list(filter(None, found))

    def _deletions(self, identifier: Column) -> list[str]:
        found = [path for path, group in self.sample.twins.items() if group == "deleted"]
        found += self._flags(self.everything, "deleted")
        rows = self._flags(self.everything, "retired", "live")
        found += [flag for flag in rows if self._hides(flag, identifier, self.envelope is not None)]
        found += [flag for flag in self.private if flag not in found and self._hides(flag, identifier)]
        self.private = [flag for flag in self.private if flag not in found]
        wanted = [self.sample.columns[one.path] for one in (identifier, self.conversation) if one]
        for column in self.kinds:
            rows = [one for one in column.texts if _any(_words(one), "retired") and not _is_of_other(column.parts[-2:])]
            gone = [
                value
                for value in column.texts
                if _says(column, value, "deleted")
                or (value in rows and self._hides(column.equals(value), identifier, self.envelope is not None))
            ]
            places = [at for at, value in column.values.items() if value in gone]
            if gone and all(self._is_in(one, places) for one in wanted):
                found.append(column.equals(*gone))
            elif gone:
                self.notes[""] = f"deletions name no message and are not mapped: {column.equals(*gone)}"
        return found

    def _hides(self, flag: str, identifier: Column, is_of_row: bool = False) -> bool:
        """Return whether a flag hides a message that was seen before: its id has a record without the flag, too."""
        is_set, ids = Expression(flag), self.sample.columns[identifier.path]
        told = Column("", (), {at: bool(is_set.find(self.sample.records[at])) for at in ids.values})
        return False in told.values.values() and (is_of_row or _mixed(ids.values, [told], [ids]) > 0)

    def _is_in(self, column: Column, places: Sequence[int]) -> bool:
        """Return whether deletions have an id, or say what it was in a column of the same name."""
        if all(at in column.values for at in places):
            return True
        for other in self.sample.columns.values():
            if _is_former(other, column) and all(at in other.values for at in places):
                self.former[column.path] = other.path
                return True
        return False

    def _other_kinds(self, deletions: str) -> str:
        """Return an expression for kinds of records that never have content."""
        content, records = self.content, len(self.sample.rows)
        if self.envelope is not None:
            return str(self.envelope["skip"]).format(self.base)
        if content is None or len(content.values) == records:
            return ""
        for column in (one for one in self.kinds if one.distinct > 1 and len(one.values) == records):
            with_content = {value for at, value in column.values.items() if at in content.values}
            without_content = {value for at, value in column.values.items() if at not in content.values}
            if with_content and not with_content & without_content:
                kept = {value for value in without_content if f"'{value}'" in deletions}
                if not kept:
                    self.notes["skip"] = "kinds that were not seen are skipped, too: add those that edit or delete"
                return " && ".join(f"{column.path} != '{value}'" for value in sorted(with_content | kept))
        return ""


def _groups(
    rows: Iterable[int], of: Sequence[Column | None], by: Sequence[Column | None]
) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
    """Return the distinct values of columns for each value of others."""
    found: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for at in rows:
        group, value = (tuple(repr(one.values.get(at)) for one in columns if one) for columns in (by, of))
        if {*value} != {"None"}:  # an update may tell the columns that it changes alone
            found.setdefault(group, set()).add(value)
    return found


def _mixed(rows: Iterable[int], of: Sequence[Column | None], by: Sequence[Column | None]) -> int:
    """Return how many values of `by` have several values of `of`."""
    return sum(len(values) > 1 for values in _groups(rows, of, by).values())


def _is_one_of_each(column: Column, *scope: Column | None) -> bool:
    """Return whether no group has two values of a column. Without groups, there are no two to mix."""
    return column.are_ids and not (any(scope) and _mixed(column.values, [column], scope))


def _is_former(old: Column, column: Column) -> bool:
    """Return whether a value that was has the name of another one but for the words that say so."""
    words = ("new", "old", "deleted", "targets")
    return any(old.has[group] for group in words[1:]) and _bare(old.path, *words) == _bare(column.path, *words)


def _bare(path: str, *groups: str) -> tuple[tuple[str, ...], ...]:
    """Return the words of a path without those of these groups."""
    steps = (tuple(word for word in _words(step) if not _any([word], *groups)) for step in path.split("."))
    return tuple(filter(None, steps))


def _as_role(column: Column) -> float:
    values = column.values.values()
    roles = _known_roles(column)
    sides = [roles[role_name(one)] for one in values if role_name(one) in roles]
    known = len(sides) / len(values)
    return 2 * known + column.named("authors") if known >= USUALLY and len({*sides}) > 1 and "user" in sides else 0


def _known_roles(column: Column) -> dict[str, str]:
    """Return the role that each value stands for, if any. In a field like `is_bot`, the name decides."""
    said = ROLE_OF.get("_".join(column.flagged))
    if said is not None and column.truth:
        return dict(zip(map(role_name, column.truth), (said, "assistant" if said == "user" else "user"), strict=True))
    names = {role_name(one) for one in column.values.values()}
    in_words = [name for name in names if not any(map(str.isdigit, name))]  # unlike user-1, an id
    said_by = {name: "_".join(word for word in _words(name) if not _any([word], "messages")) for name in in_words}
    return {name: ROLE_OF[one] for name in names for one in (name.lower(), said_by.get(name)) if one in ROLE_OF}


def _known_by(user: Column, conversation: Column | None) -> str:
    """Return an expression for the user, by which those who are not known are not one and the same."""
    values = [*user.texts, *sorted({one for one in user.values.values() if isinstance(one, int)})]
    nobody = [_literal(one) for one in values if str(one).lower() in WORDS["nobody"]]
    if not nobody or conversation is None:
        return user.path
    return f"contains([{', '.join(nobody)}], {user.path}) && {conversation.path} || {user.path}"


def _says(column: Column, value: str, group: str) -> bool:
    """Return whether the kind of a record says this of a message, and not of a conversation or a user."""
    said = [word for at, word in enumerate(_words(value)) if not at or word != "del"]  # "mensaje_del_cliente"
    is_operation = any({*part} & {"op", "operation", "change"} for part in column.parts)
    if is_operation and said == [group[0]]:  # d, D, -D, u, U, +U
        return True
    of_others = [word for word in said if word != "chat" and _any([word], "conversations", "users", "places")]
    if _any(said, "undone") or _any([word for word in said if _any([word], "messages", "things")][-1:], "things"):
        return False  # message.reaction_removed
    return _any(said, group) and (not of_others or _any(said, "messages"))


def _is_of_other(parts: Iterable[Iterable[str]]) -> bool:
    """Return whether parts of a path name the conversation or a person, and not the message."""
    words = [word for part in parts for word in part]
    return _any(words, "conversations", "places", "things", *PEOPLE) and not _any(words, "messages", "events")


def key_format_of(keys: Sequence[bytes | None], headers: Sequence[str] = ()) -> KeyFormat:
    """Guess how keys are written. `headers` are the names of headers that the records have."""
    given = [key for key in keys if key]
    if any(map(PATTERNS["schema_of_key"].fullmatch, headers)):
        return "avro"
    starts = {key[:PREFIX_BYTES] for key in given}
    is_framed = len(starts) == 1 and given[0][0] == MAGIC and any(given[0][:PREFIX_BYTES])
    for form, read in KEYS.items() if given else ():
        with suppress(ValueError):
            found = [read(key) for key in given]
            if form != "json" or all(isinstance(one, str | dict) for one in found):
                return "avro" if form == "bytes" and is_framed else form
    return "text"


def toml_of(topic: str, form: str, found: Guess) -> str:
    """Write a source as TOML, with its notes."""
    notes = {name: f"  # {note}" for name, note in found.notes.items() if name}
    source = {"topics": [topic], "format": form, **found.source}
    tables = [(name, value) for name, value in source.items() if isinstance(value, dict)]
    lines = ["[[sources]]", *([f"# {found.notes['']}"] if "" in found.notes else [])]
    for title, table in (("", {name: value for name, value in source.items() if not isinstance(value, dict)}), *tables):
        lines += [f"[sources.{title}]"] if title else []
        lines += [f"{name} = {_toml(value)}{notes.get(name, '')}" for name, value in table.items()]
    return "\n".join([*lines, ""])


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_name(name)} = {_toml(one)}' for name, one in value.items())} }}"
    return json.dumps(value, ensure_ascii=False)
