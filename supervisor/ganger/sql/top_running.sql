-- TOP, what runs: every run, the longest first, and who has it. Ages are seconds.
SELECT j.job_id, j.queue, j.job_type, j.attempts, extract(epoch FROM now() - j.started_at)::float8, j.timeout_s,
       CASE WHEN j.cancel_at IS NOT NULL THEN coalesce(j.cancel_reason, 'cancelled') END, j.supervisor_id
FROM :"schema".job AS j WHERE j.state = 2 ORDER BY j.started_at LIMIT %(most)s
