"""Previews sources before they are read: what their last records become, and a first mapping for a topic.

The mapping is guessed from the names of fields, the types of their values, and how often the values differ.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from aiokafka import ConsumerRecord

from afterword.schemas import ConversationFlush, EpisodeClosed, InvalidRecord, decode_closed
from afterword.schemas.decoding import record_time
from afterword.schemas.headers import ProducerRecord, to_record
from afterword.streams.errors import AfterwordError, ConfigurationError
from afterword.streams.ingest.formats import MAGIC, PREFIX_BYTES
from afterword.streams.ingest.registry import open_registry
from afterword.streams.ingest.sources import (
    Format,
    Source,
    Unit,
    context,
    map_record,
    match_topics,
    moment_of,
    our_topics,
    parse_sources,
    require_registry,
    require_sources,
    role_name,
)
from afterword.streams.kafka.log_reader import Extent, Log, open_log
from afterword.streams.segmenter.processor import Segmenter
from afterword.streams.settings import Episodes, Settings
from afterword.streams.text.content import ROLES, ContentUnreadable, flatten, name_words
from afterword.streams.text.tokens import count_tokens


class NoRecords(AfterwordError):
    """there are no records in {topics}"""


@dataclass(frozen=True)
class Preview:
    """What a record would become."""

    record: ConsumerRecord
    value: Any
    """The value as expressions see it; None if it cannot be read."""
    becomes: Sequence[ProducerRecord] = ()
    """The resulting records; empty if the record is skipped or fails."""
    problem: str = ""
    """Why it would become a dead letter; "" if it would not."""


async def last_records(log: Log, topics: Sequence[str], count: int) -> list[ConsumerRecord]:
    """Return the last committed records of the topics, ordered by timestamp."""
    found: list[ConsumerRecord] = []
    first, ends = await log.extent(topics)
    last = Extent({where: max(first[where], end - count) for where, end in ends.items()}, ends)
    await log.read_all(last, dict.fromkeys(topics, found.append), "", lambda *_: None)
    return sorted(found, key=lambda record: (record.timestamp, record.partition, record.offset))[-count:]


async def try_source(settings: Settings, number: int, count: int) -> list[Preview]:
    """Map the last records of a source without writing anything. `number` is the source's number, from 1.

    Raises: ConfigurationError, NoRecords, BrokerUnavailable, RegistryUnavailable.
    """
    sources = require_sources(settings)
    if number > len(sources):
        raise ConfigurationError(setting="--source", problem=f"{settings.ingest.file} has {len(sources)}")
    async with open_log(settings.kafka) as log:
        topics = match_topics(sources, await log.topics(), our_topics(settings.kafka))
        mine = [topic for topic, index in topics.items() if index == number - 1]
        records = await last_records(log, mine, count) if mine else []
    if not records:
        raise NoRecords(topics=", ".join(mine or sources[number - 1].topics))
    return await preview(settings, sources[number - 1], records)


async def preview(settings: Settings, source: Source, records: Sequence[ConsumerRecord]) -> list[Preview]:
    """Map records as ingest does. Raises: ConfigurationError, RegistryUnavailable."""
    require_registry(settings, [source])
    found = []
    async with open_registry(settings.registry) as registry:
        for record in records:
            value = None
            try:
                value = await registry.decode(source.format, record.value)
                found.append(Preview(record, value, map_record(source, record, value)))
            except InvalidRecord as error:
                found.append(Preview(record, value, problem=str(error)))
    return found


@dataclass(frozen=True)
class Guess:
    """A guessed mapping, structured as in the TOML file, and the fields that could not be guessed."""

    fields: Mapping[str, Any]
    skip: str | None = None
    missing: Sequence[str] = ()
    """Required fields that were not found. Their expressions are placeholders."""


@dataclass(frozen=True)
class Proposal:
    """A first mapping for a topic."""

    toml: str
    guess: Guess
    previews: Sequence[Preview]
    conversations: Mapping[str, Sequence[EpisodeClosed]]
    """The episodes of each conversation, as the segmenter would cut them."""


async def propose(settings: Settings, topic: str, form: str | None, count: int) -> Proposal:
    """Guess the mapping of a topic from its last records, and try it. If `form` is None, it is guessed too.

    Raises: NoRecords, ConfigurationError, BrokerUnavailable, RegistryUnavailable.
    """
    async with open_log(settings.kafka) as log:
        if topic not in await log.topics():
            raise ConfigurationError(setting="--topic", problem=f"topic {topic} does not exist")
        records = await last_records(log, [topic], count)
    if not records:
        raise NoRecords(topics=topic)
    form = form or await format_of(settings, [record.value for record in records])
    [blank] = parse_sources(toml_of(topic, form, guess([])), "")
    read = await preview(settings, blank, records)
    found = guess([context(one.record, one.value) for one in read if one.value is not None])
    if found.skip is None and any(record.value is None for record in records):  # tombstones of a compacted topic
        found = replace(found, skip="!value")
    toml = toml_of(topic, form, found)
    [source] = parse_sources(toml, "")
    outcomes = await preview(settings, source, records)
    return Proposal(toml, found, outcomes, segmented(outcomes, settings.episodes))


async def format_of(settings: Settings, values: Sequence[bytes | None]) -> Format:
    """Guess how values are encoded. If all begin with a zero byte, they have a schema, whose type the registry knows.

    Raises: RegistryUnavailable, ConfigurationError.
    """
    given = [value for value in values if value]
    if not given or any(value[0] != MAGIC for value in given):
        return "json"
    if all(value[PREFIX_BYTES : PREFIX_BYTES + 1] in (b"{", b"[") for value in given):
        return "json-schema"
    if settings.registry.url is None:
        return "avro"
    async with open_registry(settings.registry) as registry:
        return await registry.format_of(int.from_bytes(given[-1][1:PREFIX_BYTES]))


def toml_of(topic: str, form: str, found: Guess) -> str:
    """Write a source as TOML."""
    lines = ["[[sources]]", f"topics = [{_toml(topic)}]", f"format = {_toml(form)}"]
    lines += [f"skip = {_toml(found.skip)}"] if found.skip else []
    lines += ["[sources.map]"]
    for name, value in found.fields.items():
        lines.append(f"{name} = {_toml(value)}{'  # not found: please write it' if name in found.missing else ''}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_key(name)} = {_toml(one)}' for name, one in value.items())} }}"
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return name if name.isascii() and name.isidentifier() else json.dumps(name, ensure_ascii=False)


def segmented(outcomes: Sequence[Preview], limits: Episodes) -> dict[str, list[EpisodeClosed]]:
    """Cut mapped records into episodes by the rules alone. Each conversation is flushed at its end."""
    made = [(one, each.record.timestamp) for each in outcomes for one in each.becomes]
    last = max((timestamp for _, timestamp in made), default=0)
    names = {one.conversation_id: one.tenant_id for one, _ in made}
    flushes = [
        (to_record(ConversationFlush(conversation_id=name, tenant_id=tenant), record_time(last)), last)
        for name, tenant in names.items()
    ]
    records = [
        ConsumerRecord(
            "messages", 0, offset, timestamp, 0, one.conversation_id.encode(), one.value, 0, 0, 0, one.headers
        )
        for offset, (one, timestamp) in enumerate([*made, *flushes])
    ]
    segmenter = Segmenter(limits, "episodes", "dead letters", {}, {}, count_tokens)
    found: dict[str, list[EpisodeClosed]] = {}
    for out in segmenter.process(records, last).outgoing:
        if out.topic == "episodes":
            event = decode_closed(out.key, out.value, out.headers)
            if isinstance(event, EpisodeClosed):
                found.setdefault(event.conversation_id, []).append(event)
    return found


Record = Mapping[str, Any]
"""A record as expressions see it; see `context`."""

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
    """Return the values of all records by path. A list counts as one value."""
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
    """Return the column with the highest score above 0, or among equal ones the one with the shortest path."""
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
    """Return the text that ingest would find in a message's content, or ""."""
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
    """Return the role that each value stands for, if any. In a field like `is_bot`, the name decides."""
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
    """Score a column as the user or the tenant, of which each conversation has exactly one."""
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
