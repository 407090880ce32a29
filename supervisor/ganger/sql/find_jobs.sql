-- FIND JOBS: of the queues and of the archive together, the newest id first (ids of our clients begin with their time),
-- `most` of them, below the id `before` (NULL: from the newest on). NULL where nothing is asked for. `since` (seconds)
-- is counted from the last thing that happened: enqueued, started or ended. The reason of a job that is in a queue is
-- that of the order to cancel it, else that of its last attempt. A due row counts as ready. Times are text.
WITH live AS (
  SELECT j.job_id, j.queue, j.job_type, now_is.status, now_is.reason, j.attempts, s.name AS supervisor, s.host,
         j.enqueued_at, j.process_at, j.started_at, NULL::timestamptz AS finished_at,
         NULL::float8 AS wall_s, NULL::float8 AS cpu_s, NULL::bigint AS max_rss, NULL::text AS error
  FROM :"schema".job AS j
  LEFT JOIN :"schema".supervisor AS s ON s.supervisor_id = j.supervisor_id AND j.state = 2
  CROSS JOIN LATERAL (SELECT
    CASE WHEN j.state = 2 THEN 'running' WHEN j.state = 1 OR j.process_at <= now() THEN 'ready' ELSE 'scheduled' END,
    CASE WHEN j.cancel_at IS NOT NULL THEN coalesce(j.cancel_reason, 'cancelled')
         ELSE j.history -> -1 ->> 'reason' END) AS now_is(status, reason)
  WHERE %(live)s::boolean
    AND (%(before)s::uuid IS NULL OR j.job_id < %(before)s::uuid)
    AND (%(queue)s::text IS NULL OR j.queue = %(queue)s::text)
    AND (%(job_type)s::text IS NULL OR j.job_type = %(job_type)s::text)
    AND (%(states)s::text[] IS NULL OR now_is.status = ANY (%(states)s::text[]))
    AND (%(reason)s::text IS NULL OR now_is.reason = %(reason)s::text)
    AND (%(since)s::float8 IS NULL
         OR greatest(j.enqueued_at, j.started_at) >= now() - %(since)s::float8 * interval '1 second')
    AND (%(host)s::text IS NULL OR s.host = %(host)s::text)
  ORDER BY j.job_id DESC LIMIT %(most)s),
ended AS (
  SELECT a.job_id, a.queue, a.job_type, a.status, a.reason, a.attempts, a.supervisor, a.host,
         a.enqueued_at, a.process_at, a.started_at, a.finished_at, a.wall_s, a.cpu_s, a.max_rss,
         left(coalesce(a.error ->> 'type' || ': ', '') || (a.error ->> 'message'), 200)
  FROM :"schema".archived_job AS a
  WHERE %(archive)s::boolean
    AND (%(before)s::uuid IS NULL OR a.job_id < %(before)s::uuid)
    AND (%(queue)s::text IS NULL OR a.queue = %(queue)s::text)
    AND (%(job_type)s::text IS NULL OR a.job_type = %(job_type)s::text)
    AND (%(states)s::text[] IS NULL OR a.status = ANY (%(states)s::text[]))
    AND (%(reason)s::text IS NULL OR a.reason = %(reason)s::text)
    AND (%(since)s::float8 IS NULL OR a.finished_at >= now() - %(since)s::float8 * interval '1 second')
    AND (%(host)s::text IS NULL OR a.host = %(host)s::text)
  ORDER BY a.job_id DESC LIMIT %(most)s)
SELECT job_id, queue, job_type, status, reason, attempts, supervisor, host,
       to_json(enqueued_at) #>> '{}', to_json(process_at) #>> '{}', to_json(started_at) #>> '{}',
       to_json(finished_at) #>> '{}', wall_s, cpu_s, max_rss, error
FROM (SELECT * FROM live UNION ALL SELECT * FROM ended) AS found
ORDER BY job_id DESC LIMIT %(most)s
