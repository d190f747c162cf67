"""Reads, checks and sends lines of JSON to the topic `messages`, for `afterword produce`."""

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import BinaryIO

from opentelemetry.trace import Tracer

from afterword.schemas import ConversationFlush, InputEvent, InvalidRecord, decode_input
from afterword.schemas.base import mended
from afterword.schemas.messages import CONVERSATION_FLUSH, MESSAGE_CREATED
from afterword.schemas.records import ProducerRecord, json_object, to_record
from afterword.streams.errors import AfterwordError
from afterword.streams.settings import Settings
from afterword.writing.producer import Producer

SOURCE = "afterword/produce"
CHUNK_BYTES = 256 * 1024
INVALID_LINES_NAMED = 3
MOST_LINE_BYTES = 16 * 2**20
"""A message has at most 700,000 bytes, but white space and escapes may make its line much longer."""
TOO_LARGE = f"too_large: more than {MOST_LINE_BYTES >> 20} MiB"


class InvalidLine(AfterwordError):
    """line {number}: {problem}"""

    number: int
    problem: object


class StoppedAtLine(InvalidLine):
    """line {number}: {problem}; {sent} messages, edits, deletions and flushes before it were sent"""


class LinesInvalid(AfterwordError):
    """nothing was sent, because lines are invalid ({found}): {first}"""


@dataclass
class Produced:
    """Counts of what was sent and acknowledged."""

    messages: int = 0
    flushes: int = 0
    amendments: int = 0
    """Number of edits and deletions."""
    seconds: float = 0.0
    conversation_ids: dict[str, str | None] = field(default_factory=dict)
    """Conversations, with the tenant of their first message."""

    def count(self, record: ProducerRecord) -> None:
        if record.event_type == MESSAGE_CREATED:
            self.messages += 1
            self.conversation_ids.setdefault(record.conversation_id, record.tenant_id)
        elif record.event_type == CONVERSATION_FLUSH:
            self.flushes += 1
        else:
            self.amendments += 1


def check_lines(lines: Iterable[bytes]) -> Produced:
    """Count what sending these lines would send, without sending anything. Raises: LinesInvalid."""
    counts, now = Produced(), datetime.now(UTC)
    invalid, first = 0, list[str]()
    for number, line in enumerate(lines, start=1):
        try:
            if record := parse_numbered(number, line, now):
                counts.count(record)
        except InvalidLine as error:
            invalid += 1
            if invalid <= INVALID_LINES_NAMED:
                first.append(str(error))
    if invalid:
        raise LinesInvalid(found=invalid, first="; ".join(first))
    return counts


async def produce(
    settings: Settings,
    lines: AsyncIterable[bytes] | Iterable[bytes],
    progress: Callable[[Produced], None] = lambda _: None,
    *,
    rate: float | None = None,
    flush: bool = False,
    tracer: Tracer | None = None,
) -> Produced:
    """Send all lines, and return once the broker has acknowledged every record.

    `rate` limits the records per second, and `flush` closes each conversation's pending messages at the end. With a
    tracer, each record begins a trace. Raises: StoppedAtLine, once the lines before it are sent;
    TopicMissing; BrokerUnavailable.
    """
    produced = Produced()

    async def events() -> AsyncIterator[ProducerRecord | ConversationFlush]:
        number = 0
        async for line in _each(lines):
            number += 1
            if record := parse_numbered(number, line, datetime.now(UTC)):
                produced.count(record)
                yield record
                progress(produced)
        for conversation_id, tenant_id in produced.conversation_ids.items() if flush else ():
            produced.flushes += 1
            yield ConversationFlush(conversation_id=conversation_id, tenant_id=tenant_id, reason="end of the lines")
            progress(produced)

    async with Producer.from_settings(settings, source=SOURCE, tracer=tracer) as producer:
        started = time.monotonic()
        try:
            await send_at_rate(producer, events(), rate)
        except InvalidLine as error:
            sent = produced.messages + produced.amendments + produced.flushes
            raise StoppedAtLine(number=error.number, problem=error.problem, sent=sent) from None
        produced.seconds = time.monotonic() - started
    return produced


async def send_at_rate(
    producer: Producer, events: AsyncIterable[InputEvent | ProducerRecord], rate: float | None = None
) -> None:
    """Send events in order, at most `rate` per second, and return once the broker has acknowledged them all.

    Raises: BrokerUnavailable, and whatever `events` raises; the events before that are sent.
    """
    started, number = time.monotonic(), 0
    try:
        async for event in events:
            if rate and (ahead := started + number / rate - time.monotonic()) > 0:
                await asyncio.sleep(ahead)
            await producer.enqueue(event)
            number += 1
    finally:
        await producer.drain()


async def _each(lines: AsyncIterable[bytes] | Iterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(lines, AsyncIterable):
        async for line in lines:
            yield line
    else:
        for line in lines:
            yield line


def parse_numbered(number: int, line: bytes, now: datetime) -> ProducerRecord | None:
    """Parse one line; None if it is blank. Raises: InvalidLine, which never repeats the line's content."""
    if len(line) > MOST_LINE_BYTES:
        raise InvalidLine(number=number, problem=TOO_LARGE)
    try:
        return parse(line, now) if line.strip() else None
    except InvalidRecord as error:
        raise InvalidLine(number=number, problem=error) from None


def parse(line: bytes, now: datetime) -> ProducerRecord:
    """Parse one line, an event of `messages` as in the contract.

    `now` is the time of a message without `sent_at`. A message is sent as it was written, so that fields known only to
    newer consumers reach them.

    Raises: InvalidRecord.
    """
    written = mended(line.strip())
    conversation_id = json_object(written).get("conversation_id")
    key = conversation_id.encode(errors="replace") if isinstance(conversation_id, str) else None
    event = decode_input(key, written, (), int(now.timestamp() * 1000))
    return to_record(event, now, SOURCE, value=written)


def is_regular(file: BinaryIO) -> bool:
    """Return whether the file can be read twice, first to check it and then to send it."""
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)


def bounded_lines(file: BinaryIO, most_bytes: int) -> Iterator[bytes]:
    """Yield the lines of a file, each truncated just above a limit."""
    while line := file.readline(most_bytes + 1):
        yield line
        while line and not line.endswith(b"\n"):
            line = file.readline(CHUNK_BYTES)


async def read_lines(file: BinaryIO) -> AsyncIterator[bytes]:
    """Yield lines of a file, or of a pipe or terminal as they arrive, without blocking the event loop.

    A pipe is closed afterwards. An oversized line of a file is truncated just above MOST_LINE_BYTES. Raises: OSError,
    InvalidLine for an oversized line of a pipe.
    """
    if is_regular(file):
        for line in bounded_lines(file, MOST_LINE_BYTES):
            yield line
        return
    reader, loop = asyncio.StreamReader(MOST_LINE_BYTES), asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    number = 1
    try:
        while line := await reader.readline():
            yield line
            number += 1
    except ValueError:  # the line is longer than the reader's limit
        raise InvalidLine(number=number, problem=TOO_LARGE) from None
    finally:
        transport.close()
