"""An episode as its messages are now: what the archive knows of changes laid over the event, or all of it from there.

Pure. A message that was deleted, or is not to be summarized any more, is left out; an edited one is as it was last.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import orjson

from afterword.schemas import EpisodeClosed, EpisodeMessage, EpisodeMetrics, Source, SummaryCreated
from afterword.schemas.episodes import CARRIED, metrics, turns, user_of
from afterword.streams.stores.episodes import NEVER, DeletedEpisode, StoredEpisode
from afterword.streams.stores.messages import ArchivedMessage, DeletedMessage
from afterword.streams.tokens import count_tokens

MessageState = ArchivedMessage | DeletedMessage
MessageStates = Mapping[str, MessageState]
"""Messages in the archive, by id."""
ChangeOffsets = tuple[tuple[str, int], ...]
"""Ids of changed messages, each with the log offset of its last change."""

MAX_NAMES_BYTES = 700_000
"""JSON of an episode's message ids, and twice that of its flows and tools.

An episode that closes has no more, unless edits have made it larger, and a summary that has it all fits into a record
of a megabyte.
"""


@dataclass(frozen=True)
class Current:
    """An episode with the changes that are in it."""

    episode: EpisodeClosed | None
    """None if no core message is left."""
    changes: ChangeOffsets = ()


def laid_over(episode: EpisodeClosed, states: MessageStates) -> Current:
    """The episode with the changes of these messages; `states`: of the changed ones, others may be missing.

    An edit that came before the episode closed is in the event; the archive may still be behind it.
    """
    messages = (*episode.messages, *episode.overlap)
    edits = {message.id: message.changed for message in messages if message.changed is not None}
    newer = {name: state for name, state in states.items() if is_newer(state, edits.get(name, NEVER))}
    changes = tuple((edits | dict(_changes([message.id for message in messages], newer))).items())
    if not newer:
        return Current(episode, changes)
    core = _living(episode.messages, newer)
    return Current(_rebuilt(episode, core, _living(episode.overlap, newer)) if core else None, changes)


def is_newer(state: MessageState, edit: int) -> bool:
    """Return whether the archive's state counts for a message whose last known edit is of this log offset."""
    return isinstance(state, DeletedMessage) or state.changed > edit


def without_deleted(episode: EpisodeClosed, states: MessageStates) -> EpisodeClosed | None:
    """The episode, its contents as they are in the event, without deleted messages; None if no core message is left."""
    gone = {message_id for message_id, state in states.items() if isinstance(state, DeletedMessage)}
    core, overlap = ([m for m in messages if m.id not in gone] for messages in (episode.messages, episode.overlap))
    if len(core) + len(overlap) == len(episode.messages) + len(episode.overlap):
        return episode
    return _rebuilt(episode, core, overlap) if core else None


def from_archive(stored: StoredEpisode, states: MessageStates) -> Current | None:
    """The stored episode as the archive has it; None if a core message is missing, or one is older than it was."""
    summary, known = stored.summary, dict(stored.changes)
    if any(name not in states for name in summary.message_ids):
        return None
    ids = (*summary.message_ids, *stored.overlap_ids)
    if any(states[name].changed < known.get(name, NEVER) for name in ids if name in states):
        return None
    merged = tuple((known | dict(_changes(ids, states))).items())
    archived = [states[i] for i in summary.message_ids]
    core = [_message(state) for state in archived if is_living(state)]
    if not core:
        return Current(None, merged)
    overlap = [_message(states[i]) for i in stored.overlap_ids if i in states and is_living(states[i])]
    offsets = [state.offset for state in archived if isinstance(state, ArchivedMessage)]
    return Current(_rebuilt(_closed(stored, core, min(offsets)), core, overlap), merged)


def has_change(episode: StoredEpisode | DeletedEpisode, message_id: str, offset: int) -> bool:
    """Return whether the episode was made after this change of a message, or has the message no longer."""
    if isinstance(episode, DeletedEpisode) or message_id not in (*episode.summary.message_ids, *episode.overlap_ids):
        return True
    return dict(episode.changes).get(message_id, NEVER) >= offset


def _closed(stored: StoredEpisode, core: Sequence[EpisodeMessage], first: int) -> EpisodeClosed:
    summary = stored.summary
    copied = EpisodeClosed.model_fields.keys() & SummaryCreated.model_fields.keys()
    return EpisodeClosed(
        **{name: getattr(summary, name) for name in copied - {"revision"}},
        revision=summary.made_from,
        close_reason=stored.close_reason,
        fingerprint=stored.fingerprint,
        messages=tuple(core),
        turn_count=turns(core),
        token_count=summary.compression.tokens_before,
        source=Source(topic="", partition=0, first_offset=first, last_offset=stored.last_offset),
    )


def _rebuilt(
    episode: EpisodeClosed, core: Sequence[EpisodeMessage], overlap: Sequence[EpisodeMessage]
) -> EpisodeClosed:
    """The episode with these messages; its fingerprint stays that of the event."""
    return episode.model_copy(
        update={
            "user_id": user_of(core),
            "started_at": min(message.sent_at for message in core),
            "ended_at": max(message.sent_at for message in core),
            "messages": tuple(core),
            "overlap": tuple(overlap),
            "message_count": len(core),
            "turn_count": turns(core),
            "token_count": sum(count_tokens(message.content) for message in core),
            "metrics": bounded_metrics(core),
        }
    )


def bounded_metrics(core: Sequence[EpisodeMessage]) -> EpisodeMetrics:
    """Metrics of the messages; of more flows and tools than edits may give a summary, the first ones."""
    found = metrics(core)
    room = (MAX_NAMES_BYTES - _size([message.id for message in core])) // 2
    flows = _first(found.flows_activated, room)
    tools = _first(found.tools_invoked, room - _size(flows))
    return found.model_copy(update={"flows_activated": flows, "tools_invoked": tools})


def _first(names: Sequence[str], room: int) -> tuple[str, ...]:
    """The first of the names whose JSON is not longer than `room` bytes."""
    ends = accumulate(_size([name]) for name in names)
    return tuple(name for name, end in zip(names, ends, strict=True) if end <= room)


def _size(names: Sequence[str]) -> int:
    return len(orjson.dumps(names))


def _changes(ids: Iterable[str], states: MessageStates) -> ChangeOffsets:
    return tuple((i, states[i].changed) for i in dict.fromkeys(ids) if i in states and states[i].changed != NEVER)


def _living(messages: Iterable[EpisodeMessage], states: MessageStates) -> list[EpisodeMessage]:
    """Each as the archive has it, if it was changed there."""
    found = [(message, states.get(message.id)) for message in messages]
    return [
        message if state is None else _message(state) for message, state in found if state is None or is_living(state)
    ]


def is_living(state: MessageState) -> bool:
    """Return whether the message is to be in episodes."""
    return isinstance(state, ArchivedMessage) and not state.message.skip_summarization


def _message(state: MessageState) -> EpisodeMessage:
    assert isinstance(state, ArchivedMessage)  # noqa: S101 – callers ask `is_living` first
    return EpisodeMessage(**{name: getattr(state.message, name) for name in CARRIED})
