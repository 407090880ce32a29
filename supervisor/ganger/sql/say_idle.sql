-- SAY IDLE: this supervisor waits for work in these queues for so many seconds; 0 takes it back.
INSERT INTO :"schema".idle AS i (queue, supervisor_id, idle_until)
SELECT q, %(supervisor_id)s, CASE WHEN %(seconds)s::float8 > 0 THEN now() + %(seconds)s::float8 * interval '1 second' END
FROM unnest(%(queues)s::text[]) AS q ORDER BY q
ON CONFLICT (queue, supervisor_id) DO UPDATE SET idle_until = excluded.idle_until
