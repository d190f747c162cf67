"""Keys of the rows. No two different conversations or messages share one, whatever characters their ids have."""

from hashlib import blake2b
from typing import Literal, NamedTuple

from afterword.streams.errors import StateUnreadable

BODY = b"m"
SEEN = b"i"
AGENT = b"\xff"
"""Between the ids of a conversation and an agent: a byte that UTF-8 never has."""
NOBODY = ""
"""Stands for an agent's id where no agent is active: what names none waits there for the first one."""
LENGTH_BYTES = 2
SEQ_BYTES = 8
DIGEST_BYTES = 16
"""128 bits: two ids of one conversation collide once in 2⁶⁴ messages."""


class Scope(NamedTuple):
    """What is pending and numbered together: a conversation, or an agent's part of one."""

    conversation_id: str
    agent_id: str | None = None

    @property
    def named_agent(self) -> str | None:
        """As episodes carry it."""
        return self.agent_id or None


class Key(NamedTuple):
    """A parsed key of the table of messages."""

    scope: Scope
    kind: Literal["body", "seen"]
    seq: int | None
    """Of a body."""
    digest: bytes | None
    """Of an id that was seen."""


def record_key(conversation_id: str) -> bytes:
    """Of the records on both topics."""
    return conversation_id.encode()


def scope_key(scope: Scope) -> bytes:
    """In the table of conversations. Of a conversation as a whole it is the records' key."""
    agent = b"" if scope.agent_id is None else AGENT + scope.agent_id.encode()
    return scope.conversation_id.encode() + agent


def parse_scope(key: bytes) -> Scope:
    """What a key of the table of conversations stands for."""
    conversation, found, agent = key.partition(AGENT)
    return Scope(conversation.decode(), agent.decode() if found else None)


def prefix(scope: Scope) -> bytes:
    """What the keys of all its messages begin with: length (2 bytes, big-endian) and key of the scope."""
    name = scope_key(scope)
    return len(name).to_bytes(LENGTH_BYTES) + name


def body_key(prefix: bytes, seq: int) -> bytes:
    """Ordered as the messages are."""
    return prefix + BODY + seq.to_bytes(SEQ_BYTES)


def seen_key(prefix: bytes, digest: bytes) -> bytes:
    """`digest`: of the message's id."""
    return prefix + SEEN + digest


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
        return Key(parse_scope(name), "body", int.from_bytes(rest), None)
    if kind == SEEN and len(rest) == DIGEST_BYTES:
        return Key(parse_scope(name), "seen", None, rest)
    raise StateUnreadable(problem="a row of the messages has a key of another form")
