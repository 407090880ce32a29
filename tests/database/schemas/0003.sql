-- A database with the schema of version 3, as "ganger install --sql" made it, and jobs in every state: two ready, one
-- scheduled, one waiting for a retry, one running under a supervisor that is gone since, one cancelled while it ran
-- there, one written with the original's columns only, and an archive. Never edited again: tests/database/test_upgrades.py
-- brings it up to date and runs what is in it.

BEGIN;

CREATE SCHEMA IF NOT EXISTS "proletarian";

-- Version 1: the tables and the functions that clients call.
-- Times are the database's clock; durations are seconds (*_s), sizes bytes. The columns that the original has keep
-- their names and meaning, and all others have defaults, so that an INSERT written for it works here.

CREATE TABLE "proletarian".schema_version (
  version    int PRIMARY KEY,
  applied_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE "proletarian".queue (            -- made on first use; a queue without a row is not paused
  queue     text PRIMARY KEY,
  paused_at timestamptz
);

-- A supervisor waits for work in this queue: whoever enqueues there until then should notify. One row per supervisor,
-- so that a busy one does not take back what an idle one said.
CREATE TABLE "proletarian".idle (
  queue         text NOT NULL,
  supervisor_id bigint NOT NULL,
  idle_until    timestamptz,
  PRIMARY KEY (queue, supervisor_id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

CREATE TABLE "proletarian".supervisor (       -- one row per registration; ids are never used again
  supervisor_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  incarnation   uuid NOT NULL,            -- names the lock file; kept when it registers anew
  name          text NOT NULL,
  host          text NOT NULL,
  pid           int  NOT NULL,
  beat          bigint NOT NULL DEFAULT 0,  -- the lease ends for an observer who saw one beat for a whole lease
  beat_at       timestamptz NOT NULL DEFAULT now(),  -- for people; nobody decides by it
  lease_s       double precision NOT NULL,
  phase         text NOT NULL DEFAULT 'running',
  info          jsonb NOT NULL DEFAULT '{}',
  started_at    timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

CREATE TABLE "proletarian".job (
  job_id       uuid PRIMARY KEY DEFAULT gen_random_uuid(),  -- UUIDv7 from our clients
  queue        text NOT NULL DEFAULT 'default',
  job_type     text NOT NULL,
  payload      jsonb NOT NULL DEFAULT '{}',
  attempts     int  NOT NULL DEFAULT 0,                      -- charged at claim, refundable
  enqueued_at  timestamptz NOT NULL DEFAULT now(),
  process_at   timestamptz NOT NULL DEFAULT now(),
  -- beyond the original
  priority     smallint NOT NULL DEFAULT 0,                  -- smaller is more urgent
  seq          bigint GENERATED ALWAYS AS IDENTITY,          -- order among equals
  state        smallint NOT NULL DEFAULT 0,                  -- 0 scheduled, 1 ready (due), 2 running
  timeout_s    double precision,
  grace_s      double precision,
  memory_bytes bigint,
  shutdown     text,
  unique_key   text,
  crashes      int NOT NULL DEFAULT 0,
  losses       int NOT NULL DEFAULT 0,
  interrupts   int NOT NULL DEFAULT 0,
  starts       int NOT NULL DEFAULT 0,                       -- claims so far; never decreases
  fresh        boolean NOT NULL DEFAULT false,               -- only a child that ran nothing may run it
  run_id       uuid,                                         -- every write about a run matches it
  claim_id     uuid,
  supervisor_id bigint,
  started_at   timestamptz,                                  -- of the current run
  last_run_id  uuid,                                         -- the run that gave the row back last
  cancel_at    timestamptz,                                  -- a cancel order on the current run
  cancel_reason text,
  checkpoint   jsonb,
  history      jsonb NOT NULL DEFAULT '[]',                  -- one entry per earlier attempt, the last 20
  CONSTRAINT job_state    CHECK (state IN (0, 1, 2)),
  CONSTRAINT job_run      CHECK ((state = 2) = (run_id IS NOT NULL AND supervisor_id IS NOT NULL)),
  CONSTRAINT job_timeout  CHECK (timeout_s > 0 AND timeout_s < 'infinity'),
  CONSTRAINT job_grace    CHECK (grace_s >= 0 AND grace_s < 'infinity'),
  CONSTRAINT job_memory   CHECK (memory_bytes > 0),
  CONSTRAINT job_shutdown CHECK (shutdown IN ('wait', 'finish', 'interrupt', 'terminate'))
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX job_ready     ON "proletarian".job (queue, priority, process_at, seq) WHERE state = 1;  -- claim
CREATE INDEX job_scheduled ON "proletarian".job (priority, process_at) WHERE state = 0;              -- promote
CREATE INDEX job_due       ON "proletarian".job (queue, process_at) WHERE state = 0;                 -- next due
CREATE INDEX job_running   ON "proletarian".job (supervisor_id) WHERE state = 2;
CREATE INDEX job_cancel    ON "proletarian".job (supervisor_id) WHERE cancel_at IS NOT NULL;
CREATE UNIQUE INDEX job_unique ON "proletarian".job (unique_key) WHERE unique_key IS NOT NULL;

CREATE TABLE "proletarian".archived_job (
  job_id       uuid PRIMARY KEY,
  queue        text NOT NULL,
  job_type     text NOT NULL,
  payload      jsonb NOT NULL,
  attempts     int NOT NULL,
  enqueued_at  timestamptz NOT NULL,
  process_at   timestamptz NOT NULL,
  status       text NOT NULL,
  finished_at  timestamptz NOT NULL DEFAULT now(),
  -- beyond the original: the job
  priority     smallint,
  timeout_s    double precision,
  grace_s      double precision,
  memory_bytes bigint,
  shutdown     text,
  unique_key   text,
  crashes      int,
  losses       int,
  interrupts   int,
  starts       int,
  checkpoint   jsonb,
  history      jsonb,
  -- its last run; all NULL for a job that was cancelled before it ever ran
  run_id       uuid,
  last_run_id  uuid,
  supervisor   text,
  host         text,
  pid          int,
  started_at   timestamptz,
  reason       text,
  ended_by     text,        -- limit, operator, shutdown
  rung         text,        -- how far the kill ladder went
  exit_code    int,
  term_signal  int,
  wall_s       double precision,
  cpu_s        double precision,
  max_rss      bigint,
  error        jsonb,       -- type, message, traceback
  stack        text,
  output       text,
  result       jsonb,
  CONSTRAINT archived_job_status CHECK (status IN ('success', 'failure', 'cancelled'))
);
CREATE INDEX archived_job_finished ON "proletarian".archived_job (finished_at);

-- WAKE: notify the supervisors that said they wait for one of these queues. Called in a statement after the INSERT, so
-- that its snapshot sees a flag that was set meanwhile; an older snapshot cannot, so there it always notifies.
-- (For the clients' COPY; `enqueue` does the same for its one row.)
CREATE FUNCTION "proletarian".wake(queues text[]) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
  SELECT pg_notify('proletarian', left(q, 500)) FROM unnest(wake.queues) AS q
  WHERE current_setting('transaction_isolation') <> 'read committed'
     OR EXISTS (SELECT FROM "proletarian".idle AS i WHERE i.queue = q AND i.idle_until > clock_timestamp())
$$;

-- ENQUEUE for every client: insert, then, in later statements with newer snapshots, the archive and the idle flag.
-- Guarantees: at most one row per job_id (the archive included) and per unique_key; a duplicate writes nothing, raises
-- nothing and is answered with the job that is there. `id` is NULL for a duplicate that this transaction's snapshot
-- cannot see. A due time that has passed counts as now. `guarded` is the function's own business.
CREATE FUNCTION "proletarian".enqueue(
  job_type text, payload jsonb DEFAULT '{}', queue text DEFAULT 'default',
  process_at timestamptz DEFAULT NULL, process_in double precision DEFAULT NULL, priority int DEFAULT 0,
  timeout_s double precision DEFAULT NULL, grace_s double precision DEFAULT NULL, memory_bytes bigint DEFAULT NULL,
  shutdown text DEFAULT NULL, job_id uuid DEFAULT NULL, unique_key text DEFAULT NULL, notify boolean DEFAULT true,
  guarded boolean DEFAULT false, OUT id uuid, OUT duplicate boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  due timestamptz := greatest(now(), coalesce(enqueue.process_at,
                                              now() + coalesce(enqueue.process_in, 0) * interval '1 second'));
BEGIN
  IF NOT enqueue.guarded AND current_setting('transaction_isolation') <> 'read committed' THEN
    -- A duplicate enqueued since this transaction took its snapshot is an error there. Catching it is a subtransaction,
    -- which READ COMMITTED need not pay.
    BEGIN
      SELECT e.id, e.duplicate INTO id, duplicate FROM "proletarian".enqueue(
        enqueue.job_type, enqueue.payload, enqueue.queue, enqueue.process_at, enqueue.process_in, enqueue.priority,
        enqueue.timeout_s, enqueue.grace_s, enqueue.memory_bytes, enqueue.shutdown, enqueue.job_id, enqueue.unique_key,
        enqueue.notify, guarded => true) AS e;
    EXCEPTION WHEN serialization_failure THEN
      duplicate := true;
    END;
    RETURN;
  END IF;

  duplicate := true;
  LOOP
    INSERT INTO "proletarian".job AS j (job_id, queue, job_type, payload, process_at, priority, state, timeout_s, grace_s,
                                    memory_bytes, shutdown, unique_key)
    VALUES (coalesce(enqueue.job_id, gen_random_uuid()), enqueue.queue, enqueue.job_type, enqueue.payload, due,
            enqueue.priority, CASE WHEN due <= now() THEN 1 ELSE 0 END, enqueue.timeout_s, enqueue.grace_s,
            enqueue.memory_bytes, enqueue.shutdown, enqueue.unique_key)
    ON CONFLICT DO NOTHING
    RETURNING j.job_id INTO id;
    EXIT WHEN id IS NOT NULL;
    SELECT j.job_id INTO id FROM "proletarian".job AS j
    WHERE j.job_id = enqueue.job_id OR j.unique_key = enqueue.unique_key
    ORDER BY j.job_id = enqueue.job_id DESC NULLS LAST LIMIT 1;
    IF id IS NOT NULL OR enqueue.guarded THEN
      RETURN;
    END IF;  -- else whoever held the key has left the queue between the two statements: try again
  END LOOP;

  IF EXISTS (SELECT FROM "proletarian".archived_job AS a WHERE a.job_id = enqueue.job_id) THEN
    DELETE FROM "proletarian".job AS j WHERE j.job_id = enqueue.job_id;
    RETURN;
  END IF;
  duplicate := false;
  IF enqueue.notify AND (enqueue.guarded OR EXISTS (
      SELECT FROM "proletarian".idle AS i WHERE i.queue = enqueue.queue AND i.idle_until > clock_timestamp())) THEN
    PERFORM pg_notify('proletarian', left(enqueue.queue, 500));
  END IF;
END $$;

-- CANCEL: whoever removes the row first under its lock wins. Answers 'cancelled' (it was not running and is archived),
-- 'ordered' (it runs: its supervisor will stop it), 'finished' (it is in the archive) or 'unknown'.
CREATE FUNCTION "proletarian".cancel(job_id uuid, reason text DEFAULT 'cancelled') RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  its_state smallint;
BEGIN
  SELECT j.state INTO its_state FROM "proletarian".job AS j WHERE j.job_id = cancel.job_id FOR UPDATE;
  IF its_state = 2 THEN
    UPDATE "proletarian".job AS j
    SET cancel_at = coalesce(j.cancel_at, now()),
        cancel_reason = CASE WHEN j.cancel_reason = 'killed' THEN 'killed' ELSE cancel.reason END
    WHERE j.job_id = cancel.job_id;
    RETURN 'ordered';
  ELSIF its_state IS NOT NULL THEN
    WITH gone AS (DELETE FROM "proletarian".job AS j WHERE j.job_id = cancel.job_id RETURNING j.*)
    INSERT INTO "proletarian".archived_job AS a (
      job_id, queue, job_type, payload, attempts, enqueued_at, process_at, status, priority, timeout_s, grace_s,
      memory_bytes, shutdown, unique_key, crashes, losses, interrupts, starts, checkpoint, history, last_run_id, reason)
    SELECT g.job_id, g.queue, g.job_type, g.payload, g.attempts, g.enqueued_at, g.process_at, 'cancelled', g.priority,
      g.timeout_s, g.grace_s, g.memory_bytes, g.shutdown, g.unique_key, g.crashes, g.losses, g.interrupts, g.starts,
      g.checkpoint, g.history, g.last_run_id, cancel.reason
    FROM gone AS g
    ON CONFLICT (job_id) DO UPDATE SET status = excluded.status, reason = excluded.reason, finished_at = now();
    RETURN 'cancelled';
  END IF;
  RETURN CASE WHEN EXISTS (SELECT FROM "proletarian".archived_job AS a WHERE a.job_id = cancel.job_id)
         THEN 'finished' ELSE 'unknown' END;
END $$;

INSERT INTO "proletarian".schema_version (version) VALUES (1);

-- Version 2: who enqueued a job, and functions for roles that may do something but not touch the tables.
-- It only adds, so a supervisor of version 1 that is running goes on with it until somebody stops it.

ALTER TABLE "proletarian".job ADD COLUMN enqueued_by text;           -- the login role; NULL: before this version
ALTER TABLE "proletarian".job ALTER COLUMN enqueued_by SET DEFAULT session_user;
ALTER TABLE "proletarian".archived_job ADD COLUMN enqueued_by text;

-- LOOK UP: how a job is doing, for whoever enqueued it; no row for anybody else's. `status` is 'scheduled', 'ready' or
-- 'running', or as in the archive.
CREATE FUNCTION "proletarian".look_up(
  INOUT job_id uuid, OUT queue text, OUT job_type text, OUT status text, OUT reason text, OUT attempts int,
  OUT enqueued_at timestamptz, OUT process_at timestamptz, OUT started_at timestamptz, OUT finished_at timestamptz,
  OUT error jsonb, OUT result jsonb) RETURNS SETOF record
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT j.job_id, j.queue, j.job_type, (ARRAY['scheduled', 'ready', 'running'])[j.state + 1], NULL, j.attempts,
         j.enqueued_at, j.process_at, j.started_at, NULL::timestamptz, NULL::jsonb, NULL::jsonb
  FROM "proletarian".job AS j WHERE j.job_id = look_up.job_id AND j.enqueued_by = session_user
  UNION ALL
  SELECT a.job_id, a.queue, a.job_type, a.status, a.reason, a.attempts,
         a.enqueued_at, a.process_at, a.started_at, a.finished_at, a.error, a.result
  FROM "proletarian".archived_job AS a WHERE a.job_id = look_up.job_id AND a.enqueued_by = session_user
  LIMIT 1
$$;

-- CANCEL, as before; the archive keeps who enqueued the job.
CREATE OR REPLACE FUNCTION "proletarian".cancel(job_id uuid, reason text DEFAULT 'cancelled') RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  its_state smallint;
BEGIN
  SELECT j.state INTO its_state FROM "proletarian".job AS j WHERE j.job_id = cancel.job_id FOR UPDATE;
  IF its_state = 2 THEN
    UPDATE "proletarian".job AS j
    SET cancel_at = coalesce(j.cancel_at, now()),
        cancel_reason = CASE WHEN j.cancel_reason = 'killed' THEN 'killed' ELSE cancel.reason END
    WHERE j.job_id = cancel.job_id;
    RETURN 'ordered';
  ELSIF its_state IS NOT NULL THEN
    WITH gone AS (DELETE FROM "proletarian".job AS j WHERE j.job_id = cancel.job_id RETURNING j.*)
    INSERT INTO "proletarian".archived_job AS a (
      job_id, queue, job_type, payload, attempts, enqueued_at, process_at, status, priority, timeout_s, grace_s,
      memory_bytes, shutdown, unique_key, crashes, losses, interrupts, starts, checkpoint, history, last_run_id, reason, enqueued_by)
    SELECT g.job_id, g.queue, g.job_type, g.payload, g.attempts, g.enqueued_at, g.process_at, 'cancelled', g.priority,
      g.timeout_s, g.grace_s, g.memory_bytes, g.shutdown, g.unique_key, g.crashes, g.losses, g.interrupts, g.starts,
      g.checkpoint, g.history, g.last_run_id, cancel.reason, g.enqueued_by
    FROM gone AS g
    ON CONFLICT (job_id) DO UPDATE SET status = excluded.status, reason = excluded.reason, finished_at = now();
    RETURN 'cancelled';
  END IF;
  RETURN CASE WHEN EXISTS (SELECT FROM "proletarian".archived_job AS a WHERE a.job_id = cancel.job_id)
         THEN 'finished' ELSE 'unknown' END;
END $$;

-- ENQUEUE is for everybody who was granted it, on tables that they need not be allowed to touch. What PUBLIC may call by
-- PostgreSQL's own default is taken back.
ALTER FUNCTION "proletarian".enqueue SECURITY DEFINER;
REVOKE ALL ON FUNCTION "proletarian".enqueue, "proletarian".wake, "proletarian".cancel, "proletarian".look_up FROM PUBLIC;

INSERT INTO "proletarian".schema_version (version) VALUES (2);

-- Version 3: what people do with jobs and queues: try a job of the archive again, ask after any job, pause everything.
-- It only adds, so a supervisor of version 2 that is running goes on with it until somebody stops it.

-- RETRY: a job of the archive goes back to its queue, due now, with a new budget of attempts; the id, the checkpoint and
-- the history stay, and its last run becomes an entry of the history. Whoever removes the row first under its lock wins.
-- Answers 'retried', 'queued' (it is in a queue already), 'duplicate' (another live job has its unique key) or 'unknown'.
-- `last_run_id` tells a repeated attempt to store the outcome of the last run that it was stored.
CREATE FUNCTION "proletarian".retry(job_id uuid) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  old "proletarian".archived_job;
  past jsonb;
BEGIN
  SELECT a.* INTO old FROM "proletarian".archived_job AS a WHERE a.job_id = retry.job_id FOR UPDATE;
  IF NOT FOUND THEN
    RETURN CASE WHEN EXISTS (SELECT FROM "proletarian".job AS j WHERE j.job_id = retry.job_id)
           THEN 'queued' ELSE 'unknown' END;
  END IF;
  past := CASE jsonb_typeof(old.history) WHEN 'array' THEN old.history ELSE '[]' END;
  IF jsonb_array_length(past) >= 20 THEN
    past := past - 0;
  END IF;
  INSERT INTO "proletarian".job AS j (
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
  DELETE FROM "proletarian".archived_job AS a WHERE a.job_id = old.job_id;
  PERFORM "proletarian".wake(ARRAY[old.queue]);
  RETURN 'retried';
END $$;
REVOKE ALL ON FUNCTION "proletarian".retry FROM PUBLIC;

-- LOOK UP: how a job is doing, for whoever enqueued it and for whoever may read the tables anyway; no row for others.
-- `status` is 'scheduled', 'ready' or 'running', or as in the archive.
CREATE OR REPLACE FUNCTION "proletarian".look_up(
  INOUT job_id uuid, OUT queue text, OUT job_type text, OUT status text, OUT reason text, OUT attempts int,
  OUT enqueued_at timestamptz, OUT process_at timestamptz, OUT started_at timestamptz, OUT finished_at timestamptz,
  OUT error jsonb, OUT result jsonb) RETURNS SETOF record
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT j.job_id, j.queue, j.job_type, (ARRAY['scheduled', 'ready', 'running'])[j.state + 1], NULL, j.attempts,
         j.enqueued_at, j.process_at, j.started_at, NULL::timestamptz, NULL::jsonb, NULL::jsonb
  FROM "proletarian".job AS j WHERE j.job_id = look_up.job_id AND (
    j.enqueued_by = session_user OR has_table_privilege(session_user, quote_ident('proletarian') || '.job', 'SELECT'))
  UNION ALL
  SELECT a.job_id, a.queue, a.job_type, a.status, a.reason, a.attempts,
         a.enqueued_at, a.process_at, a.started_at, a.finished_at, a.error, a.result
  FROM "proletarian".archived_job AS a WHERE a.job_id = look_up.job_id AND (
    a.enqueued_by = session_user
    OR has_table_privilege(session_user, quote_ident('proletarian') || '.archived_job', 'SELECT'))
  LIMIT 1
$$;

INSERT INTO "proletarian".schema_version (version) VALUES (3);

COMMIT;

INSERT INTO "proletarian".supervisor (incarnation, name, host, pid, beat, lease_s)
VALUES ('00000000-0000-4000-8000-00000000cafe', 'old', 'gone', 4711, 7, 1);

INSERT INTO "proletarian".job (job_id, queue, job_type, payload, attempts, enqueued_at, process_at)
VALUES ('00000000-0000-4000-8000-000000000001', 'default', 'note', '"plain"', 0, now(), now());

SELECT "proletarian".enqueue('note', '"ready"', job_id => '00000000-0000-4000-8000-000000000002');
SELECT "proletarian".enqueue('note', '"limited"', job_id => '00000000-0000-4000-8000-000000000003', priority => -5,
                             timeout_s => 60, grace_s => 1, memory_bytes => 1000000000, shutdown => 'finish',
                             unique_key => 'limited');
SELECT "proletarian".enqueue('note', '"scheduled"', job_id => '00000000-0000-4000-8000-000000000004', process_in => 1);

INSERT INTO "proletarian".job (job_id, job_type, payload, attempts, crashes, starts, state, process_at, last_run_id, history)
VALUES ('00000000-0000-4000-8000-000000000005', 'note', '"retried"', 1, 1, 1, 0, now() + interval '1 second',
        gen_random_uuid(), '[{"attempt": 1, "reason": "crash", "term_signal": 9}]');

INSERT INTO "proletarian".job (job_id, job_type, payload, attempts, starts, state, run_id, claim_id, supervisor_id,
                               started_at, cancel_at, cancel_reason)
VALUES ('00000000-0000-4000-8000-000000000006', 'note', '"running"', 1, 1, 2, gen_random_uuid(), gen_random_uuid(), 1,
        now(), NULL, NULL),
       ('00000000-0000-4000-8000-000000000007', 'note', '"cancelled"', 1, 1, 2, gen_random_uuid(), gen_random_uuid(), 1,
        now(), now(), 'cancelled');

INSERT INTO "proletarian".archived_job (job_id, queue, job_type, payload, attempts, enqueued_at, process_at, status, reason,
                                        finished_at, crashes, losses, history, run_id, supervisor, host, result)
VALUES ('00000000-0000-4000-8000-000000000008', 'default', 'note', '"done"', 1, now(), now(), 'success', NULL, now(),
        0, 0, '[]', gen_random_uuid(), 'old', 'gone', '{"answer": 42}'),
       ('00000000-0000-4000-8000-000000000009', 'default', 'note', '"failed"', 3, now(), now(), 'failure', 'exception',
        now(), 0, 0, '[]', gen_random_uuid(), 'old', 'gone', NULL);
