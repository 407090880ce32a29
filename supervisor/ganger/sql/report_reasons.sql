-- REPORT, why jobs that ended in the last `since` seconds (NULL: all) failed or were cancelled, by job type.
SELECT a.job_type, coalesce(a.reason, a.status), count(*)
FROM :"schema".archived_job AS a
WHERE a.status <> 'success'
  AND (%(since)s::float8 IS NULL OR a.finished_at >= now() - %(since)s::float8 * interval '1 second')
  AND (%(job_type)s::text IS NULL OR a.job_type = %(job_type)s::text)
  AND (%(queue)s::text IS NULL OR a.queue = %(queue)s::text)
GROUP BY 1, 2 ORDER BY 1, 3 DESC, 2
