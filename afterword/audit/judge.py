"""The delivery promise as a pure function: every message in one episode, every episode stored once and announced."""

from collections import Counter, defaultdict
from collections.abc import Container

from afterword.audit.changes import Lasting, judge_amended, judge_archived_changes
from afterword.audit.messages import judge_messages, name_of
from afterword.audit.report import Report
from afterword.audit.snapshot import Announced, Closed, ProducedMessage, Snapshot, by_scope, latest_revisions
from afterword.schemas.ids import event_id


def judge(snapshot: Snapshot) -> Report:
    """Judge a snapshot. Work in progress is counted, and is not a finding."""
    report, lasting = Report(notes=list(snapshot.notes)), Lasting(snapshot)
    judge_messages(snapshot, lasting, report)
    for damage in snapshot.damaged:
        report.found("state_unreadable", f"{damage.conversation_id}, partition {damage.partition}: {damage.problem}")
    judge_archive(snapshot, lasting, report)
    judge_episodes(snapshot, report)
    judge_summaries(snapshot, lasting, report)
    judge_amended(snapshot, lasting, report)
    return report


def judge_episodes(snapshot: Snapshot, report: Report) -> None:
    """Check that each episode was committed once, has the right fingerprint, and that ordinals have no gaps."""
    _judge_commits(snapshot, report)
    for episode in snapshot.closed:
        if episode.fingerprint != episode.recomputed:
            report.found("fingerprint_wrong", name(episode))
    latest = latest_revisions(snapshot.closed)
    for scope in by_scope(latest):
        _judge_ordinals(scope, report, first_known="episodes" not in snapshot.truncated)
    report.episodes = {"total": len(latest), "records": len(snapshot.closed), "unreadable": snapshot.unreadable}


def name(episode: Closed) -> str:
    return f"{episode.episode_id} at partition {episode.position.partition}, offset {episode.position.offset}"


def _judge_commits(snapshot: Snapshot, report: Report) -> None:
    commits = Counter((e.episode_id, e.revision) for e in snapshot.closed)
    for (episode_id, revision), times in commits.items():
        if times > 1:
            report.found("committed_twice", f"{episode_id} revision {revision}: {times} times")


def _judge_ordinals(scope: list[Closed], report: Report, first_known: bool) -> None:
    ordinals = [e.ordinal for e in scope]
    first = 1 if first_known else ordinals[0]
    if ordinals != list(range(first, first + len(ordinals))):
        found = f"has {ordinals[0]} to {ordinals[-1]} in {len(ordinals)} episodes"
        report.found("ordinal_gap", f"{scope[0].scope} {found}")


def judge_summaries(snapshot: Snapshot, lasting: Lasting, report: Report) -> None:
    """Check that each episode is stored, indexed and announced, or still waiting; or deleted."""
    announced = {(a.episode_id, a.made_from) for a in snapshot.announced}
    left = {produced.message for produced in snapshot.produced if any(c.leaves for c in lasting.changes(produced))}
    ended = {*snapshot.ended.values(), *snapshot.expired}
    latest = latest_revisions(snapshot.closed)
    holders = _holders(latest)
    counts: Counter[str] = Counter()
    for episode in latest:
        state = "announced" if episode.episode_id in ended else _state(snapshot, episode, announced)
        counts[state] += 1
        if state == "not_announced":
            report.found("not_announced", name(episode))
        if episode.episode_id in snapshot.gone:
            _judge_gone(snapshot, episode, report)
        elif state in ("announced", "not_announced"):
            _judge_stored(snapshot, episode, report)
            _judge_labels(snapshot, episode, holders, left, report)
            _judge_indexed(snapshot, episode, report)
    _judge_announcements(snapshot, left, report)
    report.summaries = {
        "announced": counts["announced"],
        "not_yet_summarised": counts["waiting"],
        "dead_lettered": counts["dead"],
        "events": len(snapshot.announced),
        "repeats": len(snapshot.announced) - len({a.event_id for a in snapshot.announced}),
        "superseded": len({a.supersedes for a in snapshot.announced if a.supersedes}),
        "unreadable": snapshot.unreadable_announcements,
        "stored": len(snapshot.stored),
        "deleted": len(snapshot.gone),
    } | ({} if snapshot.indexed is None else {"indexed": len(snapshot.indexed)})


def _judge_gone(snapshot: Snapshot, episode: Closed, report: Report) -> None:
    if snapshot.indexed is not None and episode.episode_id in snapshot.indexed:
        report.found("resurrected", f"{episode.episode_id}, in the index")


def judge_archive(snapshot: Snapshot, lasting: Lasting, report: Report) -> None:
    """Check that every message before the archiver's offset is archived, with the content that it was sent with."""
    _judge_contents(snapshot, report)
    judge_archived_changes(snapshot, lasting, report)
    expired = 0
    for produced in snapshot.produced:
        partition, offset = produced.position
        if offset < snapshot.archived_to.get(partition, 0):
            known = snapshot.messages.get(produced.message)
            if known is None and snapshot.may_have_expired(produced):
                expired += 1
            elif known is None or not (known.archived or known.deleted):
                report.found("not_archived", f"{produced.conversation_id}, partition {partition}, offset {offset}")
    report.messages["expired"] = expired
    report.messages["archived"] = sum(1 for known in snapshot.messages.values() if known.archived)


