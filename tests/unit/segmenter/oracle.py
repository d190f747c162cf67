"""The rules once more, as naively as they can be written: whole lists in memory, no rows, no counters.

It shares no code with the segmenter but the schemas, so that the two can only agree by being right.
"""

from dataclasses import dataclass, field

import orjson

from schemas import ConversationFlush, InvalidRecord, MessageCreated, decode_input
from streams.settings import Episodes
from tests.unit.segmenter.chat import Sent

EPISODE_BYTES = 700_000
OVERLAP_BYTES = 100_000
SHARED = ("id", "role", "content", "sent_at", "user_id", "agent_id", "sentiment", "flows", "tools")


@dataclass
class Taken:
    message: MessageCreated
    stamped_ms: int

    @property
    def json_bytes(self) -> int:
        return len(self.message.model_dump_json(include=set(SHARED)).encode())

    @property
    def share(self) -> int:
        repeated = [self.message.user_id, self.message.flows, self.message.tools]
        return self.json_bytes + len(orjson.dumps(repeated))


@dataclass
class Talk:
    taken: list[Taken] = field(default_factory=list)
    sealed: list[tuple[list[Taken], str]] = field(default_factory=list)
    open: list[Taken] = field(default_factory=list)
    emitted: list[list[Taken]] = field(default_factory=list)
    heard_ms: int = 0

    @property
    def pending(self) -> list[Taken]:
        return [t for episode, _ in self.sealed for t in episode] + self.open


@dataclass
class Oracle:
    limits: Episodes
    talks: dict[str, Talk] = field(default_factory=dict)
    found: list[tuple[str, int, str, tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)
    """Conversation, ordinal, reason, ids of the core, ids of the overlap."""
    duplicates: int = 0
    refused: int = 0

    def hear(self, record: Sent, now_ms: int) -> None:
        try:
            event = decode_input(record.key, record.value, record.headers, record.timestamp)
        except InvalidRecord:
            self.refused += 1
            return
        if isinstance(event, ConversationFlush):
            self.close_all(event.conversation_id, "flush")
        elif not event.skip_summarization:
            self.take(event, record.timestamp, now_ms)

    def wait(self, now_ms: int) -> None:
        for name, talk in self.talks.items():
            if talk.pending and talk.heard_ms + self.limits.idle_seconds * 1000 <= now_ms:
                self.close_all(name, "idle")

    def take(self, message: MessageCreated, stamped_ms: int, now_ms: int) -> None:
        talk = self.talks.get(message.conversation_id, Talk())
        if talk.taken and talk.taken[0].message.tenant_id != message.tenant_id:
            self.refused += 1
            return
        remembered = talk.taken[-self.limits.dedupe_window :] + talk.pending
        if message.id in [t.message.id for t in remembered]:
            self.duplicates += 1
            return
        self.talks[message.conversation_id] = talk
        self.place(talk, Taken(message, stamped_ms))
        talk.heard_ms = now_ms

    def place(self, talk: Talk, new: Taken) -> None:
        if talk.pending and self.silent(talk.taken[-1], new):
            self.close_all(new.message.conversation_id, "idle")
        elif new.message.is_continuation is False and len(talk.open) >= self.limits.min_episode_size:
            self.seal(talk, "topic_shift")
        elif talk.open and self.too_large([*talk.open, new]):
            self.seal(talk, "max_size")
        talk.taken.append(new)
        talk.open.append(new)
        if len(talk.open) == self.limits.max_episode_size:
            self.seal(talk, "max_size")
        self.maybe_trigger(new.message.conversation_id, talk)

    def maybe_trigger(self, name: str, talk: Talk) -> None:
        tokens = sum(len(t.message.content) for t in talk.pending)
        if len(talk.pending) < self.limits.trigger and tokens < self.limits.trigger_tokens:
            return
        if len(talk.open) >= self.limits.min_episode_size:
            self.seal(talk, "trigger")
        self.emit_sealed(name, talk)

    def silent(self, last: Taken, new: Taken) -> bool:
        sent = (new.message.sent_at - last.message.sent_at).total_seconds()
        return sent > self.limits.idle_seconds or (new.stamped_ms - last.stamped_ms) / 1000 > self.limits.idle_seconds

    def too_large(self, episode: list[Taken]) -> bool:
        tokens = sum(len(t.message.content) for t in episode)
        return tokens > self.limits.max_episode_tokens or sum(t.share for t in episode) > EPISODE_BYTES

    def seal(self, talk: Talk, reason: str) -> None:
        if talk.open:
            talk.sealed.append((talk.open, reason))
            talk.open = []

    def close_all(self, name: str, reason: str) -> None:
        if talk := self.talks.get(name):
            self.seal(talk, reason)
            self.emit_sealed(name, talk)

    def emit_sealed(self, name: str, talk: Talk) -> None:
        for core, reason in talk.sealed:
            overlap = self.overlap(talk.emitted[-1]) if talk.emitted else []
            talk.emitted.append(core)
            self.found.append((name, len(talk.emitted), reason, names(core), names(overlap)))
        talk.sealed = []

    def overlap(self, before: list[Taken]) -> list[Taken]:
        kept = before[max(0, len(before) - self.limits.overlap) :]
        while sum(t.json_bytes + 1 for t in kept) > OVERLAP_BYTES:
            kept = kept[1:]
        return kept


def names(taken: list[Taken]) -> tuple[str, ...]:
    return tuple(t.message.id for t in taken)
