-- HORIZON: transactions below it were open, or finished, when it was asked.
SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint
