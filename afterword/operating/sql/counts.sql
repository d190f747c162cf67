-- messages flushes: sent flushes
SELECT COUNT(*) FROM flush

-- messages changes: edits and deletions
SELECT COUNT(*) FROM change WHERE (partition, offset) NOT IN repeat

-- messages changed_repeats: messages with a known id and another text
SELECT COUNT(*) FROM repeat

-- messages expired: no longer in the archive because of their age
SELECT COUNT(*) FROM standing
WHERE offset < archived_to AND may_have_expired AND message NOT IN (SELECT message FROM document)

-- messages archived: in the archive
SELECT COUNT(content) FROM document

-- episodes total: closed
SELECT COUNT(*) FROM latest

-- episodes unreadable: records that are no events
SELECT COUNT(*) FROM invalid WHERE kind = 'episode'

-- summaries announced: of the last revision
SELECT COUNT(*) FROM latest WHERE state = 'announced'

-- summaries not_yet_summarized: episodes that wait
SELECT COUNT(*) FROM latest WHERE state = 'waiting'

-- summaries dead_lettered: episodes that were rejected
SELECT COUNT(*) FROM latest WHERE state = 'dead_lettered'

-- summaries repeats: records of an event that another record has, too
SELECT COUNT(*) - COUNT(DISTINCT event_id) FROM announced

-- summaries superseded: of earlier revisions
SELECT COUNT(DISTINCT event_id) - COUNT(DISTINCT episode_id) FROM announced

-- summaries unreadable: records that are no events
SELECT COUNT(*) FROM invalid WHERE kind = 'summary'

-- summaries stored: in the store
SELECT COUNT(*) FROM stored_episode

-- summaries deleted: deletions in the store
SELECT COUNT(*) FROM deleted_episode

-- summaries indexed: in the search index
SELECT COUNT(*) FROM indexed

-- summaries with_facts: in the store, with facts
SELECT COUNT(*) FROM stored_episode WHERE has_facts
