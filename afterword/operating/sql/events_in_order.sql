SELECT 'message', id, conversation, message, partition, offset, record_ms, agent, content FROM standing
WHERE NOT is_dead AND NOT skipped AND conversation IN (SELECT conversation FROM in_order)
UNION ALL
SELECT 'flush', 0, conversation, x'', partition, offset, 0, agent, NULL FROM flush
WHERE :max_agents IS NOT NULL AND agent IS NOT NULL AND (partition, offset) NOT IN dead_message
UNION ALL
SELECT 'deletion', 0, conversation, x'', partition, offset, 0, NULL, NULL FROM change
WHERE :max_agents IS NOT NULL AND message IS NULL AND (partition, offset) NOT IN dead_message
ORDER BY 3, 5, 6
