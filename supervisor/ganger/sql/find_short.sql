-- FIND SHORT: the ids that end with these hex digits, as process titles show them; a few, if there are more.
SELECT job_id FROM :"schema".job WHERE right(replace(job_id::text, '-', ''), %(length)s) = %(digits)s
UNION
SELECT job_id FROM :"schema".archived_job WHERE right(replace(job_id::text, '-', ''), %(length)s) = %(digits)s
LIMIT 5
