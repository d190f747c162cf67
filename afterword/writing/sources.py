"""Previews sources before they are read: what their last records become, and a first mapping for a topic."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aiokafka import ConsumerRecord

from afterword.schemas import ConversationFlush, EpisodeClosed, InvalidRecord, decode_closed
from afterword.schemas.decoding import record_time
from afterword.schemas.records import ProducerRecord, to_record
from afterword.streams.errors import AfterwordError, ConfigurationError
from afterword.streams.ingest.decoding import MAGIC, PREFIX_BYTES
from afterword.streams.ingest.mapping import context, map_record
from afterword.streams.ingest.registry import open_registry
from afterword.streams.ingest.sources import (
    Format,
    Source,
    match_topics,
    our_topics,
    parse_sources,
    require_registry,
    require_sources,
)
from afterword.streams.kafka.log_reader import Log, batches, open_log
from afterword.streams.segmenter.processor import Segmenter
from afterword.streams.settings import Episodes, Settings
from afterword.streams.text.tokens import count_tokens
from afterword.writing.guessing import Guess, guess

MESSAGES, EPISODES, DEAD_LETTERS = "messages", "episodes", "dead letters"
"""Topics of the trial. Nothing is written to them."""


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
    async with log.reader(*topics) as consumer:
        partitions = list(consumer.assignment())
        first, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
        ends = {where: end for where, end in ends.items() if first[where] < end}
        for where, end in ends.items():
            consumer.seek(where, max(first[where], end - count))
        consumer.pause(*(set(partitions) - set(ends)))
        async for records in batches(consumer, ends):
            found += records
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
        ConsumerRecord(MESSAGES, 0, offset, timestamp, 0, one.conversation_id.encode(), one.value, 0, 0, 0, one.headers)
        for offset, (one, timestamp) in enumerate([*made, *flushes])
    ]
    segmenter = Segmenter(limits, EPISODES, DEAD_LETTERS, {}, {}, count_tokens)
    found: dict[str, list[EpisodeClosed]] = {}
    for out in segmenter.process(records, last).outgoing:
        if out.topic == EPISODES:
            event = decode_closed(out.key, out.value, out.headers)
            if isinstance(event, EpisodeClosed):
                found.setdefault(event.conversation_id, []).append(event)
    return found
