-- LOCK SUPERVISOR, first statement of a sweep: only if nobody else is at it and its beat is still the one that was seen.
-- Claims of that supervisor wait for the end of the sweep and then find their registration gone.
SELECT supervisor_id FROM :"schema".supervisor
WHERE supervisor_id = %(supervisor_id)s AND beat = %(beat)s FOR UPDATE SKIP LOCKED
