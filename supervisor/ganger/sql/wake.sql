-- WAKE: after a COPY, what the enqueue function does for one row.
SELECT :"schema".wake(%(queues)s::text[])
