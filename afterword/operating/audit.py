"""Audits the delivery promise: every message is in one episode, and every episode is stored once and announced.

`evidence.py` reads topics and stores into tables. This module derives further tables from them, which the queries
share. Each finding is a query. Names that begin with a colon are fields of `Circumstances`, which is in `evidence.py`,
as is the SQL function `named`. A `CROSS JOIN` makes SQLite begin with the table on its left, which is the smaller one:
SQLite itself has no statistics to choose by.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

from afterword.operating.evidence import (
    CLOCKS_APART_MS,
    INDEXES,
    Evidence,
    open_evidence,
    read_deployment,
    scope_name,
)
from afterword.streams.kafka.clients import broker_errors
from afterword.streams.kafka.log_reader import ReadProgress, open_log
from afterword.streams.segmenter.conversation import activated, deactivated, recipients
from afterword.streams.settings import Settings
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
-- Every place that a message has in an episode.
CREATE VIEW appearance AS
SELECT core.message, closed.scope, closed.first_offset, closed.last_offset
FROM core JOIN closed ON closed.number = core.episode;

-- Where a message is: pending, with first_offset null, or in an episode whose messages' offsets include its own.
CREATE VIEW place AS
SELECT m.rowid AS id, p.scope, NULL AS first_offset, p.handed_over
FROM message AS m
JOIN pending AS p ON p.partition = m.partition AND p.offset = m.offset AND p.conversation_scope = m.scope
UNION ALL
SELECT m.rowid, a.scope, a.first_offset, FALSE
FROM message AS m
JOIN appearance AS a ON a.message = m.message AND m.offset BETWEEN a.first_offset AND a.last_offset;

-- Every message. is_first: no earlier record has its id.
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

-- For each episode, the first record of its highest revision, and how far the summarizer is with it.
CREATE TABLE latest AS
SELECT
    c.*,
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
    AND (other.revision > c.revision OR other.revision = c.revision AND other.number < c.number)
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
AS_EDIT = """
INSERT INTO change
SELECT partition, offset, conversation, tenant, message, content, FALSE, FALSE FROM standing WHERE id = :id
"""
CHANGED = """
-- Changes that count for a message: those after it, up to the one that deletes it. A dead letter has no effect.
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
"""
COPIES = """
-- Messages that were deleted while they were pending in a scope, and were sent again. The scope's episodes can only
-- have the later ones.
CREATE TABLE dropped AS
SELECT DISTINCT s.id, e.scope
FROM changed AS c CROSS JOIN standing AS s ON s.id = c.id CROSS JOIN expected AS e ON e.message = s.id
WHERE c.excludes AND c.offset < s.consumed_to
AND NOT EXISTS (SELECT 1 FROM place WHERE place.id = s.id AND place.scope = e.scope)
AND EXISTS (
    SELECT 1 FROM message AS o CROSS JOIN expected AS f ON f.message = o.rowid AND f.scope = e.scope
    WHERE o.message = s.message AND (o.partition, o.offset) > (s.partition, s.offset)
);

-- Every message that belongs in episodes, once for each of its scopes, with its place and its fate there.
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

-- Changes that the summarizer has handled, with the stored episodes that have their messages. Edits without effect are
-- not recorded; then the change is the last one that was, or -1.
CREATE TABLE amended_episode AS
SELECT
    s.id, named(s.conversation, s.partition, s.offset) AS name, s.message, e.episode_id,
    MIN(c.offset, COALESCE((SELECT changed FROM document WHERE message = s.message), c.offset)) AS change_offset,
    EXISTS (
        SELECT 1 FROM changed AS o WHERE o.id = s.id AND o.excludes AND o.offset <= c.offset
    ) AS is_excluded
