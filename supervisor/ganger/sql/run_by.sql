-- RUN BY: the run that a job is in, and the supervisor that has it; no row where it does not run.
SELECT j.run_id, j.attempts, s.incarnation, s.name, s.host
FROM :"schema".job AS j JOIN :"schema".supervisor AS s ON s.supervisor_id = j.supervisor_id
WHERE j.job_id = %(job_id)s AND j.state = 2
