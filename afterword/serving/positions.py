"""Ids of streamed events: the place in every partition up to which a client has seen everything."""

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence

from aiokafka import TopicPartition

from afterword.streams.errors import AfterwordError

MOST_CHARACTERS = 8000
MOST_PARTITIONS = 1000
CONTINUED, SEVEN_BITS = 0x80, 0x7F
MOST_OFFSET_BITS = 63


class PositionInvalid(AfterwordError, ValueError):
    """Last-Event-ID is no id of an event of this server"""


def position_id(topics: Sequence[str], offsets: Mapping[TopicPartition, int]) -> str:
    """Encode the offset of every partition: for each topic the number of its partitions, then their offsets.

    Numbers are LEB128, all of it base64url without padding. A partition that is not named has the offset 0.
    """
    content = bytearray()
    for topic in topics:
        count = max((tp.partition + 1 for tp in offsets if tp.topic == topic), default=0)
        for number in (count, *(offsets.get(TopicPartition(topic, n), 0) for n in range(count))):
            content.extend(_encoded(number))
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def offsets_of(topics: Sequence[str], position: str) -> dict[TopicPartition, int]:
    """Decode a `position_id`. Raises: PositionInvalid."""
    if len(position) > MOST_CHARACTERS:
        raise PositionInvalid
    try:
        numbers = _decoded(base64.b64decode(position + "=" * (-len(position) % 4), altchars=b"-_", validate=True))
        found = {
            TopicPartition(topic, partition): next(numbers)
            for topic in topics
            for partition in range(_count(next(numbers)))
        }
    except (binascii.Error, ValueError, StopIteration, RuntimeError):
        raise PositionInvalid from None
    if next(numbers, None) is not None:
        raise PositionInvalid
    return found


def _count(number: int) -> int:
    if number > MOST_PARTITIONS:
        raise ValueError
    return number


def _encoded(number: int) -> Iterator[int]:
    while number > SEVEN_BITS:
        yield number & SEVEN_BITS | CONTINUED
        number >>= 7
    yield number


def _decoded(content: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in content:
        number |= (byte & SEVEN_BITS) << shift
        shift += 7
        if number >> MOST_OFFSET_BITS:
            raise PositionInvalid
        if not byte & CONTINUED:
            yield number
            number = shift = 0
    if shift:
        raise PositionInvalid
