-- SHOW JOB: everything that stands in the row of a job, as JSON text: from its queue, with who runs it, or from the
-- archive. A run's progress is as its supervisor passed it on with its last beat.
SELECT (to_jsonb(j) || jsonb_build_object(
  'status', CASE WHEN j.state = 2 THEN 'running' WHEN j.state = 1 OR j.process_at <= now() THEN 'ready'
                 ELSE 'scheduled' END,
  'supervisor', s.name, 'host', s.host, 'progress', s.info -> 'progress' -> j.job_id::text, 'paused', EXISTS (
    SELECT FROM :"schema".queue AS q WHERE q.queue IN (j.queue, '') AND q.paused_at IS NOT NULL)))::text
FROM :"schema".job AS j
LEFT JOIN :"schema".supervisor AS s ON s.supervisor_id = j.supervisor_id AND j.state = 2
WHERE j.job_id = %(job_id)s
UNION ALL
SELECT to_jsonb(a)::text FROM :"schema".archived_job AS a WHERE a.job_id = %(job_id)s
LIMIT 1
