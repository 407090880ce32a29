-- PRUNABLE: how many rows of the archive ended more than `older` seconds ago, in these states (NULL: all).
SELECT count(*) FROM :"schema".archived_job
WHERE finished_at < now() - %(older)s::float8 * interval '1 second'
  AND (%(states)s::text[] IS NULL OR status = ANY (%(states)s::text[]))
