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
