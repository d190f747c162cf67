-- What tests write into the audit's tables. A blank line ends a statement. Message n is `mn` and says `text n`; what a
-- test leaves null is as in a clean deployment.
CREATE VIEW say AS SELECT NULL AS n, NULL AS offset, NULL AS content, NULL AS agent, NULL AS record_ms

CREATE TRIGGER said INSTEAD OF INSERT ON say BEGIN
    INSERT INTO message VALUES (
        0, NEW.offset, 'c', 'c', 'm' || NEW.n, COALESCE(NEW.content, 'text ' || NEW.n), FALSE, NEW.agent, NULL,
        COALESCE(NEW.record_ms, 0), 0
    );
END

-- `numbers` is a JSON list of messages
CREATE VIEW close AS
SELECT NULL AS ordinal, NULL AS numbers, NULL AS offset, NULL AS revision, NULL AS scope, NULL AS first, NULL AS last

CREATE TRIGGER was_closed INSTEAD OF INSERT ON close BEGIN
    INSERT INTO closed VALUES (
        NULL, 0, NEW.offset, COALESCE(NEW.scope, 'c') || ':' || NEW.ordinal, COALESCE(NEW.revision, 1), 'c', NEW.ordinal,
        'f', 'f', NEW.numbers, COALESCE(NEW.scope, 'c'),
        COALESCE(NEW.first, (SELECT MIN(value) - 1 FROM json_each(NEW.numbers))),
        COALESCE(NEW.last, (SELECT MAX(value) - 1 FROM json_each(NEW.numbers))), FALSE, 0
    );
    INSERT INTO core SELECT (SELECT MAX(number) FROM closed), key, 'm' || value, 'text ' || value, 0
    FROM json_each(NEW.numbers);
END

-- The compacted topic has what is announced
CREATE TRIGGER was_announced AFTER INSERT ON announced BEGIN
    INSERT OR REPLACE INTO compacted VALUES ('episode', NEW.episode_id, 0, FALSE, NEW.revision);
END

-- An edit of a message of an episode, or without a content its deletion, that all workers have handled
CREATE VIEW amend AS SELECT NULL AS n, NULL AS offset, NULL AS content

CREATE TRIGGER was_amended INSTEAD OF INSERT ON amend BEGIN
    INSERT INTO change
    VALUES (0, NEW.offset, 'c', NULL, 'm' || NEW.n, NEW.content, NEW.content IS NULL, NEW.content IS NULL);
    INSERT INTO amended VALUES (0, NEW.offset - 20, 'c', 'm' || NEW.n, 0, NEW.offset);
    UPDATE consumed SET offset = 50;
    INSERT INTO pending SELECT 0, 5, 'c', 'c', FALSE WHERE NOT EXISTS (SELECT 1 FROM pending WHERE offset = 5);
    UPDATE stored_episode SET messages = REPLACE(messages, 'm' || NEW.n, '') WHERE NEW.content IS NULL;
    INSERT INTO stored_change SELECT episode_id, 'm' || NEW.n, NEW.offset FROM stored_episode;
    UPDATE document
    SET content = NEW.content, changed = NEW.offset, episode_id = CASE WHEN NEW.content IS NOT NULL THEN episode_id END
    WHERE message = 'm' || NEW.n;
END

CREATE VIEW assign AS SELECT NULL AS offset, NULL AS earlier_user, NULL AS user

CREATE TRIGGER was_assigned INSTEAD OF INSERT ON assign BEGIN
    INSERT INTO assigned VALUES (0, NEW.offset, 'c', NULL, NEW.earlier_user, NEW.user);
    INSERT INTO amended VALUES (0, NEW.offset, 'c', NULL, 0, NEW.offset);
    UPDATE consumed SET offset = 1000 WHERE role = 'summarizer';
END

-- A deletion of every episode that all workers have handled
CREATE VIEW remove AS SELECT NULL AS everything

CREATE TRIGGER was_removed INSTEAD OF INSERT ON remove BEGIN
    DELETE FROM stored_episode;
    DELETE FROM indexed;
    INSERT INTO announced_deletion SELECT episode_id || ':2', episode_id FROM closed;
    INSERT INTO deleted_episode SELECT episode_id, FALSE FROM closed;
    UPDATE compacted SET is_gone = TRUE, revision = revision + 1;
END