FROM changed AS c CROSS JOIN standing AS s ON s.id = c.id AND s.is_first
CROSS JOIN placed AS p ON p.message = s.message
CROSS JOIN stored_episode AS e ON e.episode_id = p.episode_id AND INSTR(e.messages, s.message)
WHERE EXISTS (
    SELECT 1 FROM amended AS a
    WHERE a.change_partition = c.partition AND a.change_offset = c.offset AND a.message IS NOT NULL
    AND a.conversation = c.conversation
    AND a.offset < (SELECT offset FROM consumed WHERE role = 'summarizer' AND partition = a.partition)
    AND (a.partition, a.offset) NOT IN dead_episode
);
"""
QUERIES: Final = """
-- lost: consumed, but neither in an episode nor pending nor dead-lettered
SELECT named(conversation, partition, offset) FROM copy WHERE fate = 'lost'
UNION ALL
SELECT 'an invalid record, partition ' || partition || ', offset ' || offset || ', without a dead letter'
FROM invalid_fate WHERE fate = 'lost'

-- duplicated: in more than one episode of the same conversation or agent, or in one and still pending
SELECT name || ', in ' || episodes FROM surplus WHERE name IS NOT NULL
UNION ALL
SELECT named(conversation, partition, offset) || ', in ' || episode_id || ' and pending' FROM copy
WHERE episode_id IS NOT NULL AND is_pending AND :quiet

