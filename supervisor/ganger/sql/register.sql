-- REGISTER: a row under a new id.
INSERT INTO :"schema".supervisor (incarnation, name, host, pid, lease_s)
VALUES (%(incarnation)s, %(name)s, %(host)s, %(pid)s, %(lease_s)s)
RETURNING supervisor_id
