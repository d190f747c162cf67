"""What LLMs have answered, kept for a while so that nothing is asked twice."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from afterword.schemas import Usage


@dataclass(frozen=True)
class KeptReply:
    """An LLM's answer to one question."""

    text: str
    usage: Usage
    """What it cost when it was made."""
    cut_off: bool = False
    refused: bool = False


class ReplyCache(Protocol):
    """Keys are digests of questions. A loss of it costs LLM calls and nothing else.

    All methods raise StoreUnavailable.
    """

    async def get(self, key: str) -> KeptReply | None:
        """None also when it has expired, whether it is deleted by then or not."""
        ...

    async def put(self, key: str, reply: KeptReply, expires_at: datetime) -> None:
        """Of several for one key the last one stays."""
        ...

    async def forget(self, keys: Sequence[str]) -> None: ...
