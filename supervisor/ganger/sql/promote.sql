-- PROMOTE: due rows become ready, the urgent first, whatever their queue; one supervisor at a time. To be repeated while
-- it promotes as many as it may. Walks from priority to priority, so that a million rows that are not due cost nothing.
-- NULL: another supervisor is at it.
WITH RECURSIVE turn AS MATERIALIZED (
  SELECT pg_try_advisory_xact_lock(1734438499, hashtext(:'schema')) AS mine),
level(priority) AS (
  (SELECT j.priority FROM :"schema".job AS j WHERE j.state = 0 ORDER BY j.priority LIMIT 1)
  UNION ALL
  SELECT (SELECT j.priority FROM :"schema".job AS j WHERE j.state = 0 AND j.priority > level.priority
          ORDER BY j.priority LIMIT 1)
  FROM level WHERE level.priority IS NOT NULL),
due AS MATERIALIZED (
  SELECT first.job_id FROM level CROSS JOIN LATERAL (
    SELECT j.job_id FROM :"schema".job AS j
    WHERE j.state = 0 AND j.priority = level.priority AND j.process_at <= now()
    ORDER BY j.process_at LIMIT %(most)s) AS first
  WHERE (SELECT mine FROM turn)
  LIMIT %(most)s),
locked AS MATERIALIZED (
  SELECT j.job_id FROM :"schema".job AS j JOIN due USING (job_id)
  WHERE j.state = 0 ORDER BY j.job_id FOR NO KEY UPDATE OF j SKIP LOCKED),
promoted AS (
  UPDATE :"schema".job AS j SET state = 1 FROM locked WHERE j.job_id = locked.job_id RETURNING 1)
SELECT CASE WHEN mine THEN (SELECT count(*) FROM promoted) END FROM turn
