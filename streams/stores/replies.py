"""The cache of LLM answers: its record and its protocol."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from afterword.schemas import Usage


class ReplyOrigin(NamedTuple):
    """The episode that an LLM is asked about: what it says may be from this episode and from any before it."""

    scope: str
    """Its `scope_id`."""
    ordinal: int


@dataclass(frozen=True)
class KeptReply:
    """A cached answer: an LLM's reply to one request."""

    text: str
    usage: Usage
    """The usage of the call that returned it."""
    cut_off: bool = False
    refused: bool = False
    origin: ReplyOrigin | None = None
    """None: the question was about no episode."""


class ReplyCache(Protocol):
    """Replies by digests of their requests. Losing it costs LLM calls only. All methods raise StoreUnavailable."""

    async def get(self, key: str) -> KeptReply | None:
        """The reply; None if there is none or it has expired."""
        ...

    async def put(self, key: str, reply: KeptReply, expires_at: datetime) -> None:
        """Store a reply; the last one for a key replaces the others."""
        ...

    async def forget(self, scope: str, ordinal: int) -> None:
        """Drop the replies about episodes of the scope from this ordinal on."""
        ...
