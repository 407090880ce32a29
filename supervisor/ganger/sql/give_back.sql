-- GIVE BACK, batched: retries, releases and losses. Guarantees: only rows whose run is the one named, locked in job_id
-- order. `delay_s` NULL keeps the due time and the need for a fresh child. A row with a cancel order is left alone: it
-- is to be archived as cancelled. `last_run_id` tells a repeated attempt to store the same outcome that it was stored;
-- a loss is nobody's outcome. Counters and a history that somebody wrote by hand neither overflow nor stop the batch.
WITH back AS (
  SELECT * FROM unnest(%(job_ids)s::uuid[], %(run_ids)s::uuid[], %(delays)s::float8[], %(refunds)s::int[],
                       %(interrupts)s::int[], %(crashes)s::int[], %(losses)s::int[], %(fresh)s::boolean[],
                       %(entries)s::jsonb[])
  AS t(job_id, run_id, delay_s, refund, interrupt, crash, loss, fresh, entry)),
mine AS MATERIALIZED (
  SELECT j.job_id, j.run_id, j.supervisor_id, j.attempts, j.started_at
  FROM :"schema".job AS j JOIN back ON back.job_id = j.job_id AND back.run_id = j.run_id
  WHERE j.cancel_at IS NULL
  ORDER BY j.job_id FOR UPDATE OF j)
UPDATE :"schema".job AS j
SET state = CASE WHEN back.delay_s > 0 THEN 0 ELSE 1 END,
    process_at = CASE WHEN back.delay_s IS NULL THEN j.process_at ELSE now() + back.delay_s * interval '1 second' END,
    run_id = NULL, claim_id = NULL, supervisor_id = NULL, started_at = NULL,
    attempts = greatest(j.attempts - back.refund, 0),
    interrupts = least(j.interrupts, 2147483646) + back.interrupt,
    crashes = least(j.crashes, 2147483646) + back.crash,
    losses = least(j.losses, 2147483646) + back.loss,
    fresh = back.fresh OR (j.fresh AND back.delay_s IS NULL),
    last_run_id = CASE WHEN back.loss = 0 THEN back.run_id ELSE j.last_run_id END,
    history = CASE
      WHEN told.entry IS NULL THEN j.history
      WHEN jsonb_typeof(j.history) <> 'array' THEN jsonb_build_array(told.entry)
      WHEN jsonb_array_length(j.history) < 20 THEN j.history || told.entry
      ELSE (j.history - 0) || told.entry
    END
FROM mine JOIN back ON back.job_id = mine.job_id AND back.run_id = mine.run_id
LEFT JOIN :"schema".supervisor AS s ON s.supervisor_id = mine.supervisor_id
CROSS JOIN LATERAL (SELECT jsonb_build_object(
  'attempt', mine.attempts, 'supervisor', s.name, 'host', s.host, 'started_at', mine.started_at, 'ended_at', now())
  || back.entry) AS told(entry)
WHERE j.job_id = mine.job_id AND j.run_id = mine.run_id AND j.cancel_at IS NULL
RETURNING back.run_id
