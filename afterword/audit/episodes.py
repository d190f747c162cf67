"""Judging episodes among themselves."""

from collections import Counter, defaultdict
from collections.abc import Iterable

from afterword.audit.facts import Closed, Facts
from afterword.audit.report import Report


def latest_revisions(closed: Iterable[Closed]) -> list[Closed]:
    """One record for each episode: the first of its highest revision."""
    latest: dict[str, Closed] = {}
    for episode in closed:
        known = latest.get(episode.episode_id)
        if known is None or known.revision < episode.revision:
            latest[episode.episode_id] = episode
    return list(latest.values())


def by_scope(episodes: Iterable[Closed]) -> list[list[Closed]]:
    """Episodes that are numbered together, in the order of their ordinals."""
    scopes: dict[str, list[Closed]] = defaultdict(list)
    for episode in episodes:
        scopes[episode.scope].append(episode)
    return [sorted(scope, key=lambda e: e.ordinal) for scope in scopes.values()]


def judge_episodes(facts: Facts, report: Report) -> None:
    """Each once, numbered without gaps, with the fingerprint of what it carries."""
    _judge_commits(facts, report)
    for episode in facts.closed:
        if episode.fingerprint != episode.recomputed:
            report.found("fingerprint_wrong", name(episode))
    latest = latest_revisions(facts.closed)
    for scope in by_scope(latest):
        _judge_ordinals(scope, report, first_known="episodes" not in facts.truncated)
    report.episodes = {"total": len(latest), "records": len(facts.closed), "unreadable": len(facts.unreadable)}


def name(episode: Closed) -> str:
    return f"{episode.episode_id} at partition {episode.position.partition}, offset {episode.position.offset}"


def _judge_commits(facts: Facts, report: Report) -> None:
    commits = Counter((e.episode_id, e.revision) for e in facts.closed)
    for (episode_id, revision), times in commits.items():
        if times > 1:
            report.found("committed_twice", f"{episode_id} revision {revision}: {times} times")


def _judge_ordinals(scope: list[Closed], report: Report, first_known: bool) -> None:
    ordinals = [e.ordinal for e in scope]
    first = 1 if first_known else ordinals[0]
    if ordinals != list(range(first, first + len(ordinals))):
        found = f"has {ordinals[0]} to {ordinals[-1]} in {len(ordinals)} episodes"
        report.found("ordinal_gap", f"{scope[0].scope} {found}")
