-- The offset that a worker's group has committed in a partition of its input. role: segmenter, archiver or summarizer
CREATE TABLE consumed (role, partition, offset, PRIMARY KEY (role, partition)) WITHOUT ROWID;

-- On messages: message.created; record_ms is the record's timestamp
CREATE TABLE message (
    partition, offset, conversation, scope, message, content, skipped, agent, tenant, record_ms, sent_ms
);
-- conversation.flush
CREATE TABLE flush (partition, offset, conversation, agent);
-- Edits and deletions. message: null for the whole conversation; content: the new one, if it is an edit that changed
-- it; excludes: the message must not be in an episode any longer
CREATE TABLE change (partition, offset, conversation, tenant, message, content, deletes, excludes);
-- conversation.assigned; users are digests
CREATE TABLE assigned (partition, offset, conversation, tenant, earlier_user, user);
-- Those changes that are messages with the id of an earlier one and another text (see audit.py)
CREATE VIEW repeat AS
SELECT c.partition, c.offset FROM change AS c JOIN message AS m
ON m.message = c.message AND m.partition = c.partition AND m.offset = c.offset;

-- Original positions of dead letters of messages (kind: message) and of episode.closed (episode). Those of the archiver
-- are not here, because their messages are in episodes anyway. quarantined: rejected because its conversation's state
-- was damaged, so that rebuilding the state reads it again
CREATE TABLE dead_letter (kind, partition, offset, quarantined);
CREATE VIEW dead_message AS SELECT partition, offset FROM dead_letter WHERE kind = 'message';
CREATE VIEW dead_episode AS SELECT partition, offset FROM dead_letter WHERE kind = 'episode';

-- In the segmenter's state: messages that wait for their episode to close. handed_over: it was waiting for an agent
-- when the state was first read, but not a moment later
CREATE TABLE pending (partition, offset, scope, conversation_scope, handed_over);
-- Rows that cannot be read. conversation: null if the key names none
CREATE TABLE damage (conversation, partition, problem);

-- Derived: the scopes that each message belongs to, by its rowid; none if it repeats an earlier one (see audit.py)
CREATE TABLE expected (message, scope, PRIMARY KEY (message, scope)) WITHOUT ROWID;

-- On episode.closed, numbered as they are read. recomputed: the fingerprint of the messages that it carries;
-- message_ids: the hash of their ids; first_offset and last_offset: of its core messages on messages; truncated: edits
-- made it too large and its contents were cut, so that they cannot be compared
CREATE TABLE closed (
    number INTEGER PRIMARY KEY, partition, offset, episode_id, revision, conversation, ordinal, fingerprint, recomputed,
    message_ids, scope, first_offset, last_offset, truncated, ended_ms
);
-- Its core messages. episode: its number
CREATE TABLE core (episode INTEGER, place, message, content, sent_ms, PRIMARY KEY (episode, place)) WITHOUT ROWID;
-- episode.amended, with the position of the change on messages
CREATE TABLE amended (partition, offset, conversation, message, change_partition, change_offset);

-- summary.created, with the hash of the whole event, and summary.deleted
CREATE TABLE announced (event_id, episode_id, revision, event, message_ids);
CREATE TABLE announced_deletion (event_id, episode_id);
-- The last record of each key in each partition of the compacted topics. name: an episode's id, or a conversation's
-- scope, which has no revision
CREATE TABLE compacted (kind, name, partition, is_gone, revision, PRIMARY KEY (kind, name, partition)) WITHOUT ROWID;
-- The last of these, because a key moves to a higher partition when the number of partitions is doubled
CREATE VIEW current AS
SELECT kind, name, is_gone, revision, MAX(partition) FROM compacted GROUP BY kind, name;
-- Invalid records of messages (kind: message), episode.closed (episode) and the topics of summaries (summary)
CREATE TABLE invalid (kind, partition, offset);

-- In the stores: episodes. messages: the digests of its core messages, one after the other; sourceless: a fact names a
-- message that is not among them
CREATE TABLE stored_episode (
    episode_id PRIMARY KEY, revision, fingerprint, messages, has_facts, sourceless
) WITHOUT ROWID;
-- The users in its messages, as digests
CREATE TABLE stored_user (episode_id, conversation, tenant, user);
-- Messages that a summary was made from after they had changed, with the offset of the change
CREATE TABLE stored_change (episode_id, message, offset);
-- Tombstones, of which some may be newer than stored_episode. expired: deleted because it was past its retention
CREATE TABLE deleted_episode (episode_id PRIMARY KEY, expired) WITHOUT ROWID;
-- The archive's messages, with the position of the record that each was archived from. content: null for a tombstone;
-- changed: offset of the last change
CREATE TABLE document (message, episode_id, content, partition, offset, changed);

-- Episodes in the search index
CREATE TABLE indexed (episode_id PRIMARY KEY, revision) WITHOUT ROWID;
