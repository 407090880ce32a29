-- ORPHANS: runs under a registration that does not exist. There should be none.
SELECT j.job_id, j.run_id FROM :"schema".job AS j
WHERE j.state = 2 AND NOT EXISTS (SELECT FROM :"schema".supervisor AS s WHERE s.supervisor_id = j.supervisor_id)
ORDER BY j.job_id LIMIT 500
