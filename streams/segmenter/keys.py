"""Keys of the rows. No two different conversations or messages share one, whatever characters their ids have."""

from hashlib import blake2b
from typing import Literal, NamedTuple

from streams.errors import StateUnreadable

BODY = b"m"
SEEN = b"i"
LENGTH_BYTES = 2
SEQ_BYTES = 8
DIGEST_BYTES = 16
"""128 bits: two ids of one conversation collide once in 2⁶⁴ messages."""


class Key(NamedTuple):
    """A parsed key of the table of messages."""

    conversation_id: str
    kind: Literal["body", "seen"]
    seq: int | None
    """Of a body."""
    digest: bytes | None
    """Of an id that was seen."""


def conversation_key(conversation_id: str) -> bytes:
    """In the table of conversations; also the key of the records on both topics."""
    return conversation_id.encode()


def prefix(conversation_id: str) -> bytes:
    """What the keys of all messages of a conversation begin with: length (2 bytes, big-endian) and UTF-8."""
    name = conversation_id.encode()
    return len(name).to_bytes(LENGTH_BYTES) + name


def body_key(conversation: bytes, seq: int) -> bytes:
    """`conversation`: its prefix. Ordered as the messages are."""
    return conversation + BODY + seq.to_bytes(SEQ_BYTES)


def seen_key(conversation: bytes, digest: bytes) -> bytes:
    """`conversation`: its prefix; `digest`: of the message's id."""
    return conversation + SEEN + digest


def id_digest(message_id: str) -> bytes:
    return blake2b(message_id.encode(), digest_size=DIGEST_BYTES).digest()


def encode_seq(seq: int) -> bytes:
    """The value of a row of an id that was seen."""
    return seq.to_bytes(SEQ_BYTES)


def decode_seq(value: bytes) -> int:
    return int.from_bytes(value)


def parse_key(key: bytes) -> Key:
    """What a key of the table of messages stands for. Raises: StateUnreadable."""
    end = LENGTH_BYTES + int.from_bytes(key[:LENGTH_BYTES])
    name, kind, rest = key[LENGTH_BYTES:end], key[end : end + 1], key[end + 1 :]
    if kind == BODY and len(rest) == SEQ_BYTES:
        return Key(name.decode(), "body", int.from_bytes(rest), None)
    if kind == SEEN and len(rest) == DIGEST_BYTES:
        return Key(name.decode(), "seen", None, rest)
    raise StateUnreadable(problem="a row of the messages has a key of another form")
