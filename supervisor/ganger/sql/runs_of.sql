-- RUNS OF one supervisor. After its row was locked, and in a statement of its own: only a snapshot taken after the lock
-- sees a claim that was committed just before.
SELECT job_id, run_id FROM :"schema".job WHERE supervisor_id = %(supervisor_id)s AND state = 2 ORDER BY job_id
