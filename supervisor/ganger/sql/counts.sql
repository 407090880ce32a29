-- COUNTS: rows of one queue, of all queues, and of the archive.
SELECT (SELECT count(*) FROM :"schema".job WHERE queue = %(queue)s),
       (SELECT count(*) FROM :"schema".job),
       (SELECT count(*) FROM :"schema".archived_job)
