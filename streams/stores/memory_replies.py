"""An LLM's answers in memory, for tests and for trying things out."""

from collections.abc import Sequence
from datetime import UTC, datetime

from afterword.streams.stores.replies import KeptReply


class MemoryReplies:
    """A ReplyCache."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[KeptReply, datetime]] = {}

    async def get(self, key: str) -> KeptReply | None:
        reply, expires_at = self.kept.get(key, (None, datetime.max.replace(tzinfo=UTC)))
        return reply if expires_at > datetime.now(UTC) else None

    async def put(self, key: str, reply: KeptReply, expires_at: datetime) -> None:
        self.kept[key] = reply, expires_at

    async def forget(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.kept.pop(key, None)
