-- STATUS of the queues: rows by state, and how long the oldest ready row has been due. Due rows that no supervisor has
-- promoted yet count as ready. The pause of all queues is that of the queue without a name.
WITH jobs AS (
  SELECT queue, process_at, CASE WHEN state = 0 AND process_at <= now() THEN 1 ELSE state END AS state FROM :"schema".job)
SELECT coalesce(jobs.queue, q.queue),
       count(*) FILTER (WHERE state = 1), count(*) FILTER (WHERE state = 0), count(*) FILTER (WHERE state = 2),
       extract(epoch FROM now() - min(process_at) FILTER (WHERE state = 1 AND isfinite(process_at)))::float8,
       bool_or(q.paused_at IS NOT NULL)
FROM jobs FULL JOIN :"schema".queue AS q ON q.queue = jobs.queue
WHERE jobs.queue IS NOT NULL OR q.paused_at IS NOT NULL
GROUP BY 1 ORDER BY 1
