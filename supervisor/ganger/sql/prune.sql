-- PRUNE: deletes up to `most` rows of the archive that ended more than `older` seconds ago, in these states (NULL:
-- all), the oldest first. To be repeated while it deletes as many as it may.
WITH old AS (
  SELECT a.job_id FROM :"schema".archived_job AS a
  WHERE a.finished_at < now() - %(older)s::float8 * interval '1 second'
    AND (%(states)s::text[] IS NULL OR a.status = ANY (%(states)s::text[]))
  ORDER BY a.finished_at LIMIT %(most)s FOR UPDATE SKIP LOCKED),
gone AS (
  DELETE FROM :"schema".archived_job AS a USING old WHERE a.job_id = old.job_id RETURNING 1)
SELECT count(*) FROM gone
