-- SAVE CHECKPOINT: keeps what a run has given, with its job's row. No row: it is not this run's any more, and nothing is
-- written.
UPDATE :"schema".job SET checkpoint = %(data)s::jsonb
WHERE job_id = %(job_id)s AND run_id = %(run_id)s
RETURNING run_id
