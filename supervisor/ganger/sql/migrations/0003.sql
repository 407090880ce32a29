-- Version 3: what people do with jobs and queues: try a job of the archive again, ask after any job, pause everything.
-- It only adds, so a supervisor of version 2 that is running goes on with it until somebody stops it.

-- RETRY: a job of the archive goes back to its queue, due now, with a new budget of attempts; the id, the checkpoint and
-- the history stay, and its last run becomes an entry of the history. Whoever removes the row first under its lock wins.
-- Answers 'retried', 'queued' (it is in a queue already), 'duplicate' (another live job has its unique key) or 'unknown'.
-- `last_run_id` tells a repeated attempt to store the outcome of the last run that it was stored.
CREATE FUNCTION :"schema".retry(job_id uuid) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  old :"schema".archived_job;
  past jsonb;
BEGIN
  SELECT a.* INTO old FROM :"schema".archived_job AS a WHERE a.job_id = retry.job_id FOR UPDATE;
  IF NOT FOUND THEN
    RETURN CASE WHEN EXISTS (SELECT FROM :"schema".job AS j WHERE j.job_id = retry.job_id)
           THEN 'queued' ELSE 'unknown' END;
  END IF;
  past := CASE jsonb_typeof(old.history) WHEN 'array' THEN old.history ELSE '[]' END;
  IF jsonb_array_length(past) >= 20 THEN
    past := past - 0;
  END IF;
  INSERT INTO :"schema".job AS j (
    job_id, queue, job_type, payload, enqueued_at, process_at, priority, state, timeout_s, grace_s, memory_bytes,
    shutdown, unique_key, interrupts, starts, last_run_id, checkpoint, enqueued_by, history)
  VALUES (
    old.job_id, old.queue, old.job_type, old.payload, old.enqueued_at, now(), coalesce(old.priority, 0), 1,
    old.timeout_s, old.grace_s, old.memory_bytes, old.shutdown, old.unique_key, coalesce(old.interrupts, 0),
    coalesce(old.starts, 0), coalesce(old.run_id, old.last_run_id), old.checkpoint, old.enqueued_by,
    past || jsonb_strip_nulls(jsonb_build_object(
      'attempt', old.attempts, 'status', old.status, 'reason', old.reason, 'started_at', old.started_at,
      'ended_at', old.finished_at, 'supervisor', old.supervisor, 'host', old.host, 'pid', old.pid,
      'ended_by', old.ended_by, 'rung', old.rung, 'exit_code', old.exit_code, 'term_signal', old.term_signal,
      'wall_s', old.wall_s, 'cpu_s', old.cpu_s, 'max_rss', old.max_rss, 'error', old.error, 'stack', old.stack,
      'output', old.output, 'retried_at', now(), 'retried_by', session_user)))
  ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    RETURN 'duplicate';
  END IF;
  DELETE FROM :"schema".archived_job AS a WHERE a.job_id = old.job_id;
  PERFORM :"schema".wake(ARRAY[old.queue]);
  RETURN 'retried';
END $$;
REVOKE ALL ON FUNCTION :"schema".retry FROM PUBLIC;

-- LOOK UP: how a job is doing, for whoever enqueued it and for whoever may read the tables anyway; no row for others.
-- `status` is 'scheduled', 'ready' or 'running', or as in the archive.
CREATE OR REPLACE FUNCTION :"schema".look_up(
  INOUT job_id uuid, OUT queue text, OUT job_type text, OUT status text, OUT reason text, OUT attempts int,
  OUT enqueued_at timestamptz, OUT process_at timestamptz, OUT started_at timestamptz, OUT finished_at timestamptz,
  OUT error jsonb, OUT result jsonb) RETURNS SETOF record
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT j.job_id, j.queue, j.job_type, (ARRAY['scheduled', 'ready', 'running'])[j.state + 1], NULL, j.attempts,
         j.enqueued_at, j.process_at, j.started_at, NULL::timestamptz, NULL::jsonb, NULL::jsonb
  FROM :"schema".job AS j WHERE j.job_id = look_up.job_id AND (
    j.enqueued_by = session_user OR has_table_privilege(session_user, quote_ident(:'schema') || '.job', 'SELECT'))
  UNION ALL
  SELECT a.job_id, a.queue, a.job_type, a.status, a.reason, a.attempts,
         a.enqueued_at, a.process_at, a.started_at, a.finished_at, a.error, a.result
  FROM :"schema".archived_job AS a WHERE a.job_id = look_up.job_id AND (
    a.enqueued_by = session_user
    OR has_table_privilege(session_user, quote_ident(:'schema') || '.archived_job', 'SELECT'))
  LIMIT 1
$$;
