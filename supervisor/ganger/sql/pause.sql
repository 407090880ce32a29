-- PAUSE: nothing is claimed from this queue any more; from none, if it is the one without a name. What runs goes on.
INSERT INTO :"schema".queue AS q (queue, paused_at) VALUES (%(queue)s, now())
ON CONFLICT (queue) DO UPDATE SET paused_at = coalesce(q.paused_at, excluded.paused_at)
