"""Edits and deletions of messages after they were produced, and whether the stores have followed them."""

from collections import defaultdict
from collections.abc import Iterator

from afterword.audit.report import Report
from afterword.audit.snapshot import AmendmentRecord, MessageChange, ProducedMessage, Snapshot, latest_revisions

NEVER = -1
Newest = dict[str, dict[int, int]]
"""Offset of the last change by scope and ordinal."""


class Lasting:
    """Messages as they are after their changes. A change that became a dead letter counts for nobody."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._of_message: dict[bytes, list[MessageChange]] = defaultdict(list)
        self._of_conversation: dict[tuple[str, str | None], list[MessageChange]] = defaultdict(list)
        for change in snapshot.changes:
            if change.position in snapshot.dead:
                continue
            if change.message is None:
                self._of_conversation[change.conversation_id, change.tenant_id].append(change)
            else:
                self._of_message[change.message].append(change)

    def changes(self, produced: ProducedMessage) -> list[MessageChange]:
        """Changes after the message, up to the one that deletes it."""
        of_all = self._of_conversation.get((produced.conversation_id, produced.tenant_id), ())
        of_this = self._of_message.get(produced.message, ())
        if not of_all and not of_this:
            return []
        every = sorted([*of_this, *of_all], key=lambda change: change.position)
        found: list[MessageChange] = []
        for change in every:
            if change.position > produced.position and not (found and found[-1].is_deletion):
                found.append(change)
        return found

    def had(self, produced: ProducedMessage, content: bytes) -> bool:
        """Return whether the message had this content at some time."""
        return content == produced.content or any(c.content == content for c in self.changes(produced))

    def content(self, produced: ProducedMessage, to: int) -> bytes:
        """Its content after all changes before this offset."""
        found = [c.content for c in self.changes(produced) if c.content is not None and c.position.offset < to]
        return found[-1] if found else produced.content

    def left(self, produced: ProducedMessage, to: int) -> bool:
        """Return whether a change before this offset took it out of episodes."""
        return any(change.leaves and change.position.offset < to for change in self.changes(produced))

    def deleted_at(self, produced: ProducedMessage) -> int | None:
        """Return the offset of its deletion."""
        return next((change.position.offset for change in self.changes(produced) if change.is_deletion), None)


def judge_archived_changes(snapshot: Snapshot, lasting: Lasting, report: Report) -> None:
    """Check that the archive has every change before the archiver's offset."""
    for message, produced in _firsts(snapshot).items():
        known, to = snapshot.messages.get(message), snapshot.archived_to.get(produced.position.partition, 0)
        if known is None or not known.archived or not lasting.changes(produced):
            continue
        deleted_at = lasting.deleted_at(produced)
        if deleted_at is not None and deleted_at < to:
            report.found("resurrected", f"{_name(produced)}, in the archive")
        elif known.content is not None and known.content not in _may_have(lasting, produced, to):
            report.found("stale", f"{_name(produced)}, in the archive")


def _firsts(snapshot: Snapshot) -> dict[bytes, ProducedMessage]:
    """Messages as they came first: one that comes again changes nothing, even if it was deleted in between."""
    found: dict[bytes, ProducedMessage] = {}
    for produced in snapshot.produced:
        found.setdefault(produced.message, produced)
    return found


def _may_have(lasting: Lasting, produced: ProducedMessage, to: int) -> set[bytes]:
    later = {c.content for c in lasting.changes(produced) if c.content is not None and c.position.offset >= to}
    return {lasting.content(produced, to), *later}


def judge_amended(snapshot: Snapshot, lasting: Lasting, report: Report) -> None:
    """Check that episodes and what was derived from them have every change that the summarizer has handled."""
    if snapshot.retries_wait:
        if snapshot.amended:
            report.notes.append("episode.retry has records that wait: whether episodes have all changes is not judged")
        return
    holders: dict[bytes, list[tuple[str, str, int]]] = defaultdict(list)
    for episode in latest_revisions(snapshot.closed):
        for core in episode.core:
            holders[core.message].append((episode.episode_id, episode.scope, episode.ordinal))
    newest: Newest = defaultdict(dict)
    for produced, offset in _handled(snapshot, lasting):
        for episode_id, scope, ordinal in holders[produced.message]:
            _judge_episode(snapshot, lasting, produced, offset, episode_id, report)
            counts = min(offset, snapshot.gone.get(episode_id, offset))  # nothing of it is left to change after its end
            newest[scope][ordinal] = max(counts, newest[scope].get(ordinal, NEVER))
    _judge_derived(snapshot, newest, report)


def _judge_derived(snapshot: Snapshot, newest: Newest, report: Report) -> None:
    ordinals = {e.episode_id: (e.scope, e.ordinal) for e in snapshot.closed}
    for episode_id, stored in snapshot.stored.items():
        scope, ordinal = ordinals.get(episode_id, ("", 0))
        before = max((offset for at, offset in newest[scope].items() if at < ordinal), default=NEVER)
        if stored.as_of < before:
            report.found("underived", episode_id)


def _handled(snapshot: Snapshot, lasting: Lasting) -> Iterator[tuple[ProducedMessage, int]]:
    """Messages and the offsets of their changes that the summarizer has handled."""
    amended = {
        (a.conversation_id, a.change) for a in snapshot.amended if a.message is not None and _is_done(snapshot, a)
    }
    for produced in _firsts(snapshot).values():
        for change in lasting.changes(produced):
            if (change.conversation_id, change.position) in amended:
                yield produced, change.position.offset


def _is_done(snapshot: Snapshot, amended: AmendmentRecord) -> bool:
    passed = amended.position.offset < snapshot.summarized_to.get(amended.position.partition, 0)
    return passed and amended.position not in snapshot.dead_episodes


def _judge_episode(
    snapshot: Snapshot, lasting: Lasting, produced: ProducedMessage, offset: int, episode_id: str, report: Report
) -> None:
    stored = snapshot.stored.get(episode_id)
    if stored is None:
        return
    if lasting.left(produced, offset + 1):
        if produced.message in stored.messages:
            report.found("resurrected", f"{_name(produced)}, in {episode_id}")
    elif produced.message in stored.messages and dict(stored.changes).get(produced.message, NEVER) < offset:
        report.found("stale", f"{_name(produced)}, in {episode_id}")


def _name(produced: ProducedMessage) -> str:
    where = produced.position
    return f"a message of {produced.conversation_id}, partition {where.partition}, offset {where.offset}"
