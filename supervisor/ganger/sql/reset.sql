-- RESET: no job, no archive; supervisors and pauses stay. A running supervisor finds its runs gone and kills them.
TRUNCATE :"schema".job, :"schema".archived_job