-- out_of_order: episodes whose messages are not in log order
SELECT DISTINCT episode_id FROM (
    SELECT episode_id, offset <= MAX(offset) OVER (
        PARTITION BY copy_scope ORDER BY ordinal, episode_id, place, n
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS is_late
    FROM copy AS c
    -- What is left of a truncated topic may be a repeat of what the episode has from a record that is gone.
    WHERE episode_id IS NOT NULL AND NOT (:messages_truncated AND (
        offset NOT BETWEEN first_offset AND last_offset
        OR first_offset < (SELECT MIN(offset) FROM message WHERE message.partition = c.partition)
    ))
)
WHERE is_late

-- altered: content in the episode differs from what was produced
SELECT named(conversation, partition, offset) || ', in ' || episode_id FROM copy
WHERE episode_id IS NOT NULL AND NOT truncated AND placed_content <> content AND NOT EXISTS (
    SELECT 1 FROM changed WHERE changed.id = copy.id AND changed.content = copy.placed_content
)

-- unknown_message: in an episode, but never produced
SELECT 'in ' || episodes FROM surplus
WHERE NOT :messages_truncated AND NOT EXISTS (SELECT 1 FROM standing WHERE message = surplus.message)

-- excluded_message: in an episode, although skipped or dead-lettered
SELECT 'in ' || episodes FROM surplus
WHERE EXISTS (SELECT 1 FROM standing WHERE message = surplus.message)
AND NOT EXISTS (SELECT 1 FROM copy WHERE message = surplus.message)

-- wrong_agent: in an episode of an agent it was not addressed to
SELECT 'in ' || episodes FROM surplus
WHERE name IS NULL AND EXISTS (SELECT 1 FROM copy WHERE message = surplus.message)

-- state_unreadable: a row of the segmenter's state is damaged, and its conversation in quarantine
SELECT COALESCE(conversation, 'no conversation') || ', partition ' || partition || ': ' || problem FROM damage

-- two_partitions: conversations with messages in several partitions, because producers use different partitioners
SELECT conversation || ', partitions ' || GROUP_CONCAT(partition, ', ') FROM (
    SELECT DISTINCT conversation, partition FROM copy WHERE offset < consumed_to ORDER BY 1, 2
)
GROUP BY conversation HAVING COUNT(*) > 1

-- not_archived: before the archiver's offset, but not archived
SELECT named(conversation, partition, offset) FROM standing
WHERE offset < archived_to AND NOT may_have_expired AND message NOT IN (SELECT message FROM document)

-- archived_differently: archived content differs from what was produced
-- The content must be that of the record it was archived from, or of any record of the message if that record is gone.
SELECT named(s.conversation, s.partition, s.offset) FROM standing AS s JOIN document AS d ON d.message = s.message
WHERE s.is_first AND d.content IS NOT NULL AND d.changed < 0 AND COALESCE(
    (
        SELECT o.content <> d.content FROM standing AS o
        WHERE o.message = d.message AND o.partition = d.partition AND o.offset = d.offset
    ),
    NOT :messages_truncated
    AND NOT EXISTS (SELECT 1 FROM standing AS o WHERE o.message = d.message AND o.content = d.content)
)

-- ordinal_gap: ordinals are not 1, 2, 3 …
SELECT scope || ' has ' || MIN(ordinal) || ' to ' || MAX(ordinal) || ' in ' || COUNT(*) || ' episodes'
FROM latest GROUP BY scope
HAVING MAX(ordinal) - MIN(ordinal) + 1 <> COUNT(*) OR COUNT(DISTINCT ordinal) <> COUNT(*)
OR NOT :episodes_truncated AND MIN(ordinal) <> 1

-- committed_twice: the same revision of an episode was committed more than once
SELECT episode_id || ' revision ' || revision || ': ' || COUNT(*) || ' times'
FROM closed GROUP BY episode_id, revision HAVING COUNT(*) > 1

-- fingerprint_wrong: fingerprint does not match the messages
SELECT episode_id || ' at partition ' || partition || ', offset ' || offset FROM closed
WHERE fingerprint <> recomputed

-- not_stored: summarized, but not stored
SELECT name FROM summarized WHERE episode_id NOT IN (SELECT episode_id FROM stored_episode)

-- stored_differently: stored with a fingerprint other than that of the closed episode
SELECT name FROM summarized AS e JOIN stored_episode AS s ON s.episode_id = e.episode_id
WHERE s.fingerprint <> e.fingerprint

-- label_wrong: archived core messages do not have the episode's id
-- A message of several episodes carries the id of the episode that was stored last.
SELECT e.episode_id || ': ' || COUNT(*) || ' of ' || (SELECT COUNT(*) FROM core WHERE episode = e.number) || ' messages'
FROM summarized AS e JOIN core AS c ON c.episode = e.number
LEFT JOIN document AS d ON d.message = c.message
WHERE d.episode_id IS NOT e.episode_id
AND NOT (d.message IS NULL AND 0 < c.sent_ms AND c.sent_ms < :messages_before_ms)
AND NOT EXISTS (SELECT 1 FROM placed WHERE message = c.message AND placed.episode_id = d.episode_id)
AND c.message NOT IN (SELECT message FROM excluded)
GROUP BY e.number

-- not_indexed: summarized, but not in the search index, or in an older revision
SELECT name FROM summarized
WHERE episode_id NOT IN (SELECT episode_id FROM indexed)
AND NOT (0 < ended_ms AND ended_ms < :episodes_before_ms)
UNION ALL
SELECT s.episode_id || ' revision ' || i.revision || ' of ' || s.revision FROM stored_episode AS s
JOIN indexed AS i ON i.episode_id = s.episode_id AND i.revision < s.revision

-- not_announced: before the summarizer's offset, but without a summary.created
SELECT name FROM latest WHERE state = 'not_announced'

-- announced_differently: events with the same id, but different contents
SELECT event_id || ': ' || COUNT(DISTINCT event) || ' contents'
FROM announced GROUP BY event_id HAVING COUNT(DISTINCT event) > 1

-- announced_wrongly: summary.created does not match its episode
SELECT event_id || ': not the id of its episode' FROM announced WHERE event_id <> episode_id || ':' || revision
UNION ALL
SELECT event_id || ': there is no such closed episode' FROM announced
WHERE :quiet AND NOT :episodes_truncated AND episode_id NOT IN (SELECT episode_id FROM closed)
UNION ALL
SELECT * FROM (
    SELECT event_id || ': message_ids are not those of the episode' FROM announced AS a
    JOIN closed AS c ON c.episode_id = a.episode_id
    GROUP BY a.rowid
    HAVING NOT MAX(a.message_ids = c.message_ids OR EXISTS (
        SELECT 1 FROM core WHERE core.episode = c.number AND core.message IN (SELECT message FROM excluded)
    ))
)

-- not_current: announced, but missing or outdated in the compacted topic of episodes
SELECT a.episode_id || ' revision ' || MAX(a.revision) FROM announced AS a
LEFT JOIN current AS c ON c.kind = 'episode' AND c.name = a.episode_id
WHERE a.episode_id NOT IN (SELECT episode_id FROM deleted_episode)
GROUP BY a.episode_id HAVING COALESCE(MAX(c.revision), 0) < MAX(a.revision)

-- resurrected: deleted, but stored, indexed, current or in a stored episode
SELECT name || ', in the compacted topic of episodes' FROM current
WHERE kind = 'episode' AND NOT is_gone AND name IN (SELECT episode_id FROM announced_deletion)
UNION ALL
SELECT name || ', in the compacted topic of conversations' FROM current AS c
WHERE NOT :episodes_truncated AND kind = 'conversation' AND NOT is_gone
AND EXISTS (SELECT 1 FROM latest WHERE scope = c.name)
AND NOT EXISTS (
    SELECT 1 FROM latest WHERE scope = c.name AND episode_id NOT IN (SELECT episode_id FROM announced_deletion)
)
UNION ALL
SELECT name || ', in the archive' FROM archived_change WHERE is_deleted
UNION ALL
SELECT * FROM (SELECT DISTINCT name || ', in ' || episode_id FROM amended_episode WHERE is_excluded)
UNION ALL
SELECT episode_id || ', in the index' FROM latest WHERE is_gone AND episode_id IN (SELECT episode_id FROM indexed)

-- fact_without_source: a fact is stored, but not a message that it names as its source
SELECT episode_id FROM stored_episode WHERE sourceless

-- stale: stored without its latest edit
SELECT name || ', in the archive' FROM archived_change AS a
WHERE NOT is_deleted AND archived_content <> COALESCE((
    SELECT content FROM changed
    WHERE changed.id = a.id AND content IS NOT NULL AND changed.offset < a.archived_to
    ORDER BY partition DESC, offset DESC LIMIT 1
), content)
-- The archiver may have handled more since its offset was read.
AND NOT EXISTS (
    SELECT 1 FROM changed
    WHERE changed.id = a.id AND changed.content = a.archived_content AND changed.offset >= a.archived_to
)
UNION ALL
SELECT * FROM (
    SELECT DISTINCT name || ', in ' || episode_id FROM amended_episode AS a
    WHERE NOT is_excluded AND change_offset >= 0 AND NOT EXISTS (
        SELECT 1 FROM stored_change AS c
        WHERE c.episode_id = a.episode_id AND c.message = a.message AND c.offset >= a.change_offset
    )
)
"""
COUNTS: Final = {
    "messages": {
        "flushes": "SELECT COUNT(*) FROM flush",
        "changes": "SELECT COUNT(*) FROM change WHERE (partition, offset) NOT IN repeat",
        "changed_repeats": "SELECT COUNT(*) FROM repeat",
        "expired": """
            SELECT COUNT(*) FROM standing
            WHERE offset < archived_to AND may_have_expired AND message NOT IN (SELECT message FROM document)
        """,
        "archived": "SELECT COUNT(content) FROM document",
    },
    "episodes": {
        "total": "SELECT COUNT(*) FROM latest",
        "unreadable": "SELECT COUNT(*) FROM invalid WHERE kind = 'episode'",
    },
    "summaries": {
        "announced": "SELECT COUNT(*) FROM latest WHERE state = 'announced'",
        "not_yet_summarized": "SELECT COUNT(*) FROM latest WHERE state = 'waiting'",
        "dead_lettered": "SELECT COUNT(*) FROM latest WHERE state = 'dead_lettered'",
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


class FindingKind(NamedTuple):
    """A way to break the promise. Each row that its query yields is a violation."""

    meaning: str
    query: str


FINDINGS: Final[Mapping[str, FindingKind]] = {
    name: FindingKind(meaning, query)
    for name, meaning, query in re.findall(r"^-- (\w+): (.*)\n((?:.+\n)+)", QUERIES, re.MULTILINE)
}


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
    missing: dict[str, int] = field(default_factory=dict)
    """The number of records that each unfinished worker had left when the wait timed out."""

    @property
    def clean(self) -> bool:
        """Whether there are no findings and every worker finished in time."""
        return not self.findings and not self.missing

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
            left = ", ".join(f"{count:,} by the {role}" for role, count in self.missing.items())
            yield f"records not finished in time: {left}"
        if self.findings:
            yield "NOT CLEAN"
        elif self.missing:
            yield "INCOMPLETE: nothing is lost, duplicated or conflicting in what has arrived"
        else:
            yield "clean: nothing is lost, duplicated or conflicting"


async def run(settings: Settings, wait_seconds: float = 0, progress: ReadProgress = lambda *_: None) -> Report:
    """Audit a deployment.

    `wait_seconds` limits the wait until the workers have finished what is on their topics; 0 means not to wait. The
    report's `missing` counts the records that were left by then. It does not wait for pending messages. `progress` is
    called with a description of the current step, how much of it is done, and the total.

    Raises: BrokerUnavailable, StoreUnavailable, TopicMissing, TopicStalled, NoRoom.
    """
    with broker_errors(settings.kafka.bootstrap_servers), open_evidence() as evidence:
        async with open_log(settings.kafka) as log:
            missing = await read_deployment(settings, log, evidence, wait_seconds, progress)
        report = judge(evidence)
    report.missing = missing
    return report


def judge(evidence: Evidence) -> Report:
    """Run the queries of every finding. Work in progress is counted, but is not a finding."""
    evidence.run_all(INDEXES + STANDING)
    derive_expected(evidence)
    evidence.run_all(CHANGED + COPIES + PROGRESS)
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


class Event(NamedTuple):
    """A message, or a flush or a conversation's deletion, because these change the active agents."""

    kind: str
    id: int
    conversation: str
    message: bytes
    partition: int
    offset: int
    record_ms: int
    agent: str | None
    content: int | None


def derive_expected(evidence: Evidence) -> None:
    """Find the scopes of every message that the segmenter accepts: the conversation, or each of its agents.

    Repeats are not accepted. Whether a message is a repeat, and which agents receive it, depends on the log's order.
    """
    evidence.run_all("""
        -- Conversations whose messages are read in order: those with repeats, or all of them with `scope = agent`
        CREATE TABLE in_order AS
        SELECT DISTINCT conversation FROM standing WHERE NOT is_dead AND NOT skipped
        GROUP BY conversation, message HAVING :max_agents IS NOT NULL OR COUNT(*) > 1;
        INSERT INTO expected
        SELECT id, scope FROM standing
        WHERE NOT is_dead AND NOT skipped AND conversation NOT IN (SELECT conversation FROM in_order);
    """)
    circumstances = evidence.circumstances
    rows = evidence.rows("""
        SELECT 'message', id, conversation, message, partition, offset, record_ms, agent, content FROM standing
        WHERE NOT is_dead AND NOT skipped AND conversation IN (SELECT conversation FROM in_order)
        UNION ALL
        SELECT 'flush', 0, conversation, x'', partition, offset, 0, agent, NULL FROM flush
        WHERE :max_agents IS NOT NULL AND agent IS NOT NULL AND (partition, offset) NOT IN dead_message
        UNION ALL
        SELECT 'deletion', 0, conversation, x'', partition, offset, 0, NULL, NULL FROM change
        WHERE :max_agents IS NOT NULL AND message IS NULL AND (partition, offset) NOT IN dead_message
        ORDER BY 3, 5, 6
    """)
    for conversation, found in groupby(map(Event._make, rows), key=attrgetter("conversation")):
        accepted, everyones = _accepted(evidence, found), scope_name(conversation)
        if circumstances.max_agents is None:
            expected: Iterator[tuple[Event, str]] = ((sent, everyones) for sent, _ in accepted)
        else:
            events, silences = zip(*accepted, strict=True)
            if circumstances.messages_truncated or any(silences):
                expected = _where_found(evidence, events, everyones)
            else:
                expected = _by_agent(evidence, events, conversation, circumstances.max_agents)
        for sent, scope in expected:
            evidence.add("expected", sent.id, scope)


def _accepted(evidence: Evidence, events: Iterable[Event]) -> Iterator[tuple[Event, bool]]:
    """Yield a conversation's events, leaving out messages that repeat one within the segmenter's dedupe window.

    A repeat with another text than the last one is an edit, unless it is a dead letter, of which there are none here.
    The flag says whether, by the records' timestamps, the conversation was silent for so long before the event that the
    segmenter may have forgotten it. Clocks may be an hour apart, and repeats do not end a silence. A repeat stays if
    its original may have been forgotten and the repeat is pending or in an episode that begins after the original.
    """
    found_again = """
        SELECT EXISTS (SELECT 1 FROM place WHERE id = :id AND (first_offset IS NULL OR first_offset > :after))
    """
    circumstances = evidence.circumstances
    forget_ms = circumstances.forget_after_ms
    long_ms, last_ms = max(forget_ms - CLOCKS_APART_MS, forget_ms // 2), 0
    accepted: dict[bytes, tuple[int, int]] = {}  # each message's number and offset
    told: dict[bytes, int | None] = {}  # the hash of each message's last text
    number = forgotten = 0  # messages with a number below `forgotten` may have been forgotten
    for sent in events:
        if sent.kind != "message":
            yield sent, False
            continue
        is_after_silence = bool(long_ms and last_ms) and (sent.record_ms <= 0 or sent.record_ms - last_ms >= long_ms)
        if is_after_silence:
            forgotten = number
        earlier, after = accepted.get(sent.message, (-1, -1))
        if earlier >= max(0, number - circumstances.dedupe_window) and (
            earlier >= forgotten or not evidence.value(found_again, id=sent.id, after=after)
        ):
            if circumstances.repeats_edit and told[sent.message] != sent.content:
                told[sent.message] = sent.content
                evidence.rows(AS_EDIT, id=sent.id)
            continue
        last_ms = max(last_ms, sent.record_ms)
        accepted[sent.message], told[sent.message] = (number, sent.offset), sent.content
        number += 1
        yield sent, is_after_silence


def _where_found(evidence: Evidence, events: Iterable[Event], everyones: str) -> Iterator[tuple[Event, str]]:
    """Yield messages, each with a scope in which it is found.

    These scopes take the place of agents' scopes that cannot be derived, because agents were active before the oldest
    record or before a long silence.
    """
    scopes = """
        SELECT scope FROM appearance WHERE message = :message
        UNION SELECT scope FROM place WHERE id = :id AND NOT handed_over
    """
    for sent in events:
        if sent.kind == "message":
            found = [scope for (scope,) in evidence.rows(scopes, id=sent.id, message=sent.message)]
            yield from ((sent, scope) for scope in found or [everyones])


def _by_agent(
    evidence: Evidence, events: Iterable[Event], conversation: str, max_agents: int
) -> Iterator[tuple[Event, str]]:
    """Yield each message once for each agent that receives it, with that agent's scope."""
    everyones = scope_name(conversation)
    stays_nobodys = "SELECT EXISTS (SELECT 1 FROM place WHERE id = :id AND scope = :everyones AND NOT handed_over)"
    active: list[str] = []
    waiting: list[Event] = []
    for event in events:
        if event.kind == "flush":
            active = deactivated(active, event.agent or "")
        elif event.kind == "deletion":
            active = []
            yield from ((waited, everyones) for waited in waiting)
            waiting = []
        elif event.agent is None and not active:
            waiting.append(event)
        else:
            if not active:  # earlier messages go to this agent, unless they are in a closed episode
                for waited in waiting:
                    is_nobodys = evidence.value(stays_nobodys, id=waited.id, everyones=everyones)
                    yield waited, everyones if is_nobodys else scope_name(conversation, event.agent)
                waiting = []
            yield from ((event, scope_name(conversation, agent)) for agent in recipients(active, event.agent))
            active, _ = activated(active, event.agent, max_agents)
    yield from ((waited, everyones) for waited in waiting)
