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
