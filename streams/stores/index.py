"""What every index of episodes offers, and which texts of an episode it holds."""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Protocol

from schemas import SummaryCreated

Dense = Sequence[float]


class EpisodeIndex(Protocol):
    """Writing an episode again changes nothing, and a lower revision never replaces a higher one.

    Methods that reach a server raise StoreUnavailable.
    """

    async def put(self, summary: SummaryCreated, raw_text: str, dense: Dense | None = None) -> None:
        """Indexes an episode by its summary and its messages' text; `dense` is the vector of `summary_text`."""
        ...

    async def has(self, episode_ids: Sequence[str]) -> set[str]:
        """Those of the ids that are indexed."""
        ...

    def all_ids(self) -> AsyncIterator[str]:
        """Every `episode_id` that is indexed, in no particular order."""
        ...

    async def ping(self) -> None: ...

    async def close(self) -> None: ...


def summary_text(summary: SummaryCreated) -> str:
    """The text of a summary that is searched."""
    return f"{summary.title}\n{summary.short_summary}\n{summary.long_summary}"


def raw_text(contents: Iterable[str]) -> str:
    """The text of an episode's core messages that is searched, from the event or from the archive alike."""
    return "\n".join(contents)
