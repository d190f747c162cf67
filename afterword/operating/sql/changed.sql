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
