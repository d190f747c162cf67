"""A second, naive implementation of the rules, with whole lists in memory instead of rows and counters.

It shares only the schemas and the settings with the segmenter, so the two agree only if both are right.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from pydantic import ValidationError

from afterword.schemas import (
    ConversationAssigned,
    ConversationDeleted,
    ConversationFlush,
    InvalidRecord,
    MessageCreated,
    MessageDeleted,
    MessageEdited,
    decode_input,
)
from afterword.schemas.episodes import CARRIED
from afterword.streams.settings import Episodes
from tests.unit.segmenter.chat import NOON, Sent

EPISODE_BYTES = 700_000
OVERLAP_BYTES = 100_000
PENDING_MESSAGES, PENDING_BYTES = 1000, 2_000_000
OVERRIDABLE = {
    "trigger", "trigger_tokens", "auto_summarize", "min_episode_size", "max_episode_size", "max_episode_tokens",
    "idle_seconds",
}  # fmt: skip

Said = tuple[str, str]
Name = tuple[str, str | None]
"""Conversation and agent. None stands for the conversation as a whole, and "" for the first agent that will be named.
"""


@dataclass
class Taken:
    message: MessageCreated
    stamped_ms: int
    gone: bool = False
    """True once it was deleted, or is no longer to be summarized."""
    waited_to: float | None = None
    """The latest event time of the messages that waited for an agent together."""

    def amend(self, event: Any) -> None:
        changes = {name: getattr(event, name, None) for name in ("content", "flows", "tools")}
        self.message = self.message.model_copy(update={n: v for n, v in changes.items() if v is not None})
        if isinstance(event, MessageEdited) and "sentiment" in event.model_fields_set:
            self.message = self.message.model_copy(update={"sentiment": event.sentiment})
        self.gone = self.gone or isinstance(event, MessageDeleted) or bool(event.skip_summarization)

    @property
    def json_bytes(self) -> int:
        return len(self.message.model_dump_json(include=CARRIED).encode())

    @property
    def share(self) -> int:
        repeated = [self.message.user_id, self.message.flows, self.message.tools]
        return self.json_bytes + len(orjson.dumps(repeated))

    @property
    def sent(self) -> float:
        return self.message.sent_at.timestamp()

    @property
    def confirmed(self) -> float:
        """Return the time when it was sent, or recorded if that was earlier."""
        if self.waited_to is not None:
            return self.waited_to
        return min(self.sent, self.stamped_ms / 1000) if self.stamped_ms > 0 else self.sent


@dataclass
class Room:
    """A conversation: what is common to all of its talks."""

    limits: Episodes
    taken: list[Taken] = field(default_factory=list)
    told: dict[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)
    """Writer and content of each id's last record."""
    active: list[str] = field(default_factory=list)
    forgotten: int = 0
    """Number of messages at the start of `taken` whose ids are forgotten."""
    silent_ms: int | None = None
    """Wall-clock time of the last change; None if the conversation is forgotten."""


@dataclass
class Talk:
    """Messages that are numbered together."""

    taken: list[Taken] = field(default_factory=list)
    sealed: list[tuple[list[Taken], str]] = field(default_factory=list)
    open: list[Taken] = field(default_factory=list)
    before: list[Taken] = field(default_factory=list)
    """The previous episode, which provides the overlap."""
    ordinal: int = 0
    heard_ms: int = 0
    idle_seconds: float = 0
    since: float | None = None
    placed: int = 0
    """Number of messages that are pending or in an episode."""
    silent_ms: int | None = None
    """Wall-clock time of the last change; None if there was none, or the talk is forgotten."""

    @property
    def rows(self) -> list[Taken]:
        return [t for episode, _ in self.sealed for t in episode] + self.open

    @property
    def pending(self) -> list[Taken]:
        return living(self.rows)


