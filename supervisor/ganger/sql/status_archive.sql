-- STATUS of the archive: how many ended how.
SELECT status, reason, count(*) FROM :"schema".archived_job GROUP BY status, reason ORDER BY status, reason NULLS FIRST
