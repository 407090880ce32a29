-- FIND OUTCOMES: of runs that are not in the queue under their run_id any more, those whose outcome is stored already
-- (the answer to it was lost): the status in the archive, or 'back' for a row that this run gave back.
WITH asked AS (SELECT * FROM unnest(%(job_ids)s::uuid[], %(run_ids)s::uuid[]) AS t(job_id, run_id))
SELECT asked.run_id, a.status FROM asked JOIN :"schema".archived_job AS a USING (job_id) WHERE a.run_id = asked.run_id
UNION ALL
SELECT asked.run_id, 'back' FROM asked JOIN :"schema".archived_job AS a USING (job_id)
WHERE a.last_run_id = asked.run_id AND a.run_id IS DISTINCT FROM asked.run_id
UNION ALL
SELECT asked.run_id, 'back' FROM asked JOIN :"schema".job AS j USING (job_id) WHERE j.last_run_id = asked.run_id
