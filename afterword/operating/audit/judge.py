"""Judges what was read: derives the tables that the queries share, runs the queries of every finding, and reports."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from afterword.operating.audit.evidence import INDEXES, Evidence
from afterword.operating.audit.expected import derive_expected
from afterword.operating.audit.findings import FINDINGS
from afterword.streams.text.visible import shown

EXAMPLES_NAMED = 10
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
STANDING = """
-- Every place in an episode that a message has.
CREATE VIEW appearance AS
SELECT core.message, closed.scope, closed.first_offset, closed.last_offset
FROM core JOIN closed ON closed.rowid = core.episode;

-- Where a message is: pending, with first_offset null, or in an episode whose messages' offsets include its own.
CREATE VIEW place AS
SELECT m.rowid AS id, p.scope, NULL AS first_offset, p.handed_over
FROM message AS m
JOIN pending AS p ON p.partition = m.partition AND p.offset = m.offset AND p.conversation_scope = m.scope
UNION ALL
SELECT m.rowid, a.scope, a.first_offset, FALSE
FROM message AS m
JOIN appearance AS a ON a.message = m.message AND m.offset BETWEEN a.first_offset AND a.last_offset;

-- Every message. is_first: no record before has its id.
CREATE TABLE standing AS
SELECT
    m.rowid AS id,
    m.*,
    COALESCE((SELECT offset FROM consumed WHERE role = 'segmenter' AND partition = m.partition), 0) AS consumed_to,
    COALESCE((SELECT offset FROM consumed WHERE role = 'archiver' AND partition = m.partition), 0) AS archived_to,
    0 < m.sent_ms AND m.sent_ms < :messages_before_ms AS may_have_expired,
    ROW_NUMBER() OVER (PARTITION BY m.message ORDER BY m.partition, m.offset) = 1 AS is_first,
    CASE (
        SELECT MAX(quarantined) FROM dead_letter AS d
        WHERE d.kind = 'message' AND d.partition = m.partition AND d.offset = m.offset
    )
        WHEN 0 THEN 1
        WHEN 1 THEN NOT EXISTS (SELECT 1 FROM place WHERE place.id = m.rowid)
        ELSE 0
    END AS is_dead
FROM message AS m;

CREATE INDEX standing_message ON standing (message);
CREATE INDEX standing_conversation ON standing (conversation);
CREATE INDEX standing_id ON standing (id);

-- Changes that count for a message: those after it, up to the one that deletes it. Nobody heeds a dead letter.
CREATE TABLE changed AS
SELECT * FROM (
    SELECT
        s.id, s.message, c.conversation, c.partition, c.offset, c.content, c.deletes, c.excludes,
        COALESCE(SUM(c.deletes) OVER (
            PARTITION BY s.id ORDER BY c.partition, c.offset ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), 0) AS deletions_before
    FROM change AS c CROSS JOIN standing AS s
    ON s.message = c.message OR c.message IS NULL AND s.conversation = c.conversation AND s.tenant IS c.tenant
    WHERE (c.partition, c.offset) > (s.partition, s.offset)
    AND (c.partition, c.offset) NOT IN dead_message
)
WHERE deletions_before = 0;

CREATE INDEX changed_id ON changed (id);

-- Messages that must not be in any episode, including those whose own record has expired.
CREATE TABLE excluded AS
SELECT message FROM changed WHERE excludes
UNION
SELECT message FROM change
WHERE excludes AND message NOT IN (SELECT message FROM standing)
AND (partition, offset) NOT IN dead_message;

CREATE INDEX excluded_message ON excluded (message);

-- Of each episode the first record of its highest revision, and how far the summarizer is with it.
CREATE TABLE latest AS
SELECT
    c.*,
    c.rowid AS number,
    c.episode_id || ' at partition ' || c.partition || ', offset ' || c.offset AS name,
    c.episode_id IN (SELECT episode_id FROM deleted_episode) AS is_gone,
    CASE
        WHEN episode_id IN (
            SELECT episode_id FROM announced_deletion UNION ALL SELECT episode_id FROM deleted_episode WHERE expired
        ) THEN 'announced'
        WHEN EXISTS (SELECT 1 FROM announced AS a WHERE a.episode_id = c.episode_id) THEN 'announced'
        WHEN (partition, offset) IN dead_episode THEN 'dead_lettered'
        WHEN offset >= COALESCE((SELECT offset FROM consumed WHERE role = 'summarizer' AND partition = c.partition), 0)
        THEN 'waiting'
        WHEN :summaries_truncated THEN 'announced'
        ELSE 'not_announced'
    END AS state
