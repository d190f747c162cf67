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
