SELECT fate, COUNT(*) FROM (
    SELECT CASE
        WHEN is_dead THEN 'dead_lettered'
        WHEN offset >= consumed_to THEN 'not_consumed'
        WHEN skipped THEN 'skipped'
        ELSE 'duplicates'
    END AS fate
    FROM standing WHERE is_dead OR skipped OR id NOT IN (SELECT message FROM expected)
    UNION ALL SELECT fate FROM invalid_fate
    UNION ALL SELECT fate FROM (SELECT fate, MAX(INSTR(:fates, fate)) FROM copy GROUP BY id)
)
GROUP BY fate
