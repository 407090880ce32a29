-- REGISTER: a row under a new id. The caller's, at random, and not the sequence's next: a failover that forgets commits
-- takes the sequence back as well, and two supervisors of one id would give each other's runs back to the queue.
INSERT INTO :"schema".supervisor (supervisor_id, incarnation, name, host, pid, lease_s) OVERRIDING SYSTEM VALUE
VALUES (%(supervisor_id)s, %(incarnation)s, %(name)s, %(host)s, %(pid)s, %(lease_s)s)
RETURNING supervisor_id
