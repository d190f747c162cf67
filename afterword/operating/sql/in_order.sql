-- Conversations whose messages are read in order: those with repeats, or all of them with `scope = agent`.
CREATE TABLE in_order AS
SELECT DISTINCT conversation FROM standing WHERE NOT is_dead AND NOT skipped
GROUP BY conversation, message HAVING :max_agents IS NOT NULL OR COUNT(*) > 1;

INSERT INTO expected
SELECT id, scope FROM standing
WHERE NOT is_dead AND NOT skipped AND conversation NOT IN (SELECT conversation FROM in_order);
