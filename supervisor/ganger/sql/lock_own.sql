-- LOCK OWN: a registration that we give up ourselves; a sweep of it in progress is awaited.
SELECT supervisor_id FROM :"schema".supervisor WHERE supervisor_id = %(supervisor_id)s FOR UPDATE