@dataclass
class Oracle:
    limits: Episodes
    count_tokens: Callable[[str], int] = len
    max_pending: int = PENDING_MESSAGES
    rooms: dict[str, Room] = field(default_factory=dict)
    tenants: dict[str, str | None] = field(default_factory=dict)
    talks: dict[Name, Talk] = field(default_factory=lambda: defaultdict(Talk))
    found: list[tuple[Name, int, str, tuple[Said, ...], tuple[Said, ...]]] = field(default_factory=list)
    """Episodes: name, ordinal, reason, core and overlap."""
    amended: list[tuple[str, str | None]] = field(default_factory=list)
    """Conversation and message of each change that is passed on to the summarizer."""
    duplicates: int = 0
    changed_repeats: int = 0
    refused: int = 0
    now_ms: int = 0

    def hear(self, record: Sent, now_ms: int) -> None:
        self.now_ms = now_ms
        try:
            event = decode_input(record.key, record.value, record.headers, record.timestamp)
        except InvalidRecord:
            self.refused += 1
            return
        if isinstance(event, MessageCreated):
            if not event.skip_summarization:
                self.take(event, record.timestamp, now_ms)
            return
        if self.tenants.get(event.conversation_id, event.tenant_id) != event.tenant_id:
            self.refused += 1
        elif isinstance(event, ConversationFlush):
            self.flush(event.conversation_id, event.agent_id)
        elif isinstance(event, ConversationDeleted):
            self.clear(event.conversation_id)
        elif isinstance(event, ConversationAssigned):
            self.tenants[event.conversation_id] = event.tenant_id
            self.amended.append((event.conversation_id, None))
        else:
            self.amend(event)

    def reachable(self, conversation: str) -> list[Name]:
        if self.limits.scope == "conversation":
            return [(conversation, None)]
        everybody = self.rooms[conversation].active if conversation in self.rooms else []
        return [(conversation, each) for each in ["", *everybody]]

    def clear(self, conversation: str) -> None:
        for talk in (self.talks[name] for name in self.reachable(conversation)):
            talk.placed -= len(talk.pending)
            talk.sealed, talk.open, talk.before, talk.since = [], [], [], None
            self.touch(talk)
        if conversation in self.rooms:
            self.rooms[conversation].limits = self.limits
            self.rooms[conversation].active = []
        self.amended.append((conversation, None))

    def amend(self, event: MessageEdited | MessageDeleted) -> None:
        is_pending = False
        for name in self.reachable(event.conversation_id):
            talk = self.talks[name]
            waiting = len(talk.pending)
            for taken in [t for t in (*talk.before, *talk.rows) if t.message.id == event.id]:
                is_pending = is_pending or taken in talk.rows
                if not taken.gone:
                    taken.amend(event)
                    if taken in talk.rows:
                        self.touch(talk)
            talk.placed -= waiting - len(talk.pending)
            if waiting and not talk.pending:
                talk.sealed, talk.open = [], []
            elif waiting:
                self.emit_when_overfull(name, talk)
        is_shown = isinstance(event, MessageDeleted) or bool(event.changes.keys() - {"metadata"})
        if is_shown and (self.limits.scope == "agent" or not is_pending):
            self.amended.append((event.conversation_id, event.id))

    def touch(self, talk: Talk) -> None:
        talk.silent_ms = self.now_ms if talk.taken else None

    def wait(self, now_ms: int) -> None:
        """Check every conversation first, then its agents."""
        names = {*self.talks, *((conversation, None) for conversation in self.rooms)}
        for name in sorted(names, key=lambda name: (name[0], name[1] is not None, name[1])):
            self.expire(name, now_ms)

    def expire(self, name: Name, now_ms: int) -> bool:
        """Close or forget what has been silent for long enough; return whether there was something to do."""
        self.now_ms = now_ms
        room, talk = self.rooms.get(name[0]), self.talks.get(name, Talk())
        if talk.pending and talk.heard_ms + talk.idle_seconds * 1000 <= now_ms:
            self.close_all(name, "idle")
            return True
        is_root = room is not None and name[1] is None
        silent_ms = room.silent_ms if room and is_root and self.limits.scope == "agent" else talk.silent_ms
        long = round(self.limits.forget_after_days * 86_400_000)
        if talk.pending or silent_ms is None or not long or now_ms < silent_ms + long:
            return False
        if room and is_root and any(self.talks[other].pending for other in self.reachable(name[0])):
            room.silent_ms = now_ms
            return True
        talk.taken, talk.before, talk.since, talk.silent_ms = [], [], None, None
        if room and is_root:
            room.forgotten, room.active, room.limits, room.silent_ms = len(room.taken), [], self.limits, None
        return True

    def flush(self, conversation: str, agent: str | None) -> None:
        if self.limits.scope == "conversation":
            self.close_all((conversation, None), "flush")
        elif agent:
            self.close_all((conversation, agent), "flush")
            room = self.rooms.get(conversation)
            if room and agent in room.active:
                room.active.remove(agent)
        else:
            everybody = self.rooms[conversation].active if conversation in self.rooms else []
            for each in ["", *everybody]:
                self.close_all((conversation, each), "flush")

    def take(self, message: MessageCreated, stamped_ms: int, now_ms: int) -> None:
        name = message.conversation_id
        room = self.rooms.get(name, Room(self.limits))
        if name in self.rooms and self.tenants[name] != message.tenant_id:  # an assignment alone binds no message
            self.refused += 1
            return
        remembered = room.taken[room.forgotten :][-self.limits.dedupe_window :] + self.pending(name)
        if message.id in [t.message.id for t in remembered]:
            self.repeat(message, room)
            return
        limits = self.overridden(room, message)
        if limits is None:
            self.refused += 1
            return
        room.limits = limits
        room.silent_ms = now_ms
        self.rooms[name], self.tenants[name] = room, message.tenant_id
        new = Taken(message, stamped_ms)
        room.taken.append(new)
        room.told[message.id] = message.writer, message.content
        for talk_name in self.addressed(room, new, now_ms):
            self.place(talk_name, new, limits, now_ms)

    def repeat(self, message: MessageCreated, room: Room) -> None:
        writer, content = room.told[message.id]
        if (writer, content) == (message.writer, message.content):
            self.duplicates += 1
        elif writer != message.writer or self.limits.on_changed_repeat == "reject":
            self.refused += 1
        else:
            self.changed_repeats += 1
            room.told[message.id] = writer, message.content
            names = ("id", "conversation_id", "content", "metadata", "sentiment", "flows", "tools")
            self.amend(MessageEdited(**{name: getattr(message, name) for name in names}))

    def pending(self, conversation: str) -> list[Taken]:
        """Return the messages that are remembered beyond the window; with `scope = agent` there are none."""
        return self.talks[conversation, None].rows if self.limits.scope == "conversation" else []

    def overridden(self, room: Room, message: MessageCreated) -> Episodes | None:
        given: Any = message.metadata.get("afterword")
        if given is None:
            return room.limits
        if not isinstance(given, dict):
            return None
        if set(given) - OVERRIDABLE or len(orjson.dumps(given)) > 2000:
            return None
        if given.get("max_episode_size", 0) > self.max_pending:
            return None
        try:
            return Episodes.model_validate({**self.limits.model_dump(), **given}, strict=True)
        except ValidationError:
            return None

    def addressed(self, room: Room, new: Taken, now_ms: int) -> list[Name]:
        name, agent = new.message.conversation_id, new.message.agent_id
        if self.limits.scope == "conversation":
            return [(name, None)]
        if not agent:
            return [(name, each) for each in room.active or [""]]
        if not room.active:
            self.adopt(name, agent, new, room.limits, now_ms)
        room.active = [each for each in room.active if each != agent] + [agent]
        if len(room.active) > self.limits.max_agents:
            self.close_all((name, room.active.pop(0)), "idle")
        return [(name, agent)]

    def adopt(self, name: str, agent: str, new: Taken, limits: Episodes, now_ms: int) -> None:
        waiting = self.talks[name, ""]
        if waiting.pending and self.silent(waiting.taken, new, limits):
            self.close_all((name, ""), "idle")
        elif waiting.pending:
            stamped = max(w.stamped_ms for w in waiting.taken)
            confirmed = max(w.confirmed for w in waiting.taken)
            moved = [Taken(t.message, stamped, waited_to=confirmed) for t in waiting.pending]
            waiting.placed -= len(moved)
            waiting.sealed, waiting.open, waiting.before, waiting.since = [], [], [], None
            self.touch(waiting)
            for each in moved:
                self.place((name, agent), each, limits, now_ms)

    def place(self, name: Name, new: Taken, limits: Episodes, now_ms: int) -> None:
        talk, new = self.talks[name], replace(new)
        late = bool(talk.taken) and self.silent(talk.taken, new, limits)
        if talk.pending and late:
            self.close_all(name, "idle")
        elif self.shifts(new, limits) and len(living(talk.open)) >= limits.min_episode_size:
            self.seal(talk, "topic_shift")
        elif living(talk.open) and self.too_large([*living(talk.open), new], limits):
            self.seal(talk, "max_size")
        if talk.since is None or (late and not talk.pending):
            talk.since = new.sent
        talk.taken.append(new)
        self.touch(talk)
        talk.open.append(new)
        talk.placed += 1
        if len(living(talk.open)) >= limits.max_episode_size:
            self.seal(talk, "max_size")
        self.maybe_trigger(name, talk, limits)
        talk.heard_ms, talk.idle_seconds = now_ms, limits.idle_seconds

    def shifts(self, new: Taken, limits: Episodes) -> bool:
        return limits.topic_shift != "off" and new.message.is_continuation is False

    def maybe_trigger(self, name: Name, talk: Talk, limits: Episodes) -> None:
        if limits.auto_summarize and fires(trigger_of(limits), talk, self.count_tokens):
            if len(living(talk.open)) >= limits.min_episode_size:
                self.seal(talk, "trigger")
            self.emit_sealed(name, talk)
        self.emit_when_overfull(name, talk)

    def emit_when_overfull(self, name: Name, talk: Talk) -> None:
        many = len(talk.rows) >= self.max_pending
        if many or sum(t.share for t in talk.pending) >= PENDING_BYTES:
            self.emit_sealed(name, talk)

    def silent(self, before: list[Taken], new: Taken, limits: Episodes) -> bool:
        sent = new.confirmed - max(t.confirmed for t in before)
        recorded = new.stamped_ms - max(t.stamped_ms for t in before)
        return round(sent, 3) > limits.idle_seconds or recorded / 1000 > limits.idle_seconds

    def too_large(self, episode: list[Taken], limits: Episodes) -> bool:
        tokens = sum(self.count_tokens(t.message.content) for t in episode)
        return tokens > limits.max_episode_tokens or sum(t.share for t in episode) > EPISODE_BYTES

    def seal(self, talk: Talk, reason: str) -> None:
        if talk.open:
            talk.sealed.append((talk.open, reason))
            talk.open = []

    def close_all(self, name: Name, reason: str) -> None:
        if name in self.talks:
            self.seal(self.talks[name], reason)
            self.emit_sealed(name, self.talks[name])

    def emit_sealed(self, name: Name, talk: Talk) -> None:
        for rows, reason in talk.sealed:
            self.touch(talk)
            talk.since = talk.taken[-1].sent
            if core := living(rows):
                talk.ordinal += 1
                self.found.append((name, talk.ordinal, reason, said(core), said(self.overlap(talk.before))))
                talk.before = self.overlap(core)
        talk.sealed = []

    def overlap(self, before: list[Taken]) -> list[Taken]:
        kept = living(before)
        kept = kept[max(0, len(kept) - self.limits.overlap) :]
        while sum(t.json_bytes + 1 for t in kept) > OVERLAP_BYTES:
            kept = kept[1:]
        return kept


