CREATE TABLE messages (
    key TEXT NOT NULL UNIQUE, conversation_id TEXT, tenant_id TEXT, user_id TEXT, agent_id TEXT, role TEXT,
    sent_at INTEGER, partition INTEGER, offset INTEGER, changed INTEGER NOT NULL,
    metadata_offset INTEGER NOT NULL DEFAULT -1, is_whole INTEGER NOT NULL DEFAULT TRUE,
    said TEXT NOT NULL DEFAULT '',
    deleted INTEGER NOT NULL DEFAULT FALSE, skipped INTEGER, tokens INTEGER, episode_id TEXT, content TEXT,
    message TEXT);
CREATE INDEX messages_of_conversation ON messages (conversation_id, offset);
CREATE INDEX messages_unsummarized ON messages (conversation_id, offset) WHERE episode_id IS NULL;
CREATE INDEX messages_of_user ON messages (user_id, tenant_id, conversation_id);
CREATE INDEX messages_pending ON messages (user_id, tenant_id, sent_at) WHERE episode_id IS NULL AND NOT skipped;
CREATE INDEX messages_by_age ON messages (sent_at);
CREATE TABLE message_scopes (key TEXT, scope TEXT, PRIMARY KEY (key, scope)) WITHOUT ROWID;
CREATE TABLE episodes (
    id TEXT NOT NULL UNIQUE, scope TEXT NOT NULL, conversation_id TEXT NOT NULL, tenant_id TEXT,
    ordinal INTEGER NOT NULL, revision INTEGER NOT NULL, attempt INTEGER NOT NULL, deleted INTEGER NOT NULL, ended_at INTEGER, due_at INTEGER,
    document TEXT NOT NULL);
CREATE INDEX episodes_of_scope ON episodes (scope, ordinal);
CREATE INDEX episodes_of_conversation ON episodes (conversation_id, id);
CREATE INDEX episodes_by_age ON episodes (ended_at);
CREATE INDEX episodes_due ON episodes (due_at) WHERE due_at IS NOT NULL;
CREATE TABLE episode_messages (
    conversation_id TEXT, message_id TEXT, episode_id TEXT,
    PRIMARY KEY (conversation_id, message_id, episode_id)) WITHOUT ROWID;
CREATE TABLE participants (episode_id TEXT, tenant_id TEXT, user_id TEXT, conversation_id TEXT);
CREATE INDEX participants_of_episode ON participants (episode_id);
CREATE INDEX participants_by_user ON participants (user_id, tenant_id, conversation_id);
CREATE TABLE facts (
    user_id TEXT, tenant_id TEXT, statement TEXT, kind TEXT, attribute TEXT, status TEXT, about TEXT, said_by TEXT,
    episode_id TEXT, conversation_id TEXT, ordinal INTEGER, message_ids TEXT, ended_at INTEGER);
CREATE INDEX facts_of_episode ON facts (episode_id);
CREATE INDEX facts_of_user ON facts (user_id, tenant_id, ended_at DESC);
CREATE TABLE conversation_summaries (
    id TEXT NOT NULL UNIQUE, conversation_id TEXT NOT NULL, row INTEGER NOT NULL, revision INTEGER NOT NULL,
    last_ordinal INTEGER NOT NULL, document TEXT NOT NULL);
CREATE INDEX summaries_of_conversation ON conversation_summaries (conversation_id, row);
CREATE TABLE conversations (
    id TEXT NOT NULL UNIQUE, revision INTEGER NOT NULL, tenant_id TEXT, user_id TEXT, episode_count INTEGER NOT NULL,
    updated_at INTEGER NOT NULL, document TEXT NOT NULL);
CREATE INDEX conversations_of_user ON conversations (user_id, tenant_id, updated_at, id);
CREATE TABLE records (kind TEXT, key TEXT, document TEXT NOT NULL, PRIMARY KEY (kind, key));
CREATE TABLE points (
    id INTEGER PRIMARY KEY, episode_id TEXT NOT NULL UNIQUE, revision INTEGER NOT NULL,
    agent_id TEXT, conversation_id TEXT, ended_at INTEGER, model TEXT, signs BLOB, message_ids TEXT, packed BLOB,
    stemmer TEXT);
CREATE TABLE finders (
    id INTEGER PRIMARY KEY, point INTEGER NOT NULL, user_id TEXT NOT NULL, tenant_id TEXT, started_at INTEGER);
CREATE INDEX finders_of_point ON finders (point);
CREATE INDEX finders_by_user ON finders (user_id, tenant_id, started_at, point);
CREATE TABLE vectors (id INTEGER PRIMARY KEY, model TEXT, size INTEGER NOT NULL, packed BLOB NOT NULL);
CREATE VIRTUAL TABLE words USING fts5 (text, tokenize = 'ascii');
INSERT INTO words (words, rank) VALUES ('secure-delete', 1);
