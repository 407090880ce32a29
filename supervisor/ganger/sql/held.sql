-- HELD: every run that the database thinks is this supervisor's, with the reason of a cancel order.
SELECT job_id, run_id, claim_id, CASE WHEN cancel_at IS NOT NULL THEN coalesce(cancel_reason, 'cancelled') END
FROM :"schema".job
WHERE supervisor_id = %(supervisor_id)s AND state = 2
ORDER BY job_id
