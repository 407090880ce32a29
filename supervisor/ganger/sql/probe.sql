-- PROBE: a sign of life.
SELECT 1
