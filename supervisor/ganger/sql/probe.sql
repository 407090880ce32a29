-- PROBE: a sign of life, and of which server process.
SELECT pg_backend_pid()
