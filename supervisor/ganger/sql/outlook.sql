-- OUTLOOK, before a claim: the oldest transaction that may still commit something, and the seconds until the next
-- scheduled row of these queues is due (0: it is, NULL: there is none).
WITH next AS (
  SELECT min(first.due) AS due FROM unnest(%(queues)s::text[]) AS q(queue) CROSS JOIN LATERAL (
    SELECT min(j.process_at) AS due FROM :"schema".job AS j WHERE j.state = 0 AND j.queue = q.queue) AS first)
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
       CASE WHEN due <= clock_timestamp() THEN 0
            WHEN due < 'infinity' THEN extract(epoch FROM due - clock_timestamp()) END::float8
FROM next
