-- RESUME: a queue; NULL: all that is paused. Returns what was.
UPDATE :"schema".queue SET paused_at = NULL
WHERE paused_at IS NOT NULL AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
RETURNING queue