def _judge_contents(snapshot: Snapshot, report: Report) -> None:
    """Compare contents with the record that was archived, or with every record of the message if that is not there."""
    produced: dict[bytes, list[ProducedMessage]] = defaultdict(list)
    for one in snapshot.produced:
        produced[one.message].append(one)
    for message, copies in produced.items():
        known = snapshot.messages.get(message)
        if known is None or known.content is None or known.changed >= 0:
            continue
        same = [one for one in copies if one.position == known.position]
        expired = not same and "messages" in snapshot.truncated
        if not expired and known.content not in {one.content for one in same or copies}:
            report.found("archived_differently", name_of(copies[0]))


def _state(snapshot: Snapshot, episode: Closed, announced: set[tuple[str, int]]) -> str:
    if (episode.episode_id, episode.revision) in announced:
        return "announced"
    if episode.position in snapshot.dead_episodes:
        return "dead"
    passed = episode.position.offset < snapshot.summarized_to.get(episode.position.partition, 0)
    if not passed:
        return "waiting"
    return "announced" if "summaries" in snapshot.truncated else "not_announced"


def _judge_stored(snapshot: Snapshot, episode: Closed, report: Report) -> None:
    stored = snapshot.stored.get(episode.episode_id)
    if stored is None or stored.revision < episode.revision:
        report.found("not_stored", name(episode))
    elif stored.revision == episode.revision and stored.fingerprint != episode.fingerprint:
        report.found("stored_differently", name(episode))


def _holders(episodes: list[Closed]) -> dict[bytes, set[str]]:
    """Map each message to its episodes: several if agents share it, or if its id was used again."""
    holders: dict[bytes, set[str]] = defaultdict(set)
    for episode in episodes:
        for core in episode.core:
            holders[core.message].add(episode.episode_id)
    return holders


def _judge_labels(
    snapshot: Snapshot, episode: Closed, holders: dict[bytes, set[str]], left: set[bytes], report: Report
) -> None:
    """Check the labels of messages; a message of several episodes carries the one that was stored last."""
    core = [one for one in episode.core if one.message not in left]
    known = [(one, snapshot.messages.get(one.message)) for one in core]
    there = [(holders[one.message], found) for one, found in known if found or not snapshot.may_have_expired(one)]
    wrong = sum(1 for episodes, document in there if document is None or document.episode_id not in episodes)
    if wrong:
        report.found("label_wrong", f"{episode.episode_id}: {wrong} of {len(episode.core)} messages")


def _judge_indexed(snapshot: Snapshot, episode: Closed, report: Report) -> None:
    expires = 0 < episode.ended_ms < snapshot.episodes_before_ms  # maybe since the stores were read
    if snapshot.indexed is None or expires or episode.episode_id in snapshot.removed:
        return
    if episode.episode_id not in snapshot.indexed:
        report.found("not_indexed", name(episode))


def _judge_announcements(snapshot: Snapshot, left: set[bytes], report: Report) -> None:
    by_event: dict[str, set[bytes]] = {}
    closed = {(e.episode_id, e.revision): e for e in snapshot.closed}
    for event in snapshot.announced:
        by_event.setdefault(event.event_id, set()).add(event.event)
        _judge_announcement(snapshot, event, closed.get((event.episode_id, event.made_from)), left, report)
    _judge_superseded(snapshot, by_event, report)
    for event_name, contents in by_event.items():
        if len(contents) > 1:
            report.found("announced_differently", f"{event_name}: {len(contents)} contents")


def _judge_superseded(snapshot: Snapshot, known: Container[str], report: Report) -> None:
    """Check that each fallback that was replaced had been announced.

    What a change or a request supersedes need not have been: a crash may come between making it and announcing it.
    """
    for event in snapshot.announced:
        is_replacement = event.supersedes is not None and event.reason is None
        if is_replacement and event.supersedes not in known and "summaries" not in snapshot.truncated:
            report.found("announced_wrongly", f"{event.event_id}: supersedes an event that was never announced")


def _judge_announcement(
    snapshot: Snapshot, event: Announced, episode: Closed | None, left: set[bytes], report: Report
) -> None:
    if event.event_id != event_id(event.episode_id, event.revision):
        report.found("announced_wrongly", f"{event.event_id}: not the id of its episode")
    if episode is None:
        if snapshot.quiet and "episodes" not in snapshot.truncated:
            report.found("announced_wrongly", f"{event.event_id}: there is no such closed episode")
    elif event.message_ids != episode.message_ids and left.isdisjoint(core.message for core in episode.core):
        report.found("announced_wrongly", f"{event.event_id}: message_ids are not those of the episode")
