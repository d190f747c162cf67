"""Judging what the summarizer made of every episode, and the archive."""

from collections import Counter, defaultdict
from collections.abc import Container

from afterword.audit.episodes import latest_revisions, name
from afterword.audit.facts import Announced, Closed, Facts
from afterword.audit.report import Report
from afterword.schemas.ids import event_id


def judge_summaries(facts: Facts, report: Report) -> None:
    """Each episode stored, indexed and announced, or waiting for it."""
    announced = {(a.episode_id, a.made_from) for a in facts.announced}
    latest = latest_revisions(facts.closed)
    holders = _holders(latest)
    counts: Counter[str] = Counter()
    for episode in latest:
        state = _state(facts, episode, announced)
        counts[state] += 1
        if state == "not_announced":
            report.found("not_announced", name(episode))
        if state in ("announced", "not_announced"):
            _judge_stored(facts, episode, report)
            _judge_labels(facts, episode, holders, report)
            _judge_indexed(facts, episode, report)
    _judge_announcements(facts, report)
    report.summaries = {
        "announced": counts["announced"],
        "not_yet_summarised": counts["waiting"],
        "dead_lettered": counts["dead"],
        "events": len(facts.announced),
        "repeats": len(facts.announced) - len({a.event_id for a in facts.announced}),
        "superseded": len({a.supersedes for a in facts.announced if a.supersedes}),
        "unreadable": facts.unreadable_announcements,
        "stored": len(facts.stored),
    } | ({} if facts.indexed is None else {"indexed": len(facts.indexed)})


def judge_archive(facts: Facts, report: Report) -> None:
    """Every message that the archiver has passed is in MongoDB."""
    for produced in facts.produced:
        partition, offset = produced.position
        if offset < facts.archived_to.get(partition, 0):
            known = facts.messages.get(produced.message)
            if known is None or not known.archived:
                report.found("not_archived", f"{produced.conversation_id}, partition {partition}, offset {offset}")
    report.messages["archived"] = sum(1 for known in facts.messages.values() if known.archived)


def _state(facts: Facts, episode: Closed, announced: set[tuple[str, int]]) -> str:
    if (episode.episode_id, episode.revision) in announced:
        return "announced"
    if episode.position in facts.dead_episodes:
        return "dead"
    passed = episode.position.offset < facts.summarized_to.get(episode.position.partition, 0)
    if not passed:
        return "waiting"
    return "announced" if "summaries" in facts.truncated else "not_announced"


def _judge_stored(facts: Facts, episode: Closed, report: Report) -> None:
    stored = facts.stored.get(episode.episode_id)
    if stored is None or stored.revision < episode.revision:
        report.found("not_stored", name(episode))
    elif stored.revision == episode.revision and stored.fingerprint != episode.fingerprint:
        report.found("stored_differently", name(episode))


def _holders(episodes: list[Closed]) -> dict[bytes, set[str]]:
    """By message: the episodes that have it. Several where agents share it, or where its id was used again."""
    holders: dict[bytes, set[str]] = defaultdict(set)
    for episode in episodes:
        for core in episode.core:
            holders[core.message].add(episode.episode_id)
    return holders


def _judge_labels(facts: Facts, episode: Closed, holders: dict[bytes, set[str]], report: Report) -> None:
    """A message of several episodes carries one of them: the last that was stored."""
    known = [(holders[core.message], facts.messages.get(core.message)) for core in episode.core]
    wrong = sum(1 for episodes, document in known if document is None or document.episode_id not in episodes)
    if wrong:
        report.found("label_wrong", f"{episode.episode_id}: {wrong} of {len(episode.core)} messages")


def _judge_indexed(facts: Facts, episode: Closed, report: Report) -> None:
    if facts.indexed is not None and episode.episode_id not in facts.indexed:
        report.found("not_indexed", name(episode))


def _judge_announcements(facts: Facts, report: Report) -> None:
    by_event: dict[str, set[bytes]] = {}
    closed = {(e.episode_id, e.revision): e for e in facts.closed}
    for event in facts.announced:
        by_event.setdefault(event.event_id, set()).add(event.event)
        _judge_announcement(facts, event, closed.get((event.episode_id, event.made_from)), report)
    _judge_superseded(facts, by_event, report)
    for event_name, contents in by_event.items():
        if len(contents) > 1:
            report.found("announced_differently", f"{event_name}: {len(contents)} contents")


def _judge_superseded(facts: Facts, known: Container[str], report: Report) -> None:
    """What replaces something comes after it."""
    for event in facts.announced:
        if event.supersedes is not None and event.supersedes not in known and "summaries" not in facts.truncated:
            report.found("announced_wrongly", f"{event.event_id}: supersedes what was never announced")


def _judge_announcement(facts: Facts, event: Announced, episode: Closed | None, report: Report) -> None:
    if event.event_id != event_id(event.episode_id, event.revision):
        report.found("announced_wrongly", f"{event.event_id}: not the id of its episode")
    if episode is None:
        if facts.quiet and "episodes" not in facts.truncated:
            report.found("announced_wrongly", f"{event.event_id}: such an episode was never closed")
    elif event.message_ids != episode.message_ids:
        report.found("announced_wrongly", f"{event.event_id}: message_ids are not those of the episode")
