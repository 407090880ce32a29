-- REPORT, for the picture: the last runs of jobs that ended in the last `since` seconds (NULL: all), the newest `most`
-- of them, each with its history, where the earlier runs stand. Times are seconds of the epoch.
SELECT a.job_type, coalesce(a.supervisor, a.host, '?'), a.status, extract(epoch FROM a.started_at)::float8,
       extract(epoch FROM a.finished_at)::float8, a.wall_s, a.history
FROM :"schema".archived_job AS a
WHERE isfinite(a.started_at) AND isfinite(a.finished_at) AND a.finished_at >= a.started_at
  AND (%(since)s::float8 IS NULL OR a.finished_at >= now() - %(since)s::float8 * interval '1 second')
  AND (%(job_type)s::text IS NULL OR a.job_type = %(job_type)s::text)
  AND (%(queue)s::text IS NULL OR a.queue = %(queue)s::text)
ORDER BY a.finished_at DESC LIMIT %(most)s
