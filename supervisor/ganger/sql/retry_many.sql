-- RETRY MANY: see the function; in the order of the ids, so that two of these never wait for each other in a circle.
SELECT t.job_id, :"schema".retry(t.job_id)
FROM (SELECT job_id FROM unnest(%(job_ids)s::uuid[]) AS u(job_id) ORDER BY job_id OFFSET 0) AS t
