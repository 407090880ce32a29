-- ENQUEUE: see the function. NULL where the client has nothing to say.
SELECT id::text, duplicate FROM :"schema".enqueue(
  job_type => %(job_type)s::text, payload => %(payload)s::jsonb, queue => %(queue)s::text,
  process_at => %(process_at)s::timestamptz, process_in => %(process_in)s::float8, priority => %(priority)s::int,
  timeout_s => %(timeout)s::float8, grace_s => %(grace)s::float8, memory_bytes => %(memory)s::bigint,
  shutdown => %(shutdown)s::text, job_id => %(job_id)s::uuid, unique_key => %(unique_key)s::text,
  notify => %(notify)s::boolean)
