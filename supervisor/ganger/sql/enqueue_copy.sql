-- ENQUEUE MANY: rows of jobs without a key of their own. The seconds of the clock are the database's.
COPY :"schema".job (job_id, queue, job_type, payload, process_at, priority, state, timeout_s, grace_s, memory_bytes,
                    shutdown)
FROM STDIN
