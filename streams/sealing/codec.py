"""Sealed texts, and the wrapped keys that open them. Pure: no store, no clock; only new keys are random.

A text is sealed with AES-256-GCM. Its nonce is an HMAC-SHA256 of what it is bound to and of the text itself, cut to 96
bits, as in SIV (RFC 5297): a batch that is run again writes the same bytes. Two texts have one nonce only if they are
the same text of the same place, or by collision: at 2³² texts under one key that has a probability of 2⁻³³. Whoever
reads sealed texts learns from equal ones that a record was repeated, and from every one its length.
"""

import hmac
import os
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from afterword.streams.errors import AfterwordError, SealBroken
from afterword.streams.stores.user_keys import KeyOwner, WrappedKey

KEY_BYTES = 32
ID_BYTES = 16
NONCE_BYTES = 12
TAG_BYTES = 16
COUNT_BYTES = 2
VERSION = b"\x01"
HEAD = len(VERSION) + COUNT_BYTES
MOST_KEYS = 2 ** (8 * COUNT_BYTES) - 1
PURPOSE = b"afterword sealing 1"


class KeyNotUnwrapped(AfterwordError):
    """a user's key in MongoDB can be unwrapped by no key of AFTERWORD_CRYPTO__KEY: one that was there is missing"""


@dataclass(frozen=True)
class UserKey:
    """A user's key, as it is in memory."""

    key_id: bytes
    secret: bytes = field(repr=False)

    @cached_property
    def cipher(self) -> "Cipher":
        """The cipher of this key alone."""
        return Cipher([self])


class Cipher:
    """Seals and opens under the keys of one or more users; whoever lacks one of them can do neither."""

    def __init__(self, keys: Iterable[UserKey]) -> None:
        """`keys`: at least one; their order does not matter. Raises: ValueError for more than MOST_KEYS."""
        ordered = sorted({key.key_id: key for key in keys}.values(), key=lambda key: key.key_id)
        if not 0 < len(ordered) <= MOST_KEYS:
            raise ValueError(f"{len(ordered)} keys")
        ids = b"".join(key.key_id for key in ordered)
        self._head = VERSION + len(ordered).to_bytes(COUNT_BYTES) + ids
        derived = HKDF(SHA256(), 2 * KEY_BYTES, None, PURPOSE + ids).derive(b"".join(key.secret for key in ordered))
        self._aead, self._nonce_key = AESGCM(derived[:KEY_BYTES]), derived[KEY_BYTES:]

    def seal(self, text: bytes, place: bytes) -> bytes:
        """`place`: what the text is bound to, see `place_of_text`."""
        bound = self._head + len(place).to_bytes(4) + place
        nonce = hmac.digest(self._nonce_key, bound + text, sha256)[:NONCE_BYTES]
        return self._head + nonce + self._aead.encrypt(nonce, text, bound)

    def open(self, sealed: bytes, place: bytes) -> bytes:
        """Raises: SealBroken."""
        head = len(self._head)
        bound = self._head + len(place).to_bytes(4) + place
        start = head + NONCE_BYTES
        if sealed[:head] != self._head or len(sealed) < start + TAG_BYTES:
            raise SealBroken
        try:
            return self._aead.decrypt(sealed[head:start], sealed[start:], bound)
        except InvalidTag:
            raise SealBroken from None


def key_ids(sealed: bytes) -> tuple[bytes, ...]:
    """Ids of the keys that open a sealed text. Raises: SealBroken."""
    count = int.from_bytes(sealed[len(VERSION) : HEAD])
    ids = sealed[HEAD : HEAD + count * ID_BYTES]
    if sealed[: len(VERSION)] != VERSION or not count or len(ids) < count * ID_BYTES:
        raise SealBroken
    return tuple(ids[at : at + ID_BYTES] for at in range(0, len(ids), ID_BYTES))


def place_of_text(kind: str, tenant_id: str | None, *ids: str) -> bytes:
    """Place that a sealed text is bound to: opened anywhere else it is broken."""
    return orjson.dumps([kind, tenant_id, *ids])


def as_text(sealed: bytes) -> str:
    return b64encode(sealed).decode()


def from_text(text: str) -> bytes:
    """Raises: SealBroken."""
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise SealBroken from None


def digest_of_owner(owner: KeyOwner) -> str:
    """Digest, in hexadecimal, by which a user's keys are found. A key that is destroyed has none any more."""
    return sha256(orjson.dumps(list(owner))).hexdigest()


class WrappingKeys:
    """The keys of the setting: the first wraps, all unwrap."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        self._by_id = {_wrapping_id(secret): AESGCM(secret) for secret in secrets}
        self.first = next(iter(self._by_id))

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(self._by_id)

    def new_key(self, owner: str) -> WrappedKey:
        """A key of a user that nothing was sealed with yet."""
        return self.wrapped(UserKey(os.urandom(ID_BYTES), os.urandom(KEY_BYTES)), owner)

    def wrapped(self, key: UserKey, owner: str) -> WrappedKey:
        nonce = os.urandom(NONCE_BYTES)
        sealed = self._by_id[self.first].encrypt(nonce, key.secret, _bound(key.key_id, owner))
        return WrappedKey(key.key_id, owner, nonce + sealed, self.first)

    def unwrapped(self, stored: WrappedKey) -> UserKey:
        """Raises: KeyNotUnwrapped."""
        aead = self._by_id.get(stored.wrapped_by)
        if aead is None:
            raise KeyNotUnwrapped
        nonce, sealed = stored.wrapped[:NONCE_BYTES], stored.wrapped[NONCE_BYTES:]
        try:
            return UserKey(stored.key_id, aead.decrypt(nonce, sealed, _bound(stored.key_id, stored.owner)))
        except (InvalidTag, ValueError):
            raise KeyNotUnwrapped from None


def _bound(key_id: bytes, owner: str) -> bytes:
    return PURPOSE + key_id + owner.encode()


def _wrapping_id(secret: bytes) -> str:
    """Id of a wrapping key, which says nothing about it."""
    return hmac.digest(secret, PURPOSE + b" id", sha256)[:8].hex()
