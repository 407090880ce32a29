-- CANCELS: the cancel orders on this supervisor's runs.
SELECT job_id, run_id, claim_id, coalesce(cancel_reason, 'cancelled')
FROM :"schema".job
WHERE supervisor_id = %(supervisor_id)s AND cancel_at IS NOT NULL AND state = 2
ORDER BY job_id
