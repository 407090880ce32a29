-- STATUS of the supervisors: registrations, the age of their last beat in seconds, and their runs.
SELECT s.supervisor_id, s.name, s.host, s.pid, s.phase, s.info, s.beat,
       extract(epoch FROM now() - s.beat_at)::float8, s.lease_s, extract(epoch FROM now() - s.started_at)::float8,
       (SELECT count(*) FROM :"schema".job AS j WHERE j.supervisor_id = s.supervisor_id AND j.state = 2)
FROM :"schema".supervisor AS s ORDER BY s.started_at, s.supervisor_id
