-- CANCEL: see the function.
SELECT :"schema".cancel(%(job_id)s::uuid, %(reason)s::text)
