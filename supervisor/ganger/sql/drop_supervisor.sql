-- DROP SUPERVISOR: the registration and what it said about idle queues.
WITH flags AS (DELETE FROM :"schema".idle WHERE supervisor_id = %(supervisor_id)s)
DELETE FROM :"schema".supervisor WHERE supervisor_id = %(supervisor_id)s
