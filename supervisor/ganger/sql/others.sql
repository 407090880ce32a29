-- OTHERS: the other registrations and their beats.
SELECT supervisor_id, beat, lease_s, incarnation
FROM :"schema".supervisor
WHERE supervisor_id <> %(supervisor_id)s
ORDER BY supervisor_id
