-- LOOK UP: see the function. Times as text, which no DateStyle of the caller's changes; NULL where they are infinite.
SELECT job_id::text, queue, job_type, status, reason, attempts,
       to_json(enqueued_at) #>> '{}', to_json(process_at) #>> '{}', to_json(started_at) #>> '{}',
       to_json(finished_at) #>> '{}', error::text, result::text
FROM :"schema".look_up(%(job_id)s::uuid)
