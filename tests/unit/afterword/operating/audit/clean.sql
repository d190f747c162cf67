-- Six messages: two episodes of two, one message pending, and one not consumed. Everything closed is summarized.
INSERT INTO consumed VALUES ('segmenter', 0, 5), ('archiver', 0, 6), ('summarizer', 0, 3)

INSERT INTO say (n, offset) VALUES (1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 5)

INSERT INTO pending VALUES (0, 4, 'c', 'c', FALSE)

INSERT INTO close (ordinal, numbers, offset) VALUES (1, '[1, 2]', 0), (2, '[3, 4]', 2)

INSERT INTO announced SELECT episode_id || ':1', episode_id, 1, 'e', message_ids FROM closed

INSERT INTO compacted VALUES ('conversation', 'c', 0, FALSE, NULL)

INSERT INTO stored_episode VALUES ('c:1', 1, 'f', 'm1m2', FALSE, FALSE), ('c:2', 1, 'f', 'm3m4', FALSE, FALSE)

INSERT INTO document
SELECT message, (SELECT episode_id FROM closed WHERE offset = m.offset / 2 * 2), content, NULL, NULL, -1
FROM message AS m

INSERT INTO indexed SELECT episode_id, 1 FROM closed
