-- TOP, what ended last.
SELECT job_id, queue, job_type, status, reason, attempts, host, extract(epoch FROM now() - finished_at)::float8, wall_s,
       max_rss
FROM :"schema".archived_job WHERE isfinite(finished_at) ORDER BY finished_at DESC LIMIT %(most)s
