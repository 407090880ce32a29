-- FINISH, batched: the only way out of the queue for a job that ran. Guarantees: only rows whose run is the one named;
-- all or nothing; locked in job_id order, so that two batches never deadlock, and then deleted. A run that is not
-- returned was not ours. A job_id that was used twice (by hand) keeps its later outcome; counters written by hand do not
-- overflow. The outcomes come as one JSON text, which a client makes fastest; in it a result is text of its own.
WITH done AS (
  SELECT job_id, run_id, status, reason, crash, facts, result::jsonb AS result
  FROM jsonb_to_recordset(%(outcomes)s::jsonb)
  AS t(job_id uuid, run_id uuid, status text, reason text, crash int, facts jsonb, result text)),
mine AS MATERIALIZED (
  SELECT done.* FROM :"schema".job AS j JOIN done ON done.job_id = j.job_id AND done.run_id = j.run_id
  ORDER BY j.job_id FOR UPDATE OF j),
gone AS (
  DELETE FROM :"schema".job AS j USING mine WHERE j.job_id = mine.job_id
  RETURNING j.*, mine.status AS ended_as, mine.reason AS ended_why, mine.crash, mine.facts, mine.result)
INSERT INTO :"schema".archived_job AS a (
  job_id, queue, job_type, payload, attempts, enqueued_at, process_at, status, finished_at,
  priority, timeout_s, grace_s, memory_bytes, shutdown, unique_key, crashes, losses, interrupts, starts,
  checkpoint, history, run_id, last_run_id, supervisor, host, pid, started_at, reason, ended_by, rung,
  exit_code, term_signal, wall_s, cpu_s, max_rss, error, stack, output, result, enqueued_by)
SELECT
  g.job_id, g.queue, g.job_type, g.payload, g.attempts, g.enqueued_at, g.process_at, g.ended_as, now(),
  g.priority, g.timeout_s, g.grace_s, g.memory_bytes, g.shutdown, g.unique_key,
  least(g.crashes, 2147483646) + g.crash, g.losses, g.interrupts, g.starts, g.checkpoint, g.history, g.run_id, g.last_run_id, s.name, coalesce(fact.host, s.host),
  fact.pid, g.started_at,
  CASE WHEN g.ended_as = 'cancelled' THEN coalesce(g.ended_why, g.cancel_reason, 'cancelled') ELSE g.ended_why END,
  fact.ended_by, fact.rung, fact.exit_code, fact.term_signal, fact.wall_s, fact.cpu_s, fact.max_rss, fact.error,
  fact.stack, fact.output, g.result, g.enqueued_by
FROM gone AS g
LEFT JOIN :"schema".supervisor AS s ON s.supervisor_id = g.supervisor_id
CROSS JOIN LATERAL jsonb_to_record(g.facts) AS fact(
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