FROM closed AS c
WHERE NOT EXISTS (
    SELECT 1 FROM closed AS other
    WHERE other.episode_id = c.episode_id
    AND (other.revision > c.revision OR other.revision = c.revision AND other.rowid < c.rowid)
);

CREATE INDEX latest_number ON latest (number);
CREATE INDEX latest_scope ON latest (scope);

-- Every message in an episode; n numbers its places in the scope, starting at 1.
CREATE TABLE placed AS
SELECT
    core.message, core.content, core.place, latest.scope, latest.episode_id, latest.ordinal,
    latest.first_offset, latest.last_offset, latest.truncated,
    ROW_NUMBER() OVER (
        PARTITION BY core.message, latest.scope ORDER BY latest.ordinal, latest.number, core.place
    ) AS n
FROM latest CROSS JOIN core ON core.episode = latest.number;

CREATE INDEX placed_message ON placed (message, scope, n);
"""
COPIES = """
-- Messages that were deleted while they were pending in a scope, and were sent again. The scope's episodes can only
-- have the later ones.
CREATE TABLE dropped AS
SELECT DISTINCT s.id, e.scope FROM changed AS c JOIN standing AS s ON s.id = c.id JOIN expected AS e ON e.message = s.id
WHERE c.excludes AND c.offset < s.consumed_to
AND NOT EXISTS (SELECT 1 FROM place WHERE place.id = s.id AND place.scope = e.scope)
AND EXISTS (
    SELECT 1 FROM message AS o CROSS JOIN expected AS f ON f.message = o.rowid AND f.scope = e.scope
    WHERE o.message = s.message AND (o.partition, o.offset) > (s.partition, s.offset)
);

-- Every message that belongs in episodes, once for each scope that it is for, with its place there and its fate.
CREATE TABLE copy AS
SELECT *, CASE
    WHEN episode_id IS NOT NULL THEN 'in_an_episode'
    WHEN is_pending THEN 'pending'
    WHEN NOT :quiet AND EXISTS (SELECT 1 FROM place WHERE place.id = c.id AND handed_over) THEN 'pending'
    WHEN offset >= consumed_to THEN 'not_consumed'
    WHEN conversation IN (SELECT conversation FROM damage WHERE conversation IS NOT NULL) THEN 'pending'
    WHEN :episodes_truncated AND EXISTS (
        SELECT 1 FROM document WHERE document.message = c.message AND document.episode_id IS NOT NULL
    ) THEN 'in_an_episode'
    WHEN :episodes_truncated AND may_have_expired THEN 'no_trace_left'
    WHEN EXISTS (SELECT 1 FROM changed WHERE changed.id = c.id AND excludes AND changed.offset < c.consumed_to)
    THEN 'deleted'
    ELSE 'lost'
END AS fate
FROM (
    SELECT
        wanted.*, placed.episode_id, placed.ordinal, placed.place, placed.first_offset, placed.last_offset,
        placed.truncated, placed.content AS placed_content,
        EXISTS (
            SELECT 1 FROM place WHERE place.id = wanted.id AND place.scope = copy_scope
            AND first_offset IS NULL AND NOT handed_over
        ) AS is_pending
    FROM (
        SELECT *, ROW_NUMBER() OVER (PARTITION BY message, copy_scope, is_dropped ORDER BY partition, offset) AS n
        FROM (
            SELECT s.*, e.scope AS copy_scope, (s.id, e.scope) IN dropped AS is_dropped
            FROM expected AS e JOIN standing AS s ON s.id = e.message
        )
    ) AS wanted
    LEFT JOIN placed ON placed.message = wanted.message AND placed.scope = copy_scope AND placed.n = wanted.n
    AND NOT is_dropped
) AS c;

