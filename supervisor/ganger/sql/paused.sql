-- PAUSED: the queues that are; the one without a name stands for all.
SELECT queue FROM :"schema".queue WHERE paused_at IS NOT NULL ORDER BY queue
