-- LEFT: whether these queues hold a row that is ready, running, or waiting for a retry.
SELECT EXISTS (SELECT FROM :"schema".job WHERE state = 1 AND queue = ANY (%(queues)s::text[]))
    OR EXISTS (SELECT FROM :"schema".job WHERE state = 2 AND queue = ANY (%(queues)s::text[]))
    OR EXISTS (SELECT FROM :"schema".job WHERE state = 0 AND queue = ANY (%(queues)s::text[])
                 AND (starts > 0 OR process_at <= now()))
