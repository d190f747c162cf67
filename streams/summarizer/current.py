"""An episode as its messages are now. Pure functions.

A message that was deleted, or must no longer be summarized, is left out; an edited one has its latest content.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from afterword.schemas import (
    EpisodeAmended,
    EpisodeClosed,
    EpisodeMessage,
    EpisodeMetrics,
    InvalidRecord,
    MessageCreated,
    Source,
)
from afterword.schemas.episodes import CARRIED, EpisodeFields, metrics, turns, user_of
from afterword.streams.stores.episodes import Inputs, StoredEpisode
from afterword.streams.stores.messages import NEVER, ArchivedMessage, DeletedMessage, PresentUsers
from afterword_text.tokens import message_tokens

MessageState = ArchivedMessage | DeletedMessage

NOBODY_ASSIGNED = PresentUsers()
MAX_NAMES_BYTES = 700_000
"""Maximum number of bytes of JSON of an episode's message ids, flows and tools. Only edits can make it larger."""


@dataclass(frozen=True)
class Current:
    """The messages of an episode that are left."""

    core: tuple[EpisodeMessage, ...] = ()
    overlap: tuple[EpisodeMessage, ...] = ()
    inputs: Inputs = ()
    """These messages, each with the offset of its last change; if no core message is left, those that were deleted."""
    changes: frozenset[int] = frozenset()
    """Offsets of the last changes of all messages, including deleted ones."""
    expired: frozenset[str] = frozenset()
    """Ids of the core messages that the archive no longer has."""
    archived: frozenset[str] = frozenset()
    """Ids of the messages of a newly closed episode that the archive already has, perhaps with a later change."""
    present: PresentUsers = NOBODY_ASSIGNED
    """To whom the messages of a stored episode belong now."""


def current(
    core_ids: Sequence[str],
    overlap_ids: Sequence[str],
    known: Mapping[str, EpisodeMessage],
    states: Mapping[str, MessageState],
) -> Current:
    """Return the messages as they are in `known`, or in `states` if they were changed there later."""
    newest = {name: _newest(known.get(name), states.get(name)) for name in (*core_ids, *overlap_ids)}
    core, overlap = (tuple(filter(None, map(newest.get, ids))) for ids in (core_ids, overlap_ids))
    changed = {name: state.changed for name, state in states.items() if state.changed != NEVER}
    living = (*core, *overlap) if core else ()
    inputs = tuple((message.id, changed_at(message)) for message in living)
    return Current(
        core=core,
        overlap=overlap,
        inputs=inputs or tuple((name, changed[name]) for name in core_ids if name in changed),
        changes=frozenset(changed.values()),
        expired=frozenset(name for name in core_ids if name not in known and name not in states),
    )


def changed_at(message: EpisodeMessage) -> int:
    """Return the offset of the message's last edit."""
    return NEVER if message.changed is None else message.changed


def _newest(known: EpisodeMessage | None, state: MessageState | None) -> EpisodeMessage | None:
    if state is None:
        return known
    if isinstance(state, DeletedMessage):
        return None
    if known is not None and state.changed <= changed_at(known):
        return known
    if state.message.skip_summarization:
        return None
    fields = {name: getattr(state.message, name) for name in CARRIED}
    return EpisodeMessage(**fields, offset=state.offset, changed=None if state.changed == NEVER else state.changed)


def nothing_left(core_ids: Iterable[str], offset: int) -> Current:
    """Return the state of an episode whose messages were all deleted at this offset."""
    return Current(inputs=tuple((name, offset) for name in core_ids), changes=frozenset([offset]))


def without_expired(
    stored: StoredEpisode, read: Current, states: Mapping[str, MessageState], amended: EpisodeAmended
) -> Current:
    """Return the result of a change to an episode that cannot be summarized again, because messages have expired.

    It stays as it is, or is deleted as a whole if a message leaves it. Raises: InvalidRecord for an effective edit.
    """
    name = amended.message_id or ""
    state = states.get(name)
    has_no_effect = isinstance(state, ArchivedMessage) and state.changed != amended.offset
    if name not in dict(stored.inputs) or has_no_effect:
        return Current(core=read.core, inputs=stored.inputs, expired=read.expired)
    leaves = isinstance(state, ArchivedMessage) and state.message.skip_summarization
    if amended.change == "edited" and not leaves:
        raise InvalidRecord("expired", "some of the episode's messages have expired in the archive: it stays as it is")
    return nothing_left([name], amended.offset)


def of_event(episode: EpisodeClosed, now: Current) -> EpisodeClosed:
    """Return an event's episode with the messages that are left."""
    if (now.core, now.overlap) == (episode.messages, episode.overlap):
        return episode
    return _with(episode, now.core, now.overlap)


def of_stored(stored: StoredEpisode, now: Current) -> EpisodeClosed:
    """Return a stored episode with the messages that are left."""
    summary = stored.summary
    event = EpisodeClosed(
        **{name: getattr(summary, name) for name in EpisodeFields.model_fields},
        close_reason=stored.close_reason,
        fingerprint=stored.fingerprint,
        messages=now.core,
        turn_count=turns(now.core),
        token_count=summary.compression.tokens_before,
        source=Source(topic="", partition=0, first_offset=stored.first_offset, last_offset=stored.last_offset),
    )
    return _with(event, now.core, now.overlap)


def _with(
    episode: EpisodeClosed, core: tuple[EpisodeMessage, ...], overlap: tuple[EpisodeMessage, ...]
) -> EpisodeClosed:
    """Return the episode with these messages; its fingerprint stays that of the event."""
    return episode.model_copy(
        update={
            "user_id": user_of(core),
            "started_at": min(message.sent_at for message in core),
            "ended_at": max(message.sent_at for message in core),
            "messages": core,
            "overlap": overlap,
            "message_count": len(core),
            "turn_count": turns(core),
            "token_count": sum(message_tokens(message.content) for message in core),
            "metrics": bounded_metrics(core),
        }
    )


def bounded_metrics(core: Sequence[EpisodeMessage]) -> EpisodeMetrics:
    """Return the messages' metrics, without flows and tools if a summary with them would be too long for a record."""
    measured = metrics(core)
    names = [*(message.id for message in core), *measured.flows_activated, *measured.tools_invoked]
    if len(orjson.dumps(names)) <= MAX_NAMES_BYTES:
        return measured
    return measured.model_copy(update={"flows_activated": (), "tools_invoked": ()})


def archived(message: EpisodeMessage, episode: EpisodeClosed) -> ArchivedMessage:
    """Return a message of an episode as the archive stores it, without its metadata."""
    return ArchivedMessage(
        MessageCreated(
            conversation_id=episode.conversation_id,
            tenant_id=episode.tenant_id,
            **{name: getattr(message, name) for name in CARRIED},
        ),
        partition=episode.source.partition,
        offset=episode.source.first_offset if message.offset is None else message.offset,
        changed=changed_at(message),
    )