CREATE INDEX copy_message ON copy (message, copy_scope);

-- Messages that a scope's episodes have more often than they should.
CREATE TABLE surplus AS
SELECT
    message, scope, GROUP_CONCAT(episode_id, ', ') AS episodes,
    (
        SELECT named(conversation, partition, offset) FROM copy
        WHERE copy.message = p.message AND copy.copy_scope = p.scope ORDER BY n LIMIT 1
    ) AS name
FROM (SELECT message, scope, episode_id FROM placed ORDER BY message, scope, n) AS p
GROUP BY message, scope
HAVING COUNT(*) > (
    SELECT COUNT(*) FROM copy WHERE copy.message = p.message AND copy.copy_scope = p.scope AND NOT is_dropped
);
"""
PROGRESS = """
CREATE VIEW invalid_fate AS
SELECT partition, offset, CASE
    WHEN (partition, offset) IN dead_message THEN 'dead_lettered'
    WHEN offset >= COALESCE((SELECT offset FROM consumed WHERE role = 'segmenter' AND partition = i.partition), 0)
    THEN 'not_consumed'
    ELSE 'lost'
END AS fate
FROM invalid AS i WHERE kind = 'message';

CREATE VIEW summarized AS SELECT * FROM latest WHERE NOT is_gone AND state IN ('announced', 'not_announced');

-- Documents of messages that were changed.
CREATE VIEW archived_change AS
SELECT
    s.id, named(s.conversation, s.partition, s.offset) AS name, s.content, s.archived_to,
    d.content AS archived_content, EXISTS (
        SELECT 1 FROM changed WHERE changed.id = s.id AND deletes AND changed.offset < s.archived_to
    ) AS is_deleted
FROM standing AS s JOIN document AS d ON d.message = s.message AND d.content IS NOT NULL
WHERE s.is_first AND s.id IN (SELECT id FROM changed);

-- Changes that the summarizer has handled, with the stored episodes that have their messages.
CREATE TABLE amended_episode AS
SELECT
    s.id, named(s.conversation, s.partition, s.offset) AS name, s.message, c.offset AS change_offset, e.episode_id,
    EXISTS (
        SELECT 1 FROM changed AS o WHERE o.id = s.id AND o.excludes AND o.offset <= c.offset
    ) AS is_excluded
