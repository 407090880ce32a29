-- Version 2: who enqueued a job, and functions for roles that may do something but not touch the tables.
-- It only adds, so a supervisor of version 1 that is running goes on with it until somebody stops it.

ALTER TABLE :"schema".job ADD COLUMN enqueued_by text;           -- the login role; NULL: before this version
ALTER TABLE :"schema".job ALTER COLUMN enqueued_by SET DEFAULT session_user;
ALTER TABLE :"schema".archived_job ADD COLUMN enqueued_by text;

-- LOOK UP: how a job is doing, for whoever enqueued it; no row for anybody else's. `status` is 'scheduled', 'ready' or
-- 'running', or as in the archive.
CREATE FUNCTION :"schema".look_up(
  INOUT job_id uuid, OUT queue text, OUT job_type text, OUT status text, OUT reason text, OUT attempts int,
  OUT enqueued_at timestamptz, OUT process_at timestamptz, OUT started_at timestamptz, OUT finished_at timestamptz,
  OUT error jsonb, OUT result jsonb) RETURNS SETOF record
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT j.job_id, j.queue, j.job_type, (ARRAY['scheduled', 'ready', 'running'])[j.state + 1], NULL, j.attempts,
         j.enqueued_at, j.process_at, j.started_at, NULL::timestamptz, NULL::jsonb, NULL::jsonb
  FROM :"schema".job AS j WHERE j.job_id = look_up.job_id AND j.enqueued_by = session_user
  UNION ALL
  SELECT a.job_id, a.queue, a.job_type, a.status, a.reason, a.attempts,
         a.enqueued_at, a.process_at, a.started_at, a.finished_at, a.error, a.result
  FROM :"schema".archived_job AS a WHERE a.job_id = look_up.job_id AND a.enqueued_by = session_user
  LIMIT 1
$$;

-- CANCEL, as before; the archive keeps who enqueued the job.
CREATE OR REPLACE FUNCTION :"schema".cancel(job_id uuid, reason text DEFAULT 'cancelled') RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  its_state smallint;
BEGIN
  SELECT j.state INTO its_state FROM :"schema".job AS j WHERE j.job_id = cancel.job_id FOR UPDATE;
  IF its_state = 2 THEN
    UPDATE :"schema".job AS j
    SET cancel_at = coalesce(j.cancel_at, now()),
        cancel_reason = CASE WHEN j.cancel_reason = 'killed' THEN 'killed' ELSE cancel.reason END
    WHERE j.job_id = cancel.job_id;
    RETURN 'ordered';
  ELSIF its_state IS NOT NULL THEN
    WITH gone AS (DELETE FROM :"schema".job AS j WHERE j.job_id = cancel.job_id RETURNING j.*)
    INSERT INTO :"schema".archived_job AS a (
      job_id, queue, job_type, payload, attempts, enqueued_at, process_at, status, priority, timeout_s, grace_s,
      memory_bytes, shutdown, unique_key, crashes, losses, interrupts, starts, checkpoint, history, last_run_id, reason, enqueued_by)
    SELECT g.job_id, g.queue, g.job_type, g.payload, g.attempts, g.enqueued_at, g.process_at, 'cancelled', g.priority,
      g.timeout_s, g.grace_s, g.memory_bytes, g.shutdown, g.unique_key, g.crashes, g.losses, g.interrupts, g.starts,
      g.checkpoint, g.history, g.last_run_id, cancel.reason, g.enqueued_by
    FROM gone AS g
    ON CONFLICT (job_id) DO UPDATE SET status = excluded.status, reason = excluded.reason, finished_at = now();
    RETURN 'cancelled';
  END IF;
  RETURN CASE WHEN EXISTS (SELECT FROM :"schema".archived_job AS a WHERE a.job_id = cancel.job_id)
         THEN 'finished' ELSE 'unknown' END;
END $$;

-- ENQUEUE is for everybody who was granted it, on tables that they need not be allowed to touch. What PUBLIC may call by
-- PostgreSQL's own default is taken back.
ALTER FUNCTION :"schema".enqueue SECURITY DEFINER;
REVOKE ALL ON FUNCTION :"schema".enqueue, :"schema".wake, :"schema".cancel, :"schema".look_up FROM PUBLIC;
