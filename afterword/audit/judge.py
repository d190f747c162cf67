"""The promise, as a pure function: every message in one episode, every episode stored once and announced."""

from afterword.audit.episodes import judge_episodes
from afterword.audit.facts import Facts
from afterword.audit.messages import judge_messages
from afterword.audit.report import Report
from afterword.audit.summaries import judge_archive, judge_summaries


def judge(facts: Facts) -> Report:
    """What the facts say. Work under way is counted and is no finding."""
    report = Report(notes=list(facts.notes))
    judge_messages(facts, report)
    judge_archive(facts, report)
    judge_episodes(facts, report)
    judge_summaries(facts, report)
    return report
