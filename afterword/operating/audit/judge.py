"""Judges what was read: runs the queries of every finding, and counts."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from afterword.operating.audit.derived import derive
from afterword.operating.audit.evidence import Circumstances, Evidence
from afterword.operating.audit.findings import FINDINGS
from afterword.operating.audit.report import EXAMPLES_NAMED, Finding, Report

FATES: Final = (
    "skipped",
    "duplicates",
    "dead_lettered",
    "in_an_episode",
    "pending",
    "not_consumed",
    "deleted",
    "no_trace_left",
    "lost",
)
"""What becomes of a message. A message for several agents has the fate of the copy that comes last in this list."""


def judge(evidence: Evidence, circumstances: Circumstances) -> Report:
    """Run the queries of every finding. Work in progress is counted, but is not a finding."""
    evidence.index()
    derive(evidence, circumstances)
    values = circumstances.values()
    report = Report(notes=list(circumstances.notes))
    for name, kind in FINDINGS.items():
        for query in kind.queries:
            _find(evidence, report, name, query, values)
    _count(evidence, report)
    return report


def _find(evidence: Evidence, report: Report, name: str, query: str, values: Mapping[str, object]) -> None:
    limited = f"SELECT *, COUNT(*) OVER () FROM ({query}) ORDER BY 1 LIMIT {EXAMPLES_NAMED}"  # noqa: S608 – the query is one of FINDINGS
    rows = list(evidence.rows(limited, values))
    if rows:
        finding = report.findings.setdefault(name, Finding())
        finding.count += rows[0][1]
        finding.examples = sorted([*finding.examples, *(example for example, _ in rows)])[:EXAMPLES_NAMED]


def _count(evidence: Evidence, report: Report) -> None:
    """Count one fate for each message, so that the counts add up to the total, and count the rest."""
    evidence.run("CREATE TABLE fate_order AS SELECT '' AS fate, 0 AS place WHERE FALSE")
    evidence.run_many("INSERT INTO fate_order VALUES (?, ?)", [(fate, place) for place, fate in enumerate(FATES)])
    fates = Counter(
        dict(
            evidence.rows("""
        SELECT fate, COUNT(*) FROM (
            SELECT CASE
                WHEN is_dead THEN 'dead_lettered'
                WHEN offset >= consumed_to THEN 'not_consumed'
                WHEN skipped THEN 'skipped'
                ELSE 'duplicates'
            END AS fate
            FROM standing WHERE is_dead OR skipped OR is_repeat
            UNION ALL SELECT fate FROM refused_fate
            UNION ALL SELECT fate FROM (SELECT fate, MAX(place) FROM fate JOIN fate_order USING (fate) GROUP BY id)
        )
        GROUP BY fate
    """)
        )
    )
    count = evidence.count
    report.messages = {
        "total": sum(fates.values()),
        **{fate: fates[fate] for fate in FATES},
        "flushes": count("SELECT COUNT(*) FROM flush"),
        "changes": count("SELECT COUNT(*) FROM change"),
        "expired": count("""
            SELECT COUNT(*) FROM standing
            WHERE offset < archived_to AND may_have_expired AND message NOT IN (SELECT message FROM document)
        """),
        "archived": count("SELECT COUNT(*) FROM document WHERE archived"),
    }
    report.episodes = {
        "total": count("SELECT COUNT(*) FROM latest"),
        "records": count("SELECT COUNT(*) FROM closed"),
        "unreadable": count("SELECT COUNT(*) FROM unreadable WHERE kind = 'episode'"),
    }
    states = Counter(dict(evidence.rows("SELECT state, COUNT(*) FROM progress GROUP BY state")))
    report.summaries = {
        "announced": states["announced"],
        "not_yet_summarised": states["waiting"],
        "dead_lettered": states["dead_lettered"],
        "events": count("SELECT COUNT(*) FROM announced"),
        "repeats": count("SELECT COUNT(*) - COUNT(DISTINCT event_id) FROM announced"),
        "superseded": count("SELECT COUNT(DISTINCT event_id) - COUNT(DISTINCT episode_id) FROM announced"),
        "unreadable": count("SELECT COUNT(*) FROM unreadable WHERE kind = 'summary'"),
        "stored": count("SELECT COUNT(*) FROM stored_episode"),
        "deleted": count("SELECT COUNT(*) FROM deleted_episode"),
        "indexed": count("SELECT COUNT(*) FROM indexed"),
    }
