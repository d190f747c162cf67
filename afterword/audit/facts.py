"""What an audit looks at: plain data, read from topics and stores, or made up by a test.

Nothing of a message's content is kept. A message is known by the digest of its `message_key`, a content and a list of
ids by theirs.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from afterword.schemas.ids import episode_id, message_key

DIGEST_BYTES = 16
"""128 bits: no two of a billion messages share one by chance."""


class Position(NamedTuple):
    """Where a record is, in a topic that goes without saying."""

    partition: int
    offset: int


class Pending(NamedTuple):
    """A message that waits in the segmenter's state."""

    position: Position
    """In `messages`."""
    scope: str
    """What it is numbered with, as `scope_name` says it."""


class Flush(NamedTuple):
    """A `conversation.flush` that names an agent."""

    position: Position
    conversation_id: str
    agent_id: str


class Produced(NamedTuple):
    """A message on `messages`."""

    position: Position
    conversation_id: str
    message: bytes
    content: bytes
    skipped: bool = False
    """Its `skip_summarization`."""
    agent_id: str | None = None


class Core(NamedTuple):
    """A message in the core of an episode."""

    message: bytes
    content: bytes


class Closed(NamedTuple):
    """A record of `episode.closed`."""

    position: Position
    episode_id: str
    revision: int
    conversation_id: str
    ordinal: int
    fingerprint: str
    recomputed: str
    """The fingerprint of the messages that it carries."""
    core: tuple[Core, ...]
    message_ids: bytes
    """Digest of the core's ids in order."""
    first_offset: int = -1
    """In `messages`, of its first core message."""
    last_offset: int = -1

    @property
    def scope(self) -> str:
        return self.episode_id.rpartition(":")[0]


class Announced(NamedTuple):
    """A record of `summary.created`."""

    event_id: str
    episode_id: str
    revision: int
    event: bytes
    """Digest of the whole event."""
    message_ids: bytes
    episode_revision: int | None = None
    supersedes: str | None = None

    @property
    def made_from(self) -> int:
        """The revision of its `episode.closed`."""
        return self.episode_revision or self.revision


class Stored(NamedTuple):
    """An episode in MongoDB."""

    revision: int
    """Of the `episode.closed` that its summary was made from."""
    fingerprint: str


class Archived(NamedTuple):
    """A message's document in MongoDB."""

    episode_id: str | None
    archived: bool
    """False while only its `episode_id` is there."""


@dataclass
class Facts:
    """One look at topics, groups and stores.

    They are not read at one instant. Whoever reads them takes the groups' offsets first, then the segmenter's state,
    then `episode.closed`, then `summary.created`, then the stores: a message can only move on in this direction, so
    that work under way never looks like a loss.
    """

    produced: list[Produced] = field(default_factory=list)
    """In the order of their partitions."""
    flushes: int = 0
    flushed_agents: list[Flush] = field(default_factory=list)
    """In the order of their partitions."""
    refused: set[Position] = field(default_factory=set)
    """Records of `messages` that cannot be taken."""
    consumed: dict[int, int] = field(default_factory=dict)
    """By partition of `messages`: the segmenter's committed offset."""
    archived_to: dict[int, int] = field(default_factory=dict)
    """The archiver's."""
    dead: set[Position] = field(default_factory=set)
    """Records of `messages` that have a dead letter."""
    pending: set[Pending] = field(default_factory=set)
    """Messages that wait in the segmenter's state for their episode to close."""
    handed_over: set[Position] = field(default_factory=set)
    """Messages that waited for an agent when the state was first looked at, and not any more a moment later."""
    closed: list[Closed] = field(default_factory=list)
    """Every committed record, in the order of its partition."""
    unreadable: set[Position] = field(default_factory=set)
    """Records of `episode.closed` that are no episode."""
    summarized_to: dict[int, int] = field(default_factory=dict)
    """By partition of `episode.closed`: the summarizer's committed offset."""
    dead_episodes: set[Position] = field(default_factory=set)
    announced: list[Announced] = field(default_factory=list)
    unreadable_announcements: int = 0
    stored: dict[str, Stored] = field(default_factory=dict)
    messages: dict[bytes, Archived] = field(default_factory=dict)
    """Documents of messages, by digest."""
    indexed: set[str] | None = None
    """Episodes that have a point; None when the index could not be looked at."""
    dedupe_window: int = 1000
    max_agents: int | None = None
    """With `scope = agent`: how many are active at a time."""
    quiet: bool = True
    """Whether nothing was consumed or closed during the look."""
    truncated: set[str] = field(default_factory=set)
    """Topics whose oldest records are gone."""
    notes: list[str] = field(default_factory=list)


def scope_name(conversation_id: str, agent_id: str | None = None) -> str:
    """What the ids of all its episodes begin with."""
    return episode_id(conversation_id, 0, agent_id).rpartition(":")[0]


def digest(text: str) -> bytes:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).digest()


def digest_of_message(conversation_id: str, message_id: str) -> bytes:
    return digest(message_key(conversation_id, message_id))


def digest_of_all(ids: Iterable[str]) -> bytes:
    """Of ids in their order; no two lists have the same one."""
    return digest("".join(f"{len(i)}:{i}" for i in ids))
