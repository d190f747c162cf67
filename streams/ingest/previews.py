"""Previews sources before they are read: what their last records become, and a first mapping for a topic."""

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson
from aiokafka import ConsumerRecord

from afterword.schemas import InvalidRecord
from afterword.schemas.messages import MESSAGE_DELETED, MESSAGE_EDITED
from afterword.schemas.records import ProducerRecord
from afterword.streams.errors import AfterwordError, ConfigurationError
from afterword.streams.ingest.guessing import NOTHING, Guess, guess, items_in, key_format_of, toml_of
from afterword.streams.ingest.registry import SchemaUnavailable, open_registry
from afterword.streams.ingest.sources import (
    Expression,
    Named,
    Source,
    context,
    map_items,
    match_topics,
    parse_sources,
    require_registry,
    require_sources,
)
from afterword.streams.kafka.log_reader import Extent, Log, open_log
from afterword.streams.settings import Settings


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
    records: list[ConsumerRecord] = []
    first, ends = await log.extent(topics)
    last = Extent({where: max(first[where], end - count) for where, end in ends.items()}, ends)
    await log.read_all(last, dict.fromkeys(topics, records.append), "", lambda *_: None)
    return sorted(records, key=lambda record: (record.timestamp, record.partition, record.offset))[-count:]


async def try_source(settings: Settings, number: int, count: int) -> list[Preview]:
    """Map the last records of a source without writing anything. `number` is the source's number, from 1.

    Raises: ConfigurationError, NoRecords, BrokerUnavailable, RegistryUnavailable.
    """
    sources = require_sources(settings)
    if number > len(sources):
        raise ConfigurationError(setting="--source", problem=f"{settings.ingest.file} has {len(sources)}")
    async with open_log(settings.kafka) as log:
        topics = match_topics(sources, await log.topics(), settings.kafka.own_topics)
        mine = [topic for topic, index in topics.items() if index == number - 1]
        records = await last_records(log, mine, count) if mine else []
    if not records:
        raise NoRecords(topics=", ".join(mine or sources[number - 1].topics))
    return await preview(settings, sources[number - 1], records)


async def preview(settings: Settings, source: Source, records: Sequence[ConsumerRecord]) -> list[Preview]:
    """Map records as ingest does. Raises: ConfigurationError, RegistryUnavailable."""
    require_registry(settings, [source])
    previews = []
    async with open_registry(settings.registry) as registry:
        for record in records:
            value = None
            try:
                value, key = await registry.read(source, record)
                made, invalid = map_items(source, record, value, key)
                previews.append(Preview(record, value, made, str(invalid) if invalid else ""))
            except (InvalidRecord, SchemaUnavailable) as error:
                previews.append(Preview(record, value, problem=str(error)))
    return previews


@dataclass
class Checked:
    """What records become, in numbers that show whether people or conversations are mixed."""

    records: int = 0
    mapped: int = 0
    skipped: int = 0
    repeats: int = 0
    edits: int = 0
    deletions: int = 0
    roles: Counter[str] = field(default_factory=Counter)
    users: Counter[str] = field(default_factory=Counter)
    conversations: Counter[str] = field(default_factory=Counter)
    people: dict[str, set[str]] = field(default_factory=dict)
    """The users of each conversation."""
    problems: Counter[str] = field(default_factory=Counter)
    times: list[str] = field(default_factory=list)

    @property
    def doubts(self) -> list[str]:
        """Return what looks as if people were mixed."""
        several = sum(len(users) > 1 for users in self.people.values())
        doubts = {
            "all conversations have the same user": len(self.users) == 1 < len(self.conversations),
            "all messages are in one conversation": len(self.conversations) == 1,
            "all messages have the same role": len(self.roles) == 1,
            f"{several} of {len(self.people)} conversations have several users": several > 0,
        }
        return [doubt for doubt, is_doubted in doubts.items() if is_doubted]


