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

-- not_handed_over: an episode still has a user whose messages in the conversation were assigned to another
SELECT DISTINCT s.episode_id || ', assigned at partition ' || a.partition || ', offset ' || a.offset
FROM assigned AS a CROSS JOIN stored_user AS s
ON s.conversation = a.conversation AND s.user = a.earlier_user AND s.tenant IS a.tenant
WHERE EXISTS (
    SELECT 1 FROM amended AS m WHERE m.change_partition = a.partition AND m.change_offset = a.offset
    AND m.offset < (SELECT offset FROM consumed WHERE role = 'summarizer' AND partition = m.partition)
    AND (m.partition, m.offset) NOT IN dead_episode
)
-- Handed back, or begun anew.
AND NOT EXISTS (
    SELECT 1 FROM assigned AS b WHERE b.conversation = a.conversation AND b.tenant IS a.tenant
    AND b.user = a.earlier_user AND (b.partition, b.offset) > (a.partition, a.offset)
)
AND NOT EXISTS (
    SELECT 1 FROM change AS c WHERE c.conversation = a.conversation AND c.message IS NULL
    AND (c.partition, c.offset) > (a.partition, a.offset)
)
