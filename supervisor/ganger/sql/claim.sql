-- CLAIM: up to `free` ready rows of one queue, most urgent first, under a new run each. Guarantees: a row goes to one
-- claimer only; none to a registration that is gone (a sweep in progress is awaited); none from a paused queue, or
-- while all are paused, for which the queue without a name stands.
-- `priority`, `process_at` and `seq` are the watermark (see database.Watermark), or let everything through. They are plain
-- index conditions: an "OR ... IS NULL" would not be one, and every dead entry would be looked up in the table.
-- Counters that somebody wrote by hand do not overflow: one such row would end every claim of its queue.
WITH me AS (
  SELECT supervisor_id FROM :"schema".supervisor WHERE supervisor_id = %(supervisor_id)s FOR KEY SHARE),
pick AS MATERIALIZED (
  SELECT j.job_id FROM :"schema".job AS j
  WHERE j.state = 1 AND j.queue = %(queue)s
    AND j.priority <= %(priority)s::smallint AND j.process_at >= %(process_at)s::timestamptz
    AND (j.process_at, j.seq) > (%(process_at)s::timestamptz, %(seq)s::bigint)
    AND (%(job_types)s::text[] IS NULL OR j.job_type = ANY (%(job_types)s::text[]))
    AND EXISTS (SELECT FROM me)
    AND NOT EXISTS (SELECT FROM :"schema".queue AS q WHERE q.queue IN (%(queue)s, '') AND q.paused_at IS NOT NULL)
  ORDER BY j.priority, j.process_at, j.seq LIMIT %(free)s FOR NO KEY UPDATE SKIP LOCKED),
claimed AS (
  UPDATE :"schema".job AS j
  SET state = 2, supervisor_id = %(supervisor_id)s, run_id = gen_random_uuid(), claim_id = %(claim_id)s,
      started_at = now(), attempts = least(j.attempts, 2147483646) + 1, starts = least(j.starts, 2147483646) + 1
  FROM pick WHERE j.job_id = pick.job_id
  RETURNING j.*),
reached AS (SELECT max(priority) AS last, min(process_at) AS first FROM claimed)
SELECT job_id, run_id, claim_id, queue, job_type, payload::text, attempts, crashes, losses,
       to_json(enqueued_at) #>> '{}', to_json(process_at) #>> '{}', timeout_s, grace_s, memory_bytes, shutdown, fresh,
       cancel_at IS NOT NULL, checkpoint::text, left(trace, 8192),
       last, to_json(first) #>> '{}',
       coalesce(max(seq) FILTER (WHERE priority = last AND process_at = first) OVER (), 9223372036854775807)
FROM claimed CROSS JOIN reached ORDER BY priority, process_at, seq