FROM changed AS c JOIN standing AS s ON s.id = c.id AND s.is_first
JOIN placed AS p ON p.message = s.message
JOIN stored_episode AS e ON e.episode_id = p.episode_id AND INSTR(e.messages, s.message)
WHERE EXISTS (
    SELECT 1 FROM amended AS a
    WHERE a.change_partition = c.partition AND a.change_offset = c.offset AND a.message IS NOT NULL
    AND a.conversation = c.conversation
    AND a.offset < (SELECT offset FROM consumed WHERE role = 'summarizer' AND partition = a.partition)
    AND (a.partition, a.offset) NOT IN dead_episode
);
"""

COUNTS: Final = {
    "messages": {
        "flushes": "SELECT COUNT(*) FROM flush",
        "changes": "SELECT COUNT(*) FROM change",
        "expired": """
            SELECT COUNT(*) FROM standing
            WHERE offset < archived_to AND may_have_expired AND message NOT IN (SELECT message FROM document)
        """,
        "archived": "SELECT COUNT(content) FROM document",
    },
    "episodes": {
        "total": "SELECT COUNT(*) FROM latest",
        "records": "SELECT COUNT(*) FROM closed",
        "unreadable": "SELECT COUNT(*) FROM invalid WHERE kind = 'episode'",
    },
    "summaries": {
        "announced": "SELECT COUNT(*) FROM latest WHERE state = 'announced'",
        "not_yet_summarized": "SELECT COUNT(*) FROM latest WHERE state = 'waiting'",
        "dead_lettered": "SELECT COUNT(*) FROM latest WHERE state = 'dead_lettered'",
        "events": "SELECT COUNT(*) FROM announced",
        "repeats": "SELECT COUNT(*) - COUNT(DISTINCT event_id) FROM announced",
        "superseded": "SELECT COUNT(DISTINCT event_id) - COUNT(DISTINCT episode_id) FROM announced",
        "unreadable": "SELECT COUNT(*) FROM invalid WHERE kind = 'summary'",
        "stored": "SELECT COUNT(*) FROM stored_episode",
        "deleted": "SELECT COUNT(*) FROM deleted_episode",
        "indexed": "SELECT COUNT(*) FROM indexed",
        "with_facts": "SELECT COUNT(*) FROM stored_episode WHERE has_facts",
    },
}
FATE_COUNTS: Final = """
SELECT fate, COUNT(*) FROM (
    SELECT CASE
        WHEN is_dead THEN 'dead_lettered'
        WHEN offset >= consumed_to THEN 'not_consumed'
        WHEN skipped THEN 'skipped'
        ELSE 'duplicates'
    END AS fate
    FROM standing WHERE is_dead OR skipped OR id NOT IN (SELECT message FROM expected)
    UNION ALL SELECT fate FROM invalid_fate
    UNION ALL SELECT fate FROM (SELECT fate, MAX(INSTR(:fates, fate)) FROM copy GROUP BY id)
)
GROUP BY fate
"""


@dataclass
class Finding:
    """The number of violations of one kind and the first examples in order: ids and positions, never contents."""

    count: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass
class Report:
    """Counts of `messages`, `episodes` and `summaries`. Anything in `findings` breaks the promise."""

    messages: dict[str, int] = field(default_factory=dict)
    episodes: dict[str, int] = field(default_factory=dict)
    summaries: dict[str, int] = field(default_factory=dict)
    findings: dict[str, Finding] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: dict[str, int] | None = None
    """The number of records that each worker had not finished when the wait timed out."""

    @property
    def clean(self) -> bool:
        """Whether there are no findings and nothing that was waited for is missing."""
        return not self.findings and self.missing is None

    def as_dict(self) -> dict[str, Any]:
        return {"clean": self.clean, **asdict(self)}

    def lines(self) -> Iterator[str]:
        """Format the report for people.

        An id with a line break stays on one line and cannot pass for a line of the report.
        """
        for title, counts in (("messages", self.messages), ("episodes", self.episodes), ("summaries", self.summaries)):
            yield title
            yield from (f"  {name.replace('_', ' '):<20}{count:>12,}" for name, count in counts.items())
        yield from (shown(f"note: {note}") for note in self.notes)
        for kind, finding in self.findings.items():
            yield f"{kind}: {finding.count:,}: {FINDINGS[kind].meaning}"
            yield from (shown(f"  {example}") for example in finding.examples)
        if self.missing:
            left = ", ".join(f"{count:,} by the {role}" for role, count in self.missing.items() if count)
            yield f"records not finished in time: {left or 'none left'}"
        if self.findings:
            yield "NOT CLEAN"
        elif self.missing:
            yield "INCOMPLETE: nothing is lost, duplicated or conflicting in what has arrived"
        else:
            yield "clean: nothing is lost, duplicated or conflicting"


def judge(evidence: Evidence) -> Report:
    """Run the queries of every finding. Work in progress is counted, but is not a finding."""
    evidence.run_all(INDEXES + STANDING)
    derive_expected(evidence)
    evidence.run_all(COPIES + PROGRESS)
    counts = {kind: {name: evidence.value(sql) for name, sql in named.items()} for kind, named in COUNTS.items()}
    fates = Counter(dict(evidence.rows(FATE_COUNTS, fates=" ".join(FATES))))
    counts["messages"] = {"total": fates.total(), **{fate: fates[fate] for fate in FATES}, **counts["messages"]}
    notes = evidence.circumstances.notes
    report = Report(counts["messages"], counts["episodes"], counts["summaries"], notes=notes)
    for name, kind in FINDINGS.items():
        limited = f"SELECT *, COUNT(*) OVER () FROM ({kind.query}) ORDER BY 1 LIMIT {EXAMPLES_NAMED}"  # noqa: S608 – the query is one of FINDINGS
        if found := list(evidence.rows(limited)):
            report.findings[name] = Finding(found[0][1], [example for example, _ in found])
    return report