def trigger_of(limits: Episodes) -> Any:
    presets = {"default": 10, "high_frequency": {"turns": 20}, "long_conversation": {"turns": 50}}
    presets["memory_sensitive"] = {"events": 15}
    trigger = presets.get(limits.trigger, limits.trigger) if isinstance(limits.trigger, str) else limits.trigger
    if isinstance(trigger, int):
        return {"any": [{"messages": trigger}, {"tokens": limits.trigger_tokens}]}
    return trigger


def fires(trigger: Any, talk: Talk, count_tokens: Callable[[str], int]) -> bool:
    if isinstance(trigger, list):
        return all(fires(each, talk, count_tokens) for each in trigger)
    [(condition, value)] = trigger.items()
    if condition in ("any", "all"):
        return {"any": any, "all": all}[condition](fires(each, talk, count_tokens) for each in value)
    return MEASURES[condition](talk, [t.message for t in talk.pending], count_tokens) >= value


MEASURES: dict[str, Callable[[Talk, list[MessageCreated], Callable[[str], int]], float]] = {
    "messages": lambda _, pending, __: len(pending),
    "events": lambda _, pending, __: len(pending),
    "turns": lambda _, pending, __: sum(m.role == "user" or n == 0 for n, m in enumerate(pending)),
    "tokens": lambda _, pending, count_tokens: sum(count_tokens(m.content) for m in pending),
    "text_bytes": lambda _, pending, __: len("".join(m.content for m in pending).encode()),
    # fires above its value, the others from theirs on
    "important_content": lambda _, pending, __: max((len(m.content.strip()) for m in pending), default=0) - 1,
    "seconds": lambda talk, _, __: talk.taken[-1].sent - (talk.since or 0),
}


def living(taken: list[Taken]) -> list[Taken]:
    return [t for t in taken if not t.gone]


def said(taken: list[Taken]) -> tuple[Said, ...]:
    return tuple((t.message.id, t.message.content) for t in taken)


def told(limits: Episodes, happening: list[Sent | int], max_pending: int = PENDING_MESSAGES) -> Oracle:
    """Return the oracle after these records; a number lets that many seconds pass."""
    oracle, now_ms = Oracle(limits, max_pending=max_pending), NOON
    for event in happening:
        if isinstance(event, Sent):
            oracle.hear(event, now_ms)
        else:
            now_ms += event * 1000
            oracle.wait(now_ms)
    return oracle
