-- ENQUEUE: see the function. NULL where the client has nothing to say. The trace is the setting that the row's default
-- reads: what an argument is made of is evaluated before the function is called.
SELECT id::text, duplicate FROM :"schema".enqueue(
  job_type => CASE WHEN %(trace)s::text IS NULL OR set_config('ganger.trace', %(trace)s::text, true) IS NOT NULL
              THEN %(job_type)s::text END,
  payload => %(payload)s::jsonb, queue => %(queue)s::text,
  process_at => %(process_at)s::timestamptz, process_in => %(process_in)s::float8, priority => %(priority)s::int,
  timeout_s => %(timeout)s::float8, grace_s => %(grace)s::float8, memory_bytes => %(memory)s::bigint,
  shutdown => %(shutdown)s::text, job_id => %(job_id)s::uuid, unique_key => %(unique_key)s::text,
  notify => %(notify)s::boolean)
