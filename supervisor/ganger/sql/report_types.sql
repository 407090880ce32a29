-- REPORT, by job type, over the jobs that ended in the last `since` seconds (NULL: all): how many ended how, how long
-- they had waited when their last run began, and what all their runs took, those in the history included. A run is good
-- if its job succeeded by it; the CPU of the others was wasted. NULL where nothing was measured; numbers that somebody
-- wrote into a history by hand as something else count as not measured.
WITH ended AS (
  SELECT a.job_type, a.status, a.wall_s, a.cpu_s, a.max_rss, a.started_at, a.process_at,
         CASE jsonb_typeof(a.history) WHEN 'array' THEN a.history ELSE '[]' END AS history
  FROM :"schema".archived_job AS a
  WHERE (%(since)s::float8 IS NULL OR a.finished_at >= now() - %(since)s::float8 * interval '1 second')
    AND (%(job_type)s::text IS NULL OR a.job_type = %(job_type)s::text)
    AND (%(queue)s::text IS NULL OR a.queue = %(queue)s::text)),
jobs AS (
  SELECT job_type, count(*) AS jobs, count(*) FILTER (WHERE status = 'success') AS success,
         count(*) FILTER (WHERE status = 'failure') AS failure,
         count(*) FILTER (WHERE status = 'cancelled') AS cancelled,
         percentile_cont(ARRAY[0.5, 0.95, 1.0]) WITHIN GROUP (
           ORDER BY greatest(extract(epoch FROM started_at - process_at)::float8, 0))
           FILTER (WHERE isfinite(process_at) AND isfinite(started_at)) AS wait_s
  FROM ended GROUP BY job_type),
run AS (
  SELECT job_type, status = 'success' AS good, wall_s, cpu_s, max_rss::float8 AS max_rss
  FROM ended WHERE started_at IS NOT NULL
  UNION ALL
  SELECT ended.job_type, coalesce(entry ->> 'status' = 'success', false),
         CASE jsonb_typeof(entry -> 'wall_s') WHEN 'number' THEN (entry ->> 'wall_s')::float8 END,
         CASE jsonb_typeof(entry -> 'cpu_s') WHEN 'number' THEN (entry ->> 'cpu_s')::float8 END,
         CASE jsonb_typeof(entry -> 'max_rss') WHEN 'number' THEN (entry ->> 'max_rss')::float8 END
  FROM ended CROSS JOIN LATERAL jsonb_array_elements(ended.history) AS past(entry)),
runs AS (
  SELECT job_type, count(*) AS runs,
         percentile_cont(ARRAY[0.5, 0.95, 1.0]) WITHIN GROUP (ORDER BY wall_s) AS wall_s,
         percentile_cont(ARRAY[0.5, 0.95, 1.0]) WITHIN GROUP (ORDER BY cpu_s) AS cpu_s,
         percentile_cont(ARRAY[0.5, 0.95, 1.0]) WITHIN GROUP (ORDER BY max_rss) AS max_rss,
         count(*) FILTER (WHERE good) AS good,
         percentile_cont(ARRAY[0.5, 0.95, 1.0]) WITHIN GROUP (ORDER BY wall_s) FILTER (WHERE good) AS good_wall_s,
         percentile_cont(ARRAY[0.5, 0.95, 1.0]) WITHIN GROUP (ORDER BY max_rss) FILTER (WHERE good) AS good_max_rss,
         sum(cpu_s) AS cpu_total_s, sum(cpu_s) FILTER (WHERE NOT good) AS cpu_wasted_s,
         sum(cpu_s) FILTER (WHERE wall_s > 0) / nullif(sum(wall_s) FILTER (WHERE cpu_s IS NOT NULL), 0) AS efficiency
  FROM run GROUP BY job_type)
SELECT j.job_type, j.jobs, j.success, j.failure, j.cancelled, j.wait_s, coalesce(r.runs, 0), r.wall_s, r.cpu_s,
       r.max_rss, coalesce(r.good, 0), r.good_wall_s, r.good_max_rss, coalesce(r.cpu_total_s, 0), coalesce(r.cpu_wasted_s, 0),
       r.efficiency
FROM jobs AS j LEFT JOIN runs AS r USING (job_type) ORDER BY r.cpu_total_s DESC NULLS LAST, j.job_type