def checked(previews: Sequence[Preview]) -> Checked:
    """Count what records become."""
    report, texts, times = Checked(len(previews)), dict[tuple[Any, ...], Any](), []
    for each in previews:
        report.mapped += bool(each.becomes)
        report.skipped += not each.becomes and not each.problem
        report.problems.update([each.problem] if each.problem else [])
        last: tuple[Any, ...] | None = None
        for made in each.becomes:
            event = orjson.loads(made.value)
            place = tuple(event.get(name) for name in ("tenant_id", "conversation_id", "id"))
            known, text = texts.get(place), event.get("content", texts.get(place))
            if made.event_type == MESSAGE_DELETED:
                report.deletions += 1
                continue
            if place in texts or made.event_type == MESSAGE_EDITED:
                report.edits += text != known
                # an edit that creates what is not known is two events
                report.repeats += text == known and place != last
            else:
                report.roles[event["role"]] += 1
                report.users[event["user_id"]] += 1
                report.conversations[event["conversation_id"]] += 1
                report.people.setdefault(event["conversation_id"], set()).add(event["user_id"])
                times.append(event["sent_at"])
            texts[place] = text
            last = place
    report.times = [min(times), max(times)] if times else []
    return report


EXAMPLES = 3


class FieldShown(NamedTuple):
    """What `init` found for a field, with values of different conversations."""

    field: str
    expression: str
    examples: Sequence[str]
    distinct: int


def described(guessed: Guess, records: Sequence[Named]) -> list[FieldShown]:
    """Show each field of a mapping by the records that it was guessed from."""
    records = items_in(records, guessed.source["foreach"]) if "foreach" in guessed.source else records
    paths = {name: value["path"] if isinstance(value, dict) else value for name, value in guessed.source["map"].items()}
    values = {name: [_value(Expression(path), record) for record in records] for name, path in paths.items()}
    said = [at for at, value in enumerate(values["content"]) if value or paths["content"] == NOTHING]
    of_each = {values["conversation_id"][at]: at for at in reversed(said)}
    shown = list(dict.fromkeys([*sorted(of_each.values()), *said]))[:EXAMPLES]
    said_of = {name: "not found" if path == NOTHING else path for name, path in paths.items()}
    return [
        FieldShown(name, said_of[name], [each[at] for at in shown], len({*each} - {""}))
        for name, each in values.items()
    ]


def _value(expression: Expression, record: Named) -> str:
    with suppress(InvalidRecord):
        if (value := expression.find(record)) is not None:
            return value if isinstance(value, str) else json.dumps(value, default=repr)
    return ""


@dataclass(frozen=True)
class Proposal:
    """A first mapping for a topic."""

    toml: str
    guess: Guess
    fields: Sequence[FieldShown]
    previews: Sequence[Preview]


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
    return await proposal(settings, topic, form, records)


async def proposal(settings: Settings, topic: str, form: str | None, records: Sequence[ConsumerRecord]) -> Proposal:
    """Guess the mapping from these records, and try it.

    Raises: ConfigurationError, also if no record can be read; RegistryUnavailable.
    """
    key_format = key_format_of([record.key for record in records], [name for one in records for name, _ in one.headers])
    read, problem = [], "its records have no value"
    async with open_registry(settings.registry) as registry:
        form = form or await registry.format_of([(one.value, one.headers) for one in records if one.value])
        [blank] = parse_sources(toml_of(topic, form, guess([], key_format)), "")
        require_registry(settings, [blank])
        for record in (one for one in records if one.value is not None):
            try:
                value, key = await registry.read(blank, record)
            except (InvalidRecord, SchemaUnavailable) as error:
                problem = str(error)
            else:
                read.append(context(record, value, key_format, key))
    if not read:
        raise ConfigurationError(setting="--topic", problem=f"no record of {topic} can be read: {problem}")
    guessed = guess(read, key_format)
    toml = toml_of(topic, form, guessed)
    [source] = parse_sources(toml, "")
    return Proposal(toml, guessed, described(guessed, read), await preview(settings, source, records))
