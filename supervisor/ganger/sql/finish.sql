-- FINISH, batched: the only way out of the queue for a job that ran. Guarantees: only rows whose run is the one named;
-- all or nothing; locked in job_id order, so that two batches never deadlock. A run that is not returned was not ours.
-- A job_id that was used twice (by hand) keeps its later outcome; counters written by hand do not overflow.
WITH done AS (
  SELECT * FROM unnest(%(job_ids)s::uuid[], %(run_ids)s::uuid[], %(statuses)s::text[], %(reasons)s::text[],
                       %(crashes)s::int[], %(facts)s::jsonb[], %(results)s::jsonb[])
  AS t(job_id, run_id, status, reason, crash, facts, result)),
mine AS MATERIALIZED (
  SELECT j.job_id, j.run_id FROM :"schema".job AS j JOIN done ON done.job_id = j.job_id AND done.run_id = j.run_id
  ORDER BY j.job_id FOR UPDATE OF j),
gone AS (
  DELETE FROM :"schema".job AS j USING mine WHERE j.job_id = mine.job_id AND j.run_id = mine.run_id RETURNING j.*)
INSERT INTO :"schema".archived_job AS a (
  job_id, queue, job_type, payload, attempts, enqueued_at, process_at, status, finished_at,
  priority, timeout_s, grace_s, memory_bytes, shutdown, unique_key, crashes, losses, interrupts, starts,
  checkpoint, history, run_id, last_run_id, supervisor, host, pid, started_at, reason, ended_by, rung,
  exit_code, term_signal, wall_s, cpu_s, max_rss, error, stack, output, result, enqueued_by)
SELECT
  g.job_id, g.queue, g.job_type, g.payload, g.attempts, g.enqueued_at, g.process_at, done.status, now(),
  g.priority, g.timeout_s, g.grace_s, g.memory_bytes, g.shutdown, g.unique_key,
  least(g.crashes, 2147483646) + done.crash, g.losses, g.interrupts, g.starts, g.checkpoint, g.history, g.run_id, g.last_run_id, s.name, coalesce(fact.host, s.host),
  fact.pid, g.started_at,
  CASE WHEN done.status = 'cancelled' THEN coalesce(done.reason, g.cancel_reason, 'cancelled') ELSE done.reason END,
  fact.ended_by, fact.rung, fact.exit_code, fact.term_signal, fact.wall_s, fact.cpu_s, fact.max_rss, fact.error,
  fact.stack, fact.output, done.result, g.enqueued_by
FROM gone AS g
JOIN done ON done.run_id = g.run_id
LEFT JOIN :"schema".supervisor AS s ON s.supervisor_id = g.supervisor_id
CROSS JOIN LATERAL jsonb_to_record(done.facts) AS fact(
  host text, pid int, ended_by text, rung text, exit_code int, term_signal int, wall_s float8, cpu_s float8,
  max_rss bigint, error jsonb, stack text, output text)
ON CONFLICT (job_id) DO UPDATE SET
  queue = excluded.queue, job_type = excluded.job_type, payload = excluded.payload, attempts = excluded.attempts,
  enqueued_at = excluded.enqueued_at, process_at = excluded.process_at, status = excluded.status,
  finished_at = excluded.finished_at, priority = excluded.priority, timeout_s = excluded.timeout_s,
  grace_s = excluded.grace_s, memory_bytes = excluded.memory_bytes, shutdown = excluded.shutdown,
  unique_key = excluded.unique_key, crashes = excluded.crashes, losses = excluded.losses,
  interrupts = excluded.interrupts, starts = excluded.starts, checkpoint = excluded.checkpoint,
  history = excluded.history, run_id = excluded.run_id, last_run_id = excluded.last_run_id,
  supervisor = excluded.supervisor, host = excluded.host, pid = excluded.pid, started_at = excluded.started_at,
  reason = excluded.reason, ended_by = excluded.ended_by, rung = excluded.rung, exit_code = excluded.exit_code,
  term_signal = excluded.term_signal, wall_s = excluded.wall_s, cpu_s = excluded.cpu_s, max_rss = excluded.max_rss,
  error = excluded.error, stack = excluded.stack, output = excluded.output, result = excluded.result,
  enqueued_by = excluded.enqueued_by
RETURNING a.run_id
