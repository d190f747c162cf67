"""Messages from lines of JSON to the topic `messages`."""

import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from aiokafka.errors import KafkaError
from opentelemetry.trace import NoOpTracer, Tracer

from afterword.interleaving import Interleaving
from afterword.lines import InvalidLine, Outgoing, flush, parse_all, parse_numbered
from afterword.produce_sender import Sender
from afterword.streams.errors import AfterwordError, BrokerUnavailable
from afterword.streams.kafka import require_topics, running_producer
from afterword.streams.settings import Settings

INVALID_LINES_NAMED = 10


class LinesInvalid(AfterwordError):
    """{found} invalid lines"""

    def __init__(self, first: list[InvalidLine], found: int) -> None:
        super().__init__(found=found)
        self.first = first
        self.found = found


@dataclass(frozen=True)
class Options:
    """How to send. `rate`: records a second at most. `interleave`: conversations at a time."""

    rate: float | None = None
    flush: bool = False
    interleave: int = 1
    skip_invalid: bool = False


@dataclass
class Produced:
    """What was sent and acknowledged, and what could not be."""

    messages: int = 0
    flushes: int = 0
    invalid: int = 0
    seconds: float = 0.0
    first_invalid: list[InvalidLine] = field(default_factory=list)
    conversation_ids: dict[str, None] = field(default_factory=dict)

    def count(self, record: Outgoing) -> None:
        if record.is_message:
            self.messages += 1
            self.conversation_ids[record.conversation_id] = None
        else:
            self.flushes += 1

    def refuse(self, line: InvalidLine) -> None:
        self.invalid += 1
        if len(self.first_invalid) < INVALID_LINES_NAMED:
            self.first_invalid.append(line)

    def as_dict(self) -> dict[str, Any]:
        return {
            "conversations": len(self.conversation_ids),
            "messages": self.messages,
            "flushes": self.flushes,
            "invalid": self.invalid,
            "seconds": round(self.seconds, 3),
        }


def check(lines: Iterable[bytes]) -> Produced:
    """What sending these lines would send, without sending anything."""
    found = Produced()
    for parsed in parse_all(lines, datetime.now(UTC)):
        if isinstance(parsed, InvalidLine):
            found.refuse(parsed)
        else:
            found.count(parsed)
    return found


async def produce(
    settings: Settings,
    lines: AsyncIterable[bytes] | Iterable[bytes],
    options: Options,
    progress: Callable[[Produced], None] = lambda _: None,
    tracer: Tracer | None = None,
) -> Produced:
    """Sends all lines; returns when the broker has acknowledged every record. With a tracer each record begins a trace.

    Raises: LinesInvalid at the first invalid line, unless they are to be skipped (what came before it is sent then);
    TopicMissing; BrokerUnavailable.
    """
    kafka = settings.kafka
    await require_topics(kafka, kafka.messages_topic)
    async with running_producer(kafka) as producer:
        sender = Sender(producer, kafka.messages_topic, options.rate, tracer or NoOpTracer())
        try:
            return await _send_all(sender, _each(lines), options, progress)
        except KafkaError as error:
            raise BrokerUnavailable(servers=kafka.bootstrap_servers, problem=str(error)) from error


async def _each(lines: AsyncIterable[bytes] | Iterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(lines, AsyncIterable):
        async for line in lines:
            yield line
    else:
        for line in lines:
            yield line


async def _send_all(
    sender: Sender, lines: AsyncIterator[bytes], options: Options, progress: Callable[[Produced], None]
) -> Produced:
    produced = Produced()
    started = time.monotonic()
    try:
        async for record in _records(lines, options, produced):
            await sender.send(record)
            produced.count(record)
            progress(produced)
    finally:
        await sender.finish()
    produced.seconds = time.monotonic() - started
    return produced


async def _records(lines: AsyncIterator[bytes], options: Options, produced: Produced) -> AsyncIterator[Outgoing]:
    interleaving = Interleaving(options.interleave)
    async for records in _valid(lines, options, produced):
        for record in interleaving.add(records):
            yield record
    for record in interleaving.rest():
        yield record
    if options.flush:
        for conversation_id in list(produced.conversation_ids):
            yield flush(conversation_id, datetime.now(UTC))


async def _valid(
    lines: AsyncIterator[bytes], options: Options, produced: Produced
) -> AsyncIterator[Iterable[Outgoing]]:
    number = 0
    async for line in lines:
        number += 1
        parsed = parse_numbered(number, line, datetime.now(UTC))
        if not isinstance(parsed, InvalidLine):
            yield parsed
            continue
        produced.refuse(parsed)
        if not options.skip_invalid:
            raise LinesInvalid(produced.first_invalid, produced.invalid)
